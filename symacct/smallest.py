"""From which depth on the forms of a peak hold: regions that repeat a few times, once or never may not be alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import sympy as sp

from symacct.domain import Domain
from symacct.errors import GraphError, SizeError, TraceError
from symacct.graph import REPETITIONS, Assumption, Graph
from symacct.symbols import symbol

FEW = len(REPETITIONS) - 1  # of three repetitions the second is also the last but one: one form of them need not hold
_DEEPEST = 4 * len(REPETITIONS)  # depths that are looked at: a region may repeat once in some layers
_POINTS, _DRAWS, _SEED, _HIGHS = 4, 40, 4_711, (12, 90, 4_000)
_LONGEST, _SHORT = 300_000, 10_000  # events of a step that is unfolded: to tell its peak, and to try a point


def conditions_of(graph: Graph, structural: Sequence[str]) -> tuple[Assumption, ...]:
    """`L > 1` or so, where the largest form is not the peak of the step unfolded at lesser depths."""
    if graph.peak is None or graph.deaths is None:
        return ()
    found = []
    for name in structural:
        depths = [depth for depth in range(1, _DEEPEST + 1) if hardly_repeats(graph, {name: depth})]
        failing = [depth for depth in depths if not _holds(graph, name, depth)]
        if failing:
            found.append(Assumption("branch", sp.Gt(symbol(name), max(failing)), None, ""))
    return tuple(found)


def hardly_repeats(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether a region repeats so seldom at these sizes, perhaps not all, that forms of the peak fall together."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    counts = dict.fromkeys(loop.count for place in graph.placed() for loop in place.loops)
    return any(count.is_Integer and count <= FEW for count in (count.xreplace(numbers) for count in counts))


def holds_at(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether the largest form is the peak at these sizes: where regions hardly repeat, the unfolded step tells."""
    if graph.peak is None or not hardly_repeats(graph, sizes):
        return True
    if set(graph.symbols) <= set(sizes):
        return _peaks_alike(graph, sizes)
    repeated = dict.fromkeys(loop.size for place in graph.placed() for loop in place.loops)
    few = tuple(name for name in repeated if name in sizes and hardly_repeats(graph, {name: sizes[name]}))
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    return all(a.holds(numbers) for a in conditions_of(graph, few))


def _holds(graph: Graph, name: str, depth: int) -> bool:
    """Whether the forms hold at a depth, as far as points tell at which all else repeats often."""
    domain = Domain(tuple(graph.symbols), graph.assumptions)
    others = {loop.size for place in graph.placed() for loop in place.loops} - {name}
    try:
        for high in _HIGHS:
            drawn = islice(domain.points(_SEED, low=2, high=high, fixed={name: depth}), _DRAWS)
            often = (point for point in drawn if not hardly_repeats(graph, {other: point[other] for other in others}))
            short = (point for point in often if _events(graph, point) <= _SHORT)
            if not all(_peaks_alike(graph, point) for point in islice(short, _POINTS)):
                return False
    except TraceError:  # the domain has no such depth
        pass
    return True


def unfolded_peak(graph: Graph, sizes: Mapping[str, int], late: Collection[str] = ()) -> int | None:
    """The most bytes alive in the step unfolded at these sizes, `late` values from where the optimizer begins; None
    where the graph does not say when each tensor dies there, or the step is too long to unfold."""
    from symacct.unfolding import Unfolded  # imports numpy, a quarter of the time of an answer

    if _events(graph, sizes) > _LONGEST:
        return None
    try:
        return int(max(Unfolded(graph, sizes).bytes(late)))
    except (GraphError, SizeError):
        return None


def _events(graph: Graph, sizes: Mapping[str, int]) -> float:
    """How many events the step unfolded at these sizes has; without end where they leave that open."""
    numbers = {symbol(n): sp.Integer(v) for n, v in sizes.items()}
    events = sp.Add(*(sp.Mul(*(loop.count for loop in place.loops)).xreplace(numbers) for place in graph.placed()))
    return int(events) if events.is_Integer else math.inf


def _peaks_alike(graph: Graph, point: Mapping[str, int]) -> bool:
    numbers = {symbol(n): sp.Integer(v) for n, v in point.items()}
    said = [live.xreplace(numbers) for _, live in graph.peak or ()]
    return all(value.is_Integer for value in said) and max(said) == unfolded_peak(graph, point)
