"""Formulas under stated orders such as `T << d`: what they prove small, and the bound on dropping it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy as sp

from symacct.claims.bounds import bounded, kept, proved
from symacct.claims.leading import stated
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid
from symacct.report.orders import Leading
from symacct.report.readable import text
from symacct.symbols import symbol

_LABELS = {
    "params.total": "parameters",
    "params.active": "active",
    "flops.forward": "forward",
    "flops.step": "step",
    "bytes.saved": "kept for backward",
}


def leading(answer: Answer, orders: Sequence[str]) -> list[Leading]:
    """The formulas of which the orders prove some terms small. Raises SizeError if they cannot hold."""
    regime = stated(orders, answer.ledger.graph, answer.relations.replaced)
    numbers = {symbol(name): sp.Integer(value) for name, value in answer.sizes.items()}
    found = []
    for key in _LABELS:
        whole = answer.formulas.get(key)
        if regime is None or whole is None or whole.has(sp.Max, sp.Min, sp.Mod):
            continue
        part = kept(whole, regime.orders)
        if part != whole:
            bound = proved(whole, part, part, regime.orders, numbers)
            most = bounded(whole, part, part, regime.orders)
            found.append(Leading(key, part, sp.expand(whole - part), bound, most, regime.orders))
    return found


def table(answer: Answer, found: Sequence[Leading], orders: Sequence[str]) -> Grid:
    """What is left of each formula, what is dropped, and the bound; a sentence where nothing is."""
    where = ", ".join(order.strip() for order in orders)
    rows = tuple(row for one in found for row in _rows(answer, one))
    nothing = "these orders alone prove no term small; check judges a leading order of your own"
    columns = (Column("quantity"), Column("formula", "formula"))
    return Grid(columns, rows or (("", nothing),), f"to leading order where {where}")


def _rows(answer: Answer, one: Leading) -> Iterator[tuple[str, str]]:
    yield _LABELS[one.key], f"≈ {text(answer.terms(one.kept))}"
    yield "", f"  dropped: {text(answer.terms(one.rest))}"
    yield "", f"  {one.bound}"
