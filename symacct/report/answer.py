"""What was asked, worked out: a ledger under given relations and at given sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.errors import SizeError
from symacct.limits import told
from symacct.report.readable import Reading, Term, readable, reading_of, shown
from symacct.report.relations import Relations, agreeing, numbers, relations, turned
from symacct.symbols import symbol

_LED = ("params.total", "flops.forward", "flops.step")


@dataclass(frozen=True)
class Answer:
    """A ledger, relations between its sizes, and numbers for some or all of them.

    `asked` says that numbers were asked for, so that none may be missing.
    """

    ledger: Ledger
    relations: Relations
    sizes: Mapping[str, int]
    asked: bool

    @cached_property
    def formulas(self) -> dict[str, Expr]:
        """The ledger's formulas under the relations."""
        return {key: self.under(value) for key, value in self.ledger.formulas.items()}

    @cached_property
    def values(self) -> dict[str, int]:
        """The formulas in exact integers, those that the sizes suffice for."""
        found = {key: self.told(key) for key in self.formulas}
        return {key: value for key, value in found.items() if value is not None}

    def told(self, key: str) -> int | None:
        """A formula at the sizes, or what a run there tells where it does not hold; None where neither is known."""
        return told(self.ledger.graph, key, self.sizes, lambda: self.number(self.formulas[key], key))

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The sizes without a number, in the order of the model's own."""
        needed = {s.name for value in self.formulas.values() for s in value.free_symbols}
        return tuple(name for name in self.ledger.graph.symbols if name in needed - set(self.sizes))

    @cached_property
    def reading(self) -> Reading:
        """How this model's formulas are collected."""
        return reading_of(self.ledger.graph)

    def under(self, expr: Expr) -> Expr:
        """An expression of the ledger under the relations."""
        return self.relations.apply(expr, self.ledger.domain)

    def terms(self, expr: Expr) -> tuple[Term, ...]:
        """An expression collected for reading."""
        return readable(expr, self.reading)

    def number(self, expr: Expr, what: str = "a formula") -> int | None:
        """An expression at the sizes; None when they do not suffice. Raises SizeError for no integer."""
        got = expr.xreplace(self._numbers)
        if got.free_symbols:
            return None
        if not got.is_Integer:
            raise SizeError(f"{what} is {got} at these sizes, which is no integer: a divisibility is broken")
        return int(got)

    def weight(self, expr: Expr) -> float:
        """What an expression is put in order by: its value at the sizes, else at the trace's own."""
        example = {
            symbol(name): sp.Integer(info.traced_at) for name, info in self.ledger.graph.symbols.items()
        }
        got = expr.xreplace({**example, **self._numbers})
        return float(got.xreplace({s: sp.Integer(1) for s in got.free_symbols}))

    @cached_property
    def _numbers(self) -> dict[sp.Symbol, sp.Integer]:
        return {symbol(name): sp.Integer(value) for name, value in self.sizes.items()}


def answer(ledger: Ledger, at: Iterable[str] = (), given: Iterable[str] = ()) -> Answer:
    """Work out `--at` and `--given`. Raises SizeError when they leave a size out or contradict the model."""
    graph = ledger.graph
    known = relations(given, graph.symbols)
    agreeing(known, graph.assumptions)
    known = _shortest(ledger, known)
    asked = numbers(at)
    sizes = known.completed({**graph.values, **asked})
    if asked:
        marks = {entry.unknown: 1 for entry in ledger.entries if entry.unknown}
        ledger.checked({**sizes, **marks})
    return Answer(ledger, known, sizes, bool(asked))


def _shortest(ledger: Ledger, known: Relations) -> Relations:
    """The relations told for those sizes that make the formulas the shortest: of `d = h*d_h` rarely d."""
    ways = [known, *turned(known)]
    if len(ways) == 1:
        return known
    reading = reading_of(ledger.graph)
    told = [ledger.formulas[key] for key in _LED if key in ledger.formulas]
    return min(ways, key=lambda way: sum(len(shown(way.apply(e, ledger.domain), reading)) for e in told))
