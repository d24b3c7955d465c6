"""The answer of `diff`: two targets in one set of sizes, formula against formula, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.diff import Crossover, Difference, differences
from symacct.domain import Domain
from symacct.errors import SizeError
from symacct.expressions import evaluate, parse, to_text
from symacct.graph import Assumption
from symacct.limits import told
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped
from symacct.report.readable import Reading, readable, reading_of, text
from symacct.report.relations import Relations, numbers, relations
from symacct.symbols import symbol

_INDENT = 13
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
        """The conditions of both, in the common sizes; each once."""
        theirs = (
            Assumption(c.kind, _put(c.left, self.mapped), _put(c.right, self.mapped), c.source)
            for c in self.b.graph.assumptions
        )
        found = {c.text: c for c in (*self.a.graph.assumptions, *theirs)}
        return tuple(found.values())

    @cached_property
    def differences(self) -> list[Difference]:
        """Formula by formula."""
        domain = Domain(self.names, self.conditions)

        def common(value: Expr) -> Expr:
            return self.known.apply(value, domain)

        def translated(value: Expr) -> Expr:
            return common(sp.expand(domain.rewrite(_put(value, self.mapped))))

        mine = {key: _each(common, value) for key, value in self.a.formulas.items()}
        theirs = {key: _each(translated, value) for key, value in self.b.formulas.items()}
        order = [symbol(n) for n in (*_LEADING, *self.names)]
        return differences(mine, theirs, dict.fromkeys(order), self.solve)

    @cached_property
    def reading(self) -> Reading:
        """How the formulas are collected: as A's are."""
        return reading_of(self.a.graph)

    def number(self, expr: Expr) -> int | None:
        """An expression at the sizes; None when they do not suffice."""
        if not {s.name for s in expr.free_symbols} <= set(self.sizes):
            return None
        return int(evaluate(expr, self.sizes))

    def values(self, found: Difference) -> tuple[int | None, int | None]:
        """Both formulas at the sizes; None where they do not suffice, or where only a run of the model would tell."""
        mine = {name: value for name, value in self.sizes.items() if name in self.a.graph.symbols}
        theirs = _theirs(self.b, self.mapped, self.sizes)
        return (
            told(self.a.graph, found.key, mine, lambda: self.number(found.a)),
            told(self.b.graph, found.key, theirs, lambda: self.number(found.b)),
        )

    @cached_property
    def exceptions(self) -> list[str]:
        """Where a formula of one of them is another."""
        keys = {found.key for found in self.differences}
        limits = [(key, of, limit) for key in keys for of in (self.a.graph, self.b.graph) for limit in of.limits if limit.key == key]
        return sorted({f"{key} of {of.target} is another where {limit.text}" for key, of, limit in limits})


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


def as_text(two: Pair, page: Page) -> None:
    """Sizes, conditions, and a table: quantity, difference, where A costs more."""
    a, b = two.a.graph, two.b.graph
    page.line(f"A = {a.target}, B = {b.target} · {a.mode} · {two.a.convention.line}", "bold")
    both = [name for name in a.symbols if name in b.symbols and symbol(name) not in two.mapped]
    for label, names in (
        ("both have", both),
        ("only A", _only(a.symbols, both)),
        ("only B", _only(b.symbols, both)),
    ):
        if names:
            page.hanging(label, names, _INDENT, ", ")
    if two.mapped:
        page.hanging(
            "B's sizes", [f"{name} = {_shown(two, told)}" for name, told in two.mapped.items()], _INDENT, ", "
        )
    held = [c.short.replace("*", "·") for c in two.conditions] + [
        f"{t.replace('*', '·')} (given)" for t in two.known.texts
    ]
    if held:
        page.hanging("holds when", held, _INDENT, ",  ")
    page.line()
    rows = [_row(two, found) for found in two.differences]
    page.grid(
        Grid(
            (
                Column("quantity"),
                Column("A - B", "formula"),
                Column("A is", "formula"),
                Column("here", "right"),
            ),
            tuple(rows),
        )
    )
    if two.exceptions:
        page.hanging("except", two.exceptions, _INDENT, "; ")


