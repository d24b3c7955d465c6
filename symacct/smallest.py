"""From which depth on the forms of a peak hold: at small ones, regions that repeat once or never may not be alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import sympy as sp

from symacct.domain import Domain
from symacct.errors import GraphError, SizeError, TraceError
from symacct.graph import Assumption, Graph
from symacct.symbols import symbol

SMALL = 2
_POINTS, _SEED = 6, 4_711
_LONGEST = 300_000  # events of a step that is unfolded


def conditions_of(graph: Graph, structural: Sequence[str]) -> tuple[Assumption, ...]:
    """`L > 1` or `L > 2` where the largest form is not the peak of the step unfolded at these depths."""
    if graph.peak is None or graph.deaths is None:
        return ()
    found = []
    for name in structural:
        failing = [depth for depth in range(1, SMALL + 1) if not _holds(graph, name, depth)]
        if failing:
            found.append(Assumption("branch", sp.Gt(symbol(name), max(failing)), None, ""))
    return tuple(found)


def holds_at(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether the forms of the peak hold at these sizes: where a depth is small, that of the unfolded step tells."""
    repeated = dict.fromkeys(loop.size for place in graph.placed() for loop in place.loops)
    small = tuple(name for name in repeated if sizes.get(name, SMALL + 1) <= SMALL)
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    return all(a.holds(numbers) for a in conditions_of(graph, small))


def _holds(graph: Graph, name: str, depth: int) -> bool:
    domain = Domain(tuple(graph.symbols), graph.assumptions)
    try:
        drawn = islice(domain.points(_SEED, low=2, high=90, fixed={name: depth}), _POINTS)
        points = [point for point in drawn if point[name] == depth]
        return all(_peaks_alike(graph, point) for point in points)
    except TraceError:  # the domain has no such depth
        return True


def unfolded_peak(graph: Graph, sizes: Mapping[str, int], late: Collection[str] = ()) -> int | None:
    """The most bytes alive in the step unfolded at these sizes, `late` values from where the optimizer begins; None
    where the graph does not say when each tensor dies there, or the step is too long to unfold."""
    from symacct.unfolding import Unfolded  # imports numpy, a quarter of the time of an answer

    numbers = {symbol(n): sp.Integer(v) for n, v in sizes.items()}
    events = sp.Add(*(sp.Mul(*(loop.count for loop in place.loops)).xreplace(numbers) for place in graph.placed()))
    if not events.is_Integer or events > _LONGEST:
        return None
    try:
        return int(max(Unfolded(graph, sizes).bytes(late)))
    except (GraphError, SizeError):
        return None


def _peaks_alike(graph: Graph, point: dict[str, int]) -> bool:
    numbers = {symbol(n): sp.Integer(v) for n, v in point.items()}
    said = [live.xreplace(numbers) for _, live in graph.peak or ()]
    return all(value.is_Integer for value in said) and max(said) == unfolded_peak(graph, point)
