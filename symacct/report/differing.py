"""The answer of `diff`: two targets in one set of sizes, formula against formula, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.diff import Crossover, Difference
from symacct.expressions import to_text
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped
from symacct.report.paired import Pair
from symacct.report.readable import readable, text
from symacct.symbols import symbol

_INDENT = 13
_SAID = {"equal": "the same", "more": "always more", "less": "always less"}


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
    number = two.values(found.key)
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
    if found.verdict in _SAID:
        return _SAID[found.verdict]
    if found.crossover is not None:
        never = found.verdict == "never more"  # then the other side of the bound is where A costs less
        sign = ">" if found.crossover.above != never else "<"
        here = _here(two, found.crossover) if two.general(found.key) else ""
        turn = f"{found.crossover.size} {sign} {bound(two, found.crossover)}{here}"
        return f"less while {turn}, never more" if never else f"more while {turn}"
    if found.verdict != "depends":
        return found.verdict
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


def _sides(found: Difference, turn: Crossover) -> dict[str, str]:
    """On which side of the bound A costs more; less, where it never costs more."""
    never = found.verdict == "never more"
    return {"less" if never else "more": "above" if turn.above != never else "below"}


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
            **_sides(found, turn),
        }
    values = two.values(found.key)
    if values[0] is not None and values[1] is not None:
        made["values"] = {"a": values[0], "b": values[1], "difference": values[0] - values[1]}
    return made