def _only(names: Iterable[str], both: Collection[str]) -> list[str]:
    return [name for name in names if name not in both]


def _row(two: Pair, found: Difference) -> tuple[str, str, str, str]:
    number = two.values(found)
    here = grouped(number[0] - number[1]) if number[0] is not None and number[1] is not None else ""
    large = found.difference.has(sp.Max)
    return (
        found.key,
        "a difference of two maxima" if large else _shown(two, found.difference),
        said(two, found),
        here,
    )


def said(two: Pair, found: Difference) -> str:
    """Where A costs more, in words."""
    if found.verdict != "depends":
        return {"equal": "the same", "more": "always more", "less": "always less"}[found.verdict]
    if found.crossover is not None:
        sign = ">" if found.crossover.above else "<"
        turn = f"{found.crossover.size} {sign} {bound(two, found.crossover)}"
        return f"more while {turn}{_here(two, found.crossover)}"
    if found.more == 0:
        return "more or less, by its sizes"
    return f"more while {_shown(two, found.more)} > {_shown(two, found.less)}"


def bound(two: Pair, turn: Crossover) -> str:
    """The bound in one line."""
    roots = [
        e for e in sp.preorder_traversal(turn.bound) if isinstance(e, sp.Pow) and e.exp == sp.Rational(1, 2)
    ]
    if not roots:
        over, under = sp.fraction(turn.bound)
        above = _shown(two, over)
        if under == 1:
            return above
        return f"{above if len(readable(over, two.reading)) == 1 else f'({above})'}/{_bracketed(two, under)}"
    under = sp.denom(turn.bound)
    rest = turn.bound * under - roots[0] * (1 if turn.above else -1)
    before = "" if sp.expand(rest) == 0 else f"{_shown(two, rest)} "
    sign = ("+ " if before else "") if turn.above else "- "
    return f"({before}{sign}√({_shown(two, roots[0].base)}))/{_bracketed(two, under)}"


def _here(two: Pair, turn: Crossover) -> str:
    """The bound at the other sizes."""
    here = turn.bound.xreplace({symbol(n): sp.Integer(v) for n, v in two.sizes.items()})
    return f"  (here {float(here):,.4g})" if not here.free_symbols else ""


def _bracketed(two: Pair, expr: Expr) -> str:
    made = _shown(two, expr)
    return made if expr.is_Symbol or expr.is_Integer else f"({made})"


def _shown(two: Pair, expr: Expr) -> str:
    return text(readable(expr, two.reading))


def as_json(two: Pair) -> str:
    """One object: sizes, conditions, and by key both formulas, their difference, where its sign turns."""
    made = {
        "a": two.a.graph.target,
        "b": two.b.graph.target,
        "mode": two.a.graph.mode,
        "symbols": list(two.names),
        "map": {name.name: to_text(told) for name, told in two.mapped.items()},
        "assumptions": [c.text for c in two.conditions] + list(two.known.texts),
        "convention": two.a.convention.as_json(),
        "exceptions": two.exceptions,
        "differences": {found.key: _object(two, found) for found in two.differences},
    }
    return json.dumps(made, indent=2, ensure_ascii=False)


def _object(two: Pair, found: Difference) -> dict[str, Any]:
    made: dict[str, Any] = {
        "a": to_text(found.a),
        "b": to_text(found.b),
        "difference": to_text(found.difference),
        "a_is": found.verdict,
        "where": said(two, found),
    }
    if found.crossover is not None:
        turn = found.crossover
        made["crossover"] = {
            "symbol": turn.size.name,
            "bound": bound(two, turn),
            "more": "above" if turn.above else "below",
        }
    values = two.values(found)
    if values[0] is not None and values[1] is not None:
        made["values"] = {"a": values[0], "b": values[1], "difference": values[0] - values[1]}
    return made
