"""Two targets in one set of sizes: formulas subtracted, numbers, and where a formula is another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.diff import Difference, differences
from symacct.domain import Domain
from symacct.errors import SizeError
from symacct.expressions import evaluate, parse, to_text
from symacct.graph import Assumption, Limit
from symacct.limits import limits_at, possible_limits, told
from symacct.report.readable import Reading, reading_of, shown
from symacct.report.relations import Relations, numbers, relations
from symacct.symbols import symbol

_LEADING = ("T", "S", "B", "V", "d", "L", "f")


@dataclass(frozen=True)
class Pair:
    """Ledgers A and B; `mapped` says B's sizes in A's, `known` relates the sizes, `sizes` are numbers."""

    a: Ledger
    b: Ledger
    mapped: Mapping[sp.Symbol, Expr]
    known: Relations
    sizes: Mapping[str, int]
    solve: sp.Symbol | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sizes of both, A's first."""
        return _names(self.a, self.b, self.mapped)

    @cached_property
    def conditions(self) -> tuple[Assumption, ...]:
        """The conditions of both, in the common sizes, without those that --map makes true, as `h | h`.

        Raises SizeError where --map makes one false.
        """
        theirs = (_moved(c, self.mapped) for c in self.b.graph.assumptions)
        found = {c.text: c for c in (*self.a.graph.assumptions, *theirs)}
        decided = {text: _decided(c) for text, c in found.items()}
        broken = [c for c in self.b.graph.assumptions if _decided(_moved(c, self.mapped)) is False]
        if broken:
            raise SizeError(f"--map {_told(self.mapped)} contradicts {broken[0].short}, which B assumes")
        return tuple(c for text, c in found.items() if decided[text] is None)

    @cached_property
    def where(self) -> tuple[Ledger, Ledger]:
        """Both, with kept bytes and the peak as they are where the relations give some sizes numbers."""
        mine, theirs = self._fixed
        return self.a.where(mine), self.b.where(theirs)

    @cached_property
    def _fixed(self) -> tuple[dict[str, int], dict[str, int]]:
        """Their sizes to which the relations give numbers."""
        set_ = {name.name: int(value) for name, value in self.known.replaced.items() if value.is_Integer}
        mine = {name: value for name, value in set_.items() if name in self.a.graph.symbols}
        return mine, _theirs(self.b, self.mapped, set_)

    @cached_property
    def differences(self) -> list[Difference]:
        """Formula by formula."""
        domain = Domain(self.names, self.conditions)

        def common(value: Expr) -> Expr:
            return self.known.apply(value, domain)

        def translated(value: Expr) -> Expr:
            return common(sp.expand(domain.rewrite(_put(value, self.mapped))))

        one, other = self.where
        mine = {key: _each(common, value) for key, value in one.formulas.items()}
        theirs = {key: _each(translated, value) for key, value in other.formulas.items()}
        order = [symbol(n) for n in (*_LEADING, *self.names)]
        held = [_moved(c, self.known.replaced) for c in (*self.conditions, *self.known.conditions)]
        return differences(mine, theirs, dict.fromkeys(order), self.solve, held)

    @cached_property
    def reading(self) -> Reading:
        """How the formulas are collected: as A's are."""
        return reading_of(self.a.graph)

    def number(self, expr: Expr) -> int | None:
        """An expression at the sizes; None when they do not suffice."""
        return _number(expr, self.sizes)

    def values(self, key: str) -> tuple[int | None, int | None]:
        """Both formulas at the sizes; None where they do not suffice, or where only a run would tell."""
        mine = {name: value for name, value in self.sizes.items() if name in self.a.graph.symbols}
        theirs = _theirs(self.b, self.mapped, self.sizes)
        return (
            told(self.a.graph, key, mine, lambda: _number(self.a.formulas[key], mine)),
            told(self.b.graph, key, theirs, lambda: _number(self.b.formulas[key], theirs)),
        )

    def general(self, key: str) -> bool:
        """Whether the formulas of both are at the sizes what they are in general."""
        mine = {name: value for name, value in self.sizes.items() if name in self.a.graph.symbols}
        theirs = _theirs(self.b, self.mapped, self.sizes)
        return not limits_at(self.a.graph, key, mine) and not limits_at(self.b.graph, key, theirs)

    @cached_property
    def exceptions(self) -> list[str]:
        """Where a formula of one of them is another, and what is left out as only a run tells it."""
        both = self.a.formulas.keys() & self.b.formulas.keys()
        found = [
            said
            for whole, narrow, fixed, mapped in zip((self.a, self.b), self.where, self._fixed, ({}, self.mapped), strict=True)
            for limit in possible_limits(whole.graph, fixed)
            if limit.key in both and (said := self._exception(whole, narrow, mapped, limit))
        ]
        return sorted(set(found))

    def _exception(
        self, whole: Ledger, narrow: Ledger, mapped: Mapping[sp.Symbol, Expr], limit: Limit
    ) -> str:
        """One of them in the common sizes; empty where the relations exclude it, or the formula has it."""
        left, right = (_put(side, mapped) for side in limit.where.args)
        apart = sp.expand((left - right).xreplace(dict(self.known.replaced)))
        of, where = f"{limit.key} of {whole.graph.target}", f"where {to_text(left)} = {to_text(right)}"
        if apart.is_zero is not None:
            lost = apart.is_zero and limit.key not in narrow.formulas
            return f"{of} is left out: {where} only a run tells" if lost else ""
        more = "another" if limit.more is None else f"{shown(_put(limit.more, mapped), self.reading)} more"
        return f"{of} is {more} {where}"


