"""Sizes at which the derived formula that a verdict is about is itself another: bytes where a size is 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import sympy as sp

from symacct.claims.cases import Case, Setting
from symacct.claims.verdict import PROVED, Verdict
from symacct.errors import SizeError, TraceError
from symacct.formula_text import to_text
from symacct.graph import Assumption, Limit
from symacct.limits import LIMITED, PEAK, Sought, limits_at, possible_limits
from symacct.smallest import conditions_of
from symacct.symbols import symbol

_SEED, _LOW, _HIGH = 5, 7, 30  # of a point at which no size is a special one unless a relation makes it so


class Untold(SizeError):
    """The claim speaks of a formula that does not hold where the claim is made; only a run would tell."""


def at_values(setting: Setting, sizes: Mapping[str, int]) -> Setting:
    """The claim about what is derived where sizes have the values that the relations and `sizes` give them.

    Raises Untold where the claim speaks of a formula that only a run could tell there.
    """
    keys = _limited(setting)
    if not keys:
        return setting
    general = setting.general or setting.ledger
    replaced = setting.relations().replaced
    known = {name.name: int(value) for name, value in replaced.items() if value.is_Integer} | dict(sizes)
    narrowed = general.where(known, keys)
    lost = sorted(keys - narrowed.formulas.keys())
    met = [limit.text for key in lost for limit in limits_at(general.graph, key, known)]
    numbers = {symbol(name): sp.Integer(value) for name, value in known.items()}
    if PEAK in lost:
        shallow = [a for a in _depths(setting) if a.left.xreplace(numbers) == sp.false]
        met += [f"{size} = {numbers[size]}" for a in shallow for size in a.left.free_symbols]
    if not set(general.graph.symbols) <= set(known):
        for key in sorted(keys):
            alike = [limit.text for limit in _alike(setting, key)]
            lost, met = lost + [key] * bool(alike), met + alike
    if lost:
        where, what = " and ".join(dict.fromkeys(met)), " and ".join(dict.fromkeys(lost))
        raise Untold(
            f"where {where}, {what} follows no formula: only a run there tells; give a model file "
            "or config, not a stored graph, and --at a number for every size"
        )
    if narrowed.formulas == setting.ledger.formulas:
        return setting
    return replace(setting, ledger=narrowed, general=general, memory={})


def derived_at(setting: Setting, case: Case, sizes: Mapping[str, int]) -> sp.Expr | None:
    """The claim's derived side at these sizes where it is another there; None where it is the general one."""
    there = at_values(setting, sizes)
    if there is setting:
        return None
    return there.sides(replace(there.base, choice=case.choice, supposed=case.supposed))[0]


def holding(setting: Setting) -> Callable[[Mapping[str, int]], bool]:
    """Whether what a claim is compared with is what is derived at a point, the relations being true of it."""
    keys, graph = _limited(setting), setting.ledger.graph
    if not keys:
        return lambda point: True
    told = {name.name for name, value in setting.relations().replaced.items() if value.is_Integer}
    depths = _depths(setting) if PEAK in keys else ()
    deep = [a for a in depths if {s.name for s in a.left.free_symbols} - told]

    def holds(point: Mapping[str, int]) -> bool:
        numbers = {symbol(name): sp.Integer(value) for name, value in point.items()}
        if not all(a.holds(numbers) for a in deep):
            return False
        if isinstance(graph.limits, Sought) and any(v == 1 for name, v in point.items() if name not in told):
            return False  # a run would have to tell what differs there
        return all(_certain(setting, limit) for key in keys for limit in limits_at(graph, key, point))

    return holds


def with_exceptions(found: Verdict, setting: Setting) -> Verdict:
    """The verdict, with where the formulas that the claim speaks of do not hold, if relations allow that."""
    keys, graph = _limited(setting), setting.ledger.graph
    if found.verdict not in (*PROVED, "leading-order") or not keys:
        return found
    told = []
    fixed = {name.name: int(value) for name, value in setting.relations().replaced.items() if value.is_Integer}
    for limit in possible_limits(graph, fixed):
        apart = setting.under(limit.where.lhs - limit.where.rhs)
        # where the relations make a limit true, the verdict is about what is derived there
        known = any(text.startswith(f"{limit.where.lhs} = ") for text in found.conditions)
        here = known and limit.where.rhs.is_number
        if limit.key in keys and apart.is_zero is None and not here:
            plus = None if limit.more is None else f"the derived formula plus ({to_text(limit.more)})"
            told.append(f"where {limit.text}, {limit.key} is {plus or 'another: only a run tells'}")
    if PEAK in keys:
        told += [f"{PEAK} has these forms where {a.text} alone" for a in _depths(setting)]
    return replace(found, exceptions=tuple(told))


def _limited(setting: Setting) -> set[str]:
    """The keys that the claim speaks of whose formulas may be others somewhere."""
    spoken = setting.claim.left.free_symbols | setting.claim.right.free_symbols
    return {key for stand, key in setting.claim.keys.items() if stand in spoken} & {*LIMITED}


def _depths(setting: Setting) -> tuple[Assumption, ...]:
    """From which depths on the forms of the peak hold."""
    graph = setting.ledger.graph
    repeated = dict.fromkeys(loop.size for place in graph.placed() for loop in place.loops)
    return conditions_of(graph, tuple(repeated))


def _certain(setting: Setting, limit: Limit) -> bool:
    """Whether the relations make a limit true."""
    return setting.under(limit.where.lhs - limit.where.rhs) == 0


def _alike(setting: Setting, key: str) -> Iterator[Limit]:
    """Limits of equal sizes that the relations make true, as `T = S`."""
    if all(value.is_Integer for value in setting.relations().replaced.values()):
        return
    try:
        point = next(setting.domain().points(_SEED, low=_LOW, high=_HIGH))
    except TraceError:
        return
    for limit in limits_at(setting.ledger.graph, key, point):
        if limit.where.rhs.free_symbols and _certain(setting, limit):
            yield limit
