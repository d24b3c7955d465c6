"""Where the cost is: FLOPs by module, op, phase or kind of arithmetic, the widest share first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import KINDS, Entry, add
from symacct.errors import SizeError
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid
from symacct.report.numbers import flops, share
from symacct.report.readable import Term, text

KEYS = ("module", "op", "phase", "kind")
_FORWARD = ("forward", "loss")
_MOST = 24
_ATTENTION = ("scaled_dot_product", "efficient_attention", "flash_attention")


@dataclass(frozen=True, slots=True)
class Part:
    """A group of nodes: the key, how often it runs, FLOPs of one run and of all."""

    key: tuple[str, ...]
    times: Expr | None
    once: Expr
    total: Expr


def keys_of(words: Iterable[str]) -> tuple[str, ...]:
    """The keys of `--by module,op`. Raises SizeError for another word."""
    found = tuple(word.strip() for text in words for word in text.split(",") if word.strip())
    wrong = [word for word in found if word not in KEYS]
    if wrong:
        raise SizeError(f"--by {wrong[0]}: choose from {', '.join(KEYS)}")
    return tuple(dict.fromkeys(found))


def by_module(answer: Answer) -> Grid:
    """The forward pass by module: how often it runs, FLOPs of one run, share of the whole."""
    parts = forward_parts(answer)
    whole = add(part.total for part in parts)
    shown = parts if len(parts) <= _MOST + 1 else parts[:_MOST]
    rows = [
        (part.key[0], _times(answer, part), text(answer.terms(part.once)), _share(answer, part.total, whole))
        for part in shown
    ]
    if len(shown) < len(parts):
        rest = add(part.total for part in parts[_MOST:])
        rows.append((f"{len(parts) - _MOST} more", "", "", _share(answer, rest, whole)))
    columns = (Column("module"), Column("×", "right"), Column("forward", "formula"), Column("share", "right"))
    return Grid(columns, tuple(rows))


def by_keys(answer: Answer, keys: Sequence[str]) -> Grid:
    """The whole step by these keys: by kind of arithmetic all of it, else what the convention counts."""
    parts = parts_by(answer, keys)
    whole = add(part.total for part in parts)
    unit = answer.ledger.convention.unit
    rows = []
    for part in parts:
        number = answer.number(part.total) if answer.sizes else None
        scaled = "" if number is None else flops(number, unit)
        rows.append(
            (
                *(_named(key, word) for key, word in zip(keys, part.key, strict=True)),
                text(answer.terms(part.total)),
                scaled,
                _share(answer, part.total, whole),
            )
        )
    columns = (
        *(Column(key) for key in keys),
        Column(f"{unit}s", "formula"),
        Column("value", "right"),
        Column("share", "right"),
    )
    return Grid(columns, tuple(rows))


def parts_by(answer: Answer, keys: Sequence[str]) -> list[Part]:
    """The groups of the whole step under the relations, widest first."""
    found = answer.ledger.by(*keys, phases=_phases(answer))
    parts = [Part(key, None, total, total) for key, total in _under(answer, found).items()]
    return _widest_first(answer, [part for part in parts if part.total != 0])


def _phases(answer: Answer) -> tuple[str, ...]:
    """The phases of a step, what is computed again left out: those FLOPs are the hardware's."""
    return tuple(sorted({entry.phase for entry in answer.ledger.entries} - {"recompute"}))


def _under(answer: Answer, found: Mapping[tuple[str, ...], Expr]) -> dict[tuple[str, ...], Expr]:
    return {key: answer.under(total) for key, total in found.items()}


def _widest_first(answer: Answer, parts: list[Part]) -> list[Part]:
    """Widest first; parts as wide as each other in the order in which they run."""
    return sorted(parts, key=lambda part: -answer.weight(part.total))


def forward_parts(answer: Answer) -> list[Part]:
    """The forward pass by module; nodes of a module that run unlike often stand apart."""
    ledger = answer.ledger
    groups: dict[tuple[str, Expr], list[Entry]] = {}
    for entry in ledger.entries:
        if entry.phase in _FORWARD and ledger.counted(entry) != 0:
            groups.setdefault((entry.module, entry.place.times), []).append(entry)
    parts = []
    for (module, times), entries in groups.items():
        total = add(ledger.counted(entry) for entry in entries)
        once = total / times
        once = sp.expand(sp.cancel(once) if times.has(sp.Add) else once)  # of (L - 1)·T runs: without L - 1
        even = not (sp.fraction(sp.together(once))[1].free_symbols & times.free_symbols)
        label = _label(module, entries, ledger.entries)
        parts.append(
            Part(
                (label,), times if even else None, answer.under(once if even else total), answer.under(total)
            )
        )
    return _widest_first(answer, [part for part in parts if part.total != 0])


def _label(module: str, entries: Sequence[Entry], everything: Sequence[Entry]) -> str:
    """The module's path; where it has parts of its own, also what it computes itself."""
    name = module or "(the model itself)"
    prefix = f"{module}." if module else ""
    if not any(entry.module.startswith(prefix) and entry.module != module for entry in everything):
        return name
    return f"{name}  ({', '.join(dict.fromkeys(_spoken(entry.op) for entry in entries))})"


def _spoken(op: str) -> str:
    """What an op is called in a formula's margin."""
    return "q·kᵀ, a·v" if any(word in op for word in _ATTENTION) else op.removeprefix("aten.")


def _times(answer: Answer, part: Part) -> str:
    return "Σ" if part.times is None else text(runs(answer, part.times))


def runs(answer: Answer, times: Expr) -> tuple[Term, ...]:
    """How often a part runs, for reading: as a product where all but one factor are sizes, as `T·(L - 1)`."""
    under = answer.under(times)
    if not under.is_polynomial(*under.free_symbols):
        return answer.terms(under)
    number, factors = sp.factor_list(under)
    sums = [base for base, _ in factors if not base.is_Symbol]
    powers = tuple((base, power) for base, power in factors if base.is_Symbol)
    if len(sums) != 1 or len(sums) + len(powers) != len(factors) or not powers or dict(factors)[sums[0]] != 1:
        return answer.terms(under)
    return (Term(number, powers, answer.terms(sums[0])),)


def _share(answer: Answer, part: Expr, whole: Expr) -> str:
    if not answer.sizes:
        return ""
    mine, all_ = answer.number(part), answer.number(whole)
    return "" if mine is None or all_ is None else share(mine, all_)


def _named(key: str, word: str) -> str:
    return word or ("(the model itself)" if key == "module" else "(none)")


__all__ = ["KEYS", "KINDS", "by_keys", "by_module", "forward_parts", "keys_of", "parts_by", "runs"]
