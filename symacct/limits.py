"""Sizes at which a formula of kept bytes, of gradients or of the peak is another: there a view is none, or a copy is one.

A reshape of a transposed or sliced tensor copies, but not where a size is 1. So what `B = 1` or `T = 2` (of `T - 1`)
leaves of a formula is told apart: by a term that is to be added there where one is known, else by a run at those sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import sympy as sp

from symacct.graph import Graph, Limit
from symacct.smallest import holds_at, unfolded_peak
from symacct.symbols import symbol

PEAK, SAVED, GRADS = "bytes.peak", "bytes.saved", "bytes.grads"
LIMITED = (SAVED, PEAK, GRADS)


@runtime_checkable
class Sought(Protocol):
    """Limits that are looked for when they are asked about, and no more of them than these sizes may meet."""

    def at(self, sizes: Mapping[str, int]) -> tuple[Limit, ...]: ...

    def possible(self, sizes: Mapping[str, int]) -> tuple[Limit, ...]: ...


def possible_limits(graph: Graph, sizes: Mapping[str, int]) -> Sequence[Limit]:
    """The limits that can be met where these sizes, perhaps not all, have these values; others only where all are known."""
    return graph.limits.possible(sizes) if isinstance(graph.limits, Sought) else graph.limits


def unsought(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether limits may be missing from the possible ones that other sizes would meet."""
    return isinstance(graph.limits, Sought) and bool(sizes)


def limits_at(graph: Graph, key: str, sizes: Mapping[str, int]) -> tuple[Limit, ...]:
    """The limits of a formula that are met at these sizes."""
    if isinstance(graph.limits, Sought):
        return tuple(limit for limit in graph.limits.at(sizes) if limit.key == key)
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    mine = [limit for limit in graph.limits if limit.key == key]
    return (*(limit for limit in mine if limit.met(numbers)), *(_of_many(graph, key, sizes) if mine else ()))


def _of_many(graph: Graph, key: str, sizes: Mapping[str, int]) -> Sequence[Limit]:
    """Three sizes of 1 and more may do together what was tried of two at most, if anything was found there."""
    depths = {loop.size for place in graph.placed() for loop in place.loops}
    ones = [symbol(name) for name, value in sizes.items() if value == 1 and name not in depths]
    return [Limit(key, sp.Eq(sp.Max(*ones), 1, evaluate=False), None)] if len(ones) > 2 else []


def holds(graph: Graph, key: str, sizes: Mapping[str, int]) -> bool:
    """Whether the formula as it stands is right at these sizes."""
    return not limits_at(graph, key, sizes) and (key != PEAK or holds_at(graph, sizes))


def derived(graph: Graph, key: str, sizes: Mapping[str, int], formula: Callable[[], int | None]) -> int | None:
    """The number that is derived for these sizes: the formula's, with what is to be added there; None for none."""
    met = limits_at(graph, key, sizes)
    if key == PEAK and not holds_at(graph, sizes):  # few repetitions: what the deaths say of each
        return None if met else unfolded_peak(graph, sizes)
    if not met:
        return formula()
    more = met[0].more if len(met) == 1 else None
    base = formula() if more is not None else None
    if more is None or base is None:
        return None
    added = more.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()})
    return base + int(added) if added.is_Integer else None


def formula_where(graph: Graph, key: str, sizes: Mapping[str, int], formula: sp.Expr) -> sp.Expr | None:
    """The formula of a key where these sizes, perhaps not all, have these values; None where only a run tells."""
    met = limits_at(graph, key, sizes)
    deep = key != PEAK or holds_at(graph, sizes)
    if not met and deep:
        return formula
    if deep and len(met) == 1 and met[0].more is not None:
        return sp.expand(formula + met[0].more)
    known = set(graph.symbols) <= set(sizes)
    seen = told(graph, key, sizes, lambda: None) if known else None
    return None if seen is None else sp.Integer(seen)


def told(graph: Graph, key: str, sizes: Mapping[str, int], formula: Callable[[], int | None]) -> int | None:
    """The number at these sizes: derived, else of a run at them where the model is at hand; None where it is not."""
    if holds(graph, key, sizes):
        return formula()
    found = derived(graph, key, sizes, formula)
    if found is None and graph.measured is not None and set(graph.symbols) <= set(sizes):
        return graph.measured({name: sizes[name] for name in graph.symbols}).get(key)
    return found


def peak_told(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether the largest form of the peak is the peak at these sizes: known, or what a run at them says."""
    if holds(graph, PEAK, sizes):
        return True
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    values = [live.xreplace(numbers) for _, live in graph.peak or ()]
    seen = told(graph, PEAK, sizes, lambda: None)
    return seen is not None and all(value.is_Integer for value in values) and int(max(values)) == seen
