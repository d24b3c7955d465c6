"""What a run of a model leaves behind, before folding: one record per op, and when storages died. No torch.

Sizes are sympy expressions in a symbolic run and plain integers in a concrete one; the form is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any

_ENDING = re.compile(r"\d+(?=\.|$)")
INDEXED = re.compile(r"(?<![^.])\d+(?![^.])|(?<=_l)\d+")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that was seen: its number, sizes, dtype and storage, in the order of first sight."""

    id: int
    shape: tuple[Any, ...]
    dtype: str
    storage: int
    strides: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """An operand: the value with this number."""

    value: int


@dataclass(frozen=True, slots=True)
class Record:
    """One op call, or one tensor that came in from outside (op is then a member of `graph.SOURCES`)."""

    op: str
    arguments: tuple[tuple[str, Any], ...]
    outputs: tuple[Value, ...]
    phase: str
    module: str
    source: str
    name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What two runs are aligned by: never a shape, never the length of a list.

        A backward that leaves out some of its outputs is another op than one that makes them all, a product with a
        number another than one of tensors, and a frozen parameter another thing than a trained one.
        """
        mask = next((value for name, value in self.arguments if name == "output_mask"), ())
        return (self.phase, self.op, template(self.module), template(self.name), *map(str, mask), *self._tensors, *({"trainable"} & set(self.notes)))

    @property
    def _tensors(self) -> Iterator[str]:
        """The arguments that are tensors, and of lists with gaps, which of their places are."""
        for name, value in self.arguments:
            if isinstance(value, Use):
                yield name
            elif isinstance(value, tuple) and None in value:
                yield name + "".join("-" if part is None else "t" for part in value)

    @property
    def uses(self) -> Iterator[Use]:
        """Every operand that is a tensor."""
        for _, argument in self.arguments:
            yield from _uses(argument)


def _uses(argument: Any) -> Iterator[Use]:
    if isinstance(argument, Use):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _uses(part)


@dataclass(frozen=True, slots=True)
class Pin:
    """A symbol, or an expression, that the user's code turned into a number, and where."""

    expression: str
    value: int
    source: str


Ends = Mapping[str, tuple[int, int]]


@dataclass(slots=True)
class Trace:
    """One recorded run at given sizes. `ends`: by list of modules, how many of its first and of its last members
    stand apart from those between."""

    sizes: dict[str, Any]
    records: list[Record] = field(default_factory=list)
    deaths: list[tuple[int, int]] = field(default_factory=list)
    storages: dict[int, Any] = field(default_factory=dict)
    pins: list[Pin] = field(default_factory=list)
    guards: list[tuple[Any, str, bool]] = field(default_factory=list)
    merged: list[tuple[Any, Any, str]] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)  # lines that ask about data
    remarks: list[str] = field(default_factory=list)  # sentences
    outputs: tuple[int, ...] = ()
    kept: set[int] = field(default_factory=set)
    calls: dict[int, Any] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)

    def drop(self, gone: Sequence[bool]) -> None:
        """Take out these records; deaths and calls are known by the number of their record."""
        left = [0, *accumulate(not g for g in gone)]
        self.deaths[:] = [(left[at], storage) for at, storage in self.deaths]
        self.calls = {left[at]: call for at, call in self.calls.items() if not gone[at]}
        self.records[:] = [r for r, g in zip(self.records, gone, strict=True) if not g]

    def cut(self, count: int) -> list[Record]:
        """Take out the records made last; what died meanwhile died before."""
        left = len(self.records) - count
        for at in range(left, len(self.records)):
            self.calls.pop(at, None)
        late = sum(1 for _ in takewhile(lambda death: death[0] > left, reversed(self.deaths)))
        if late:
            self.deaths[-late:] = [(left, storage) for _, storage in self.deaths[-late:]]
        taken, self.records[left:] = self.records[left:], []
        return taken


def template(path: str) -> str:
    """A path without its indices: `blocks.3.attn` as `blocks.*.attn`, `weight_ih_l0` as `weight_ih_l*`."""
    return INDEXED.sub("*", path)


def loosened(path: str) -> str:
    """A path without the digits that end its parts: `layer_3.fc1` as `layer_*.fc*`, for layers that no list holds."""
    return _ENDING.sub("*", path)
