"""Sizes at which the derived formula that a verdict is about is itself another: bytes where a size is 1."""

from __future__ import annotations

from dataclasses import replace

from symacct.claims.cases import Setting
from symacct.claims.verdict import PROVED, Verdict
from symacct.formula_text import to_text
from symacct.limits import PEAK
from symacct.smallest import conditions_of


def with_exceptions(found: Verdict, setting: Setting) -> Verdict:
    """The verdict, with where the formulas that the claim speaks of do not hold if no relation excludes that."""
    if found.verdict not in (*PROVED, "leading-order"):
        return found
    claim, graph = setting.claim, setting.ledger.graph
    spoken = claim.left.free_symbols | claim.right.free_symbols
    keys = {key for stand, key in claim.keys.items() if stand in spoken}
    told = []
    for limit in graph.limits:
        apart = setting.under(limit.where.lhs - limit.where.rhs)
        if limit.key in keys and not (apart.is_number and apart != 0):
            plus = None if limit.more is None else f"the derived formula plus ({to_text(limit.more)})"
            told.append(f"where {limit.text}, {limit.key} is {plus or 'another: only a run tells'}")
    if PEAK in keys:
        repeated = dict.fromkeys(loop.size for place in graph.placed() for loop in place.loops)
        deep = conditions_of(graph, tuple(repeated))
        told += [f"{PEAK} has these forms where {a.text} alone" for a in deep]
    return replace(found, exceptions=tuple(told))
