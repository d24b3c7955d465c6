"""Sizes at which the derived formula that a verdict is about is itself another: bytes where a size is 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from symacct.claims.cases import Setting
from symacct.claims.verdict import PROVED, Verdict
from symacct.errors import SizeError
from symacct.formula_text import to_text
from symacct.limits import PEAK, limits_at
from symacct.smallest import conditions_of


def at_values(setting: Setting, sizes: Mapping[str, int]) -> Setting:
    """The claim about what is derived where the sizes have the values that the relations and `sizes` give them.

    Raises SizeError where the claim speaks of a formula that only a run could tell there.
    """
    known = {name.name: int(value) for name, value in setting.relations().replaced.items() if value.is_Integer}
    known |= sizes
    narrowed = setting.ledger.where(known)
    lost = sorted(set(setting.claim.keys.values()) & (setting.ledger.formulas.keys() - narrowed.formulas.keys()))
    if lost:
        met = dict.fromkeys(limit.text for key in lost for limit in limits_at(setting.ledger.graph, key, known))
        raise SizeError(
            f"where {' and '.join(met)}, {' and '.join(lost)} follows no formula: only a run there tells; give a model file "
            "or config, not a stored graph, and --at a number for every size"
        )
    if narrowed.formulas == setting.ledger.formulas:
        return setting
    return replace(setting, ledger=narrowed, memory={})


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
        # where the relations make a limit true, the verdict is about what is derived there
        if limit.key in keys and not apart.is_number and limit.text not in found.conditions:
            plus = None if limit.more is None else f"the derived formula plus ({to_text(limit.more)})"
            told.append(f"where {limit.text}, {limit.key} is {plus or 'another: only a run tells'}")
    if PEAK in keys:
        repeated = dict.fromkeys(loop.size for place in graph.placed() for loop in place.loops)
        deep = conditions_of(graph, tuple(repeated))
        told += [f"{PEAK} has these forms where {a.text} alone" for a in deep]
    return replace(found, exceptions=tuple(told))