def pair(
    a: Ledger,
    b: Ledger,
    at: Iterable[str] = (),
    given: Iterable[str] = (),
    mapping: Sequence[str] = (),
    solve: str | None = None,
) -> Pair:
    """Work out `--at`, `--given`, `--map` and `--solve`. Raises SizeError for what fits neither model."""
    mapped = _mapping(mapping, a.graph.symbols, b.graph.symbols)
    names = _names(a, b, mapped)
    known = relations(given, names)
    if solve is not None and solve not in names:
        raise SizeError(f"--solve {solve}: no size of the two models; they have {', '.join(names)}")
    asked = numbers(at)
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise SizeError(f"{', '.join(unknown)}: not a size of the two models; they have {', '.join(names)}")
    sizes = known.completed(asked)
    if asked:
        a.checked({name: sizes[name] for name in a.graph.symbols if name in sizes})
        b.checked(_theirs(b, mapped, sizes))
    return Pair(a, b, mapped, known, sizes, symbol(solve) if solve is not None else None)


def _decided(condition: Assumption) -> bool | None:
    """Whether a condition is true of all sizes, or of none; None where it depends."""
    if condition.kind == "branch":
        return {sp.true: True, sp.false: False}.get(condition.left)
    if condition.kind == "equal":
        apart = sp.expand(condition.left - condition.right)
        return bool(apart == 0) if apart.is_number else None
    quotient = sp.cancel(condition.left / condition.right)
    whole = quotient.is_polynomial(*quotient.free_symbols) and all(
        number.is_Integer for number in quotient.as_coefficients_dict().values()
    )
    return True if whole else False if quotient.is_number else None


def _moved(condition: Assumption, mapped: Mapping[sp.Symbol, Expr]) -> Assumption:
    """A condition in other sizes."""
    left, right = _put(condition.left, mapped), _put(condition.right, mapped)
    return Assumption(condition.kind, left, right, condition.source)


def _told(mapped: Mapping[sp.Symbol, Expr]) -> str:
    return ", ".join(f"{name} = {to_text(expr)}" for name, expr in mapped.items())


def _number(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    return int(evaluate(expr, sizes)) if {s.name for s in expr.free_symbols} <= set(sizes) else None


def _theirs(b: Ledger, mapped: Mapping[sp.Symbol, Expr], sizes: Mapping[str, int]) -> dict[str, int]:
    """B's own sizes at the common ones."""
    found = {}
    for name in b.graph.symbols:
        told = mapped.get(symbol(name), symbol(name))
        if {s.name for s in told.free_symbols} <= set(sizes):
            value = evaluate(told, sizes)
            if not isinstance(value, int) or value < 1:
                raise SizeError(
                    f"{name} = {to_text(told)} (--map) would be {value}: a size is a positive integer"
                )
            found[name] = value
    return found


def _mapping(texts: Sequence[str], mine: Collection[str], theirs: Collection[str]) -> dict[sp.Symbol, Expr]:
    """`f=8*d/3`: a size of B, and what it is in A's sizes; a new name alone renames it."""
    found: dict[sp.Symbol, Expr] = {}
    for part in ",".join(texts).split(",") if texts else ():
        name, sign, said = (word.strip() for word in part.partition("="))
        if not sign or name not in theirs:
            raise SizeError(
                f"--map {part!r}: write a size of B and what it is, as in f=8*d/3; B has {', '.join(theirs)}"
            )
        expr = parse(said)
        if not expr.is_Symbol:
            expr = parse(said, mine)
        found[symbol(name)] = expr
    return found


def _names(a: Ledger, b: Ledger, mapped: Mapping[sp.Symbol, Expr]) -> tuple[str, ...]:
    told = [
        s.name
        for name in b.graph.symbols
        for s in sorted(mapped.get(symbol(name), symbol(name)).free_symbols, key=str)
    ]
    return tuple(dict.fromkeys((*a.graph.symbols, *told)))


def _each(change: Callable[[Expr], Expr], value: Expr) -> Expr:
    """A formula changed; of a maximum each candidate, for sympy would compare all pairs of them."""
    if not isinstance(value, sp.Max):
        return change(value)
    return sp.Max(*dict.fromkeys(map(change, value.args)), evaluate=False)


def _put(value: Any, mapped: Mapping[sp.Symbol, Expr]) -> Any:
    return value.xreplace(dict(mapped)) if isinstance(value, sp.Basic) and mapped else value
