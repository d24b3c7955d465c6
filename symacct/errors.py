"""Every exception that symacct raises on purpose. Each says what, where, and what to do next.

A `SymacctError` is the user's to read: the command line prints it as one sentence and exits with 2.
Each class also inherits the builtin that a caller would expect to catch.
"""

from __future__ import annotations

from dataclasses import dataclass


class SymacctError(Exception):
    """Root of all errors that symacct raises on purpose."""


class ModelFileError(SymacctError, ValueError):
    """A model file, config or input breaks the contract of a target, or its code raised."""


class TraceError(SymacctError, RuntimeError):
    """The model ran, but its cost cannot be expressed exactly in the sizes that were named."""


class GraphError(SymacctError, ValueError):
    """A stored graph is damaged, of another version, or breaks a law of `Graph`."""


class UnknownSymbol(SymacctError, KeyError):
    """A name that is not a symbol of the formula or model at hand."""

    def __str__(self) -> str:
        return str(self.args[0])


class FormulaError(SymacctError, ValueError):
    """A formula in text that cannot be read; the message carries a caret under the spot."""


class SizeError(SymacctError, ValueError):
    """Numbers for symbols that are missing, not positive integers, or outside the formula's domain."""


class DeviceError(SymacctError, LookupError):
    """A device that is not known, or a figure that it does not have."""


class Unsupported(SymacctError, NotImplementedError):
    """Something that symacct cannot do for this model, with the place that prevents it."""


@dataclass(frozen=True, slots=True)
class UnknownOp:
    """An op without a rule: how often it was met and where first."""

    op: str
    count: int
    module: str
    source: str


class UnknownOps(SymacctError, NotImplementedError):
    """Ops that no rule prices, all of them at once."""

    def __init__(self, target: str, ops: tuple[UnknownOp, ...]) -> None:
        super().__init__(target, ops)
        self.target, self.ops = target, ops

    def __str__(self) -> str:
        width = max(len(op.op) for op in self.ops)
        lines = [
            f"  {op.op:<{width}}  {op.count} node{'s' * (op.count != 1)}, first {op.module or 'the model itself'} ({op.source})"
            for op in self.ops
        ]
        return "\n".join(
            [
                f"no rule for {len(self.ops)} op{'s' * (len(self.ops) != 1)} in {self.target}",
                *lines,
                "declare one with @rule in symacct/rules/ (README, 'Adding an op'), "
                "or go on with --allow-unknown: each becomes a symbol in the total",
            ]
        )
