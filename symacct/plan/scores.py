"""The scores of attention that is spelled out: what a fused kernel would compute again rather than keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import sympy as sp
from sympy import Expr

from symacct.graph import Graph, Placed

_FUSED = ("aten._scaled_dot_product", "aten.scaled_dot_product", "aten._flash", "aten._efficient")
_SOFTMAX = ("aten._softmax", "aten._safe_softmax")
_ADDED = frozenset({"aten.add", "aten.add_", "aten.sub"})
_PRODUCTS = frozenset({"aten.bmm", "aten.baddbmm", "aten.matmul"})  # of two activations; a layer's is an mm


@dataclass(frozen=True, slots=True)
class Scores:
    """Storages of tensors as large as the scores, between q·kᵀ and the weighted sum of values.

    `biases` are those of what is added to the scores and has a gradient: a fused kernel keeps it as its mask.
    """

    storages: frozenset[str]
    biases: frozenset[str]


def scores_of(graph: Graph) -> Scores | None:
    """Those of forward. None where attention is fused already, or no softmax stands between two products."""
    nodes = [place for place in graph.ops if place.node.phase in ("forward", "recompute")]
    if any(place.node.op.startswith(_FUSED) for place in nodes):
        return None
    flow = _Flow(graph, nodes)
    found = [flow.around(place) for place in nodes if place.node.op.startswith(_SOFTMAX)]
    between = [place for places in found for place in places]
    if not between:
        return None
    storages = {out.storage for place in between for out in place.node.outputs}
    return Scores(frozenset(storages), frozenset(flow.biases(between)))


def fused(graph: Graph, found: Scores) -> Graph:
    """The graph as if a fused kernel kept no scores, but biases. Its peak is not that of such a step."""
    loops = {out.value: place.loops for place in graph.placed() for out in place.node.outputs}
    kept = {value: count for value, count in (graph.kept or {}).items() if value not in found.storages}
    once = {value: sp.Mul(*(loop.count for loop in loops[value])) for value in found.biases}
    return replace(graph, kept={**once, **kept})


class _Flow:
    """Which op makes a value, and which ones read it."""

    def __init__(self, graph: Graph, nodes: list[Placed]) -> None:
        self.makers = {out.value: place for place in nodes for out in place.node.outputs}
        self.readers: dict[str, list[Placed]] = {}
        for place in nodes:
            for ref in place.node.refs:
                self.readers.setdefault(ref.value, []).append(place)
        self.tensors = graph.tensors()
        self.learned = {
            out.value
            for place in graph.sources("parameter")
            if "trainable" in place.node.notes
            for out in place.node.outputs
        }

    def around(self, softmax: Placed) -> list[Placed]:
        """The ops on scores from one product to the next through this softmax; none without attention."""
        size = sp.expand(softmax.node.outputs[0].numel)
        above, begun = self._walk(softmax, size, self._above)
        below, ended = self._walk(softmax, size, self._below)
        if not begun or not ended:
            return []
        made = {place.node.name for product in begun for place in self._walk(product, size, self._below)[0]}
        return [*begun, *(place for place in above if place.node.name in made), softmax, *below]

    def _walk(
        self, start: Placed, size: Expr, step: Callable[[Placed, Expr], Iterator[Placed]]
    ) -> tuple[list[Placed], list[Placed]]:
        """The ops on tensors of this size that follow one another, and the products at which they end."""
        seen, waiting = {start.node.name: start}, [start]
        ends: dict[str, Placed] = {}
        while waiting:
            for place in step(waiting.pop(), size):
                if place.node.name in seen or place.node.name in ends:
                    continue
                if place.node.op in _PRODUCTS:
                    ends[place.node.name] = place
                else:
                    seen[place.node.name] = place
                    waiting.append(place)
        return list(seen.values()), list(ends.values())

    def _above(self, place: Placed, size: Expr) -> Iterator[Placed]:
        for ref in place.node.refs:
            if ref.value in self.makers and not ref.back and self._is(ref.value, size):
                yield self.makers[ref.value]

    def _below(self, place: Placed, size: Expr) -> Iterator[Placed]:
        for out in place.node.outputs:
            if self._is(out.value, size):
                yield from self.readers.get(out.value, ())

    def _is(self, value: str, size: Expr) -> bool:
        return bool(sp.expand(self.tensors[value].numel - size) == 0)

    def biases(self, between: list[Placed]) -> Iterator[str]:
        """Storages of operands that stand beside scores and come from a parameter."""
        made = {out.value for place in between for out in place.node.outputs}
        for place in between:
            added = [ref.value for ref in place.node.refs] if place.node.op in _ADDED else []
            if place.node.op == "aten.baddbmm":
                added = [value.value for name, value in place.node.arguments if name == "self"]
            for value in added:
                if value not in made and self._comes_from_a_parameter(value):
                    yield self.tensors[value].storage

    def _comes_from_a_parameter(self, value: str) -> bool:
        seen, waiting = {value}, [value]
        while waiting:
            at = waiting.pop()
            if at in self.learned:
                return True
            if at in self.makers:
                more = {ref.value for ref in self.makers[at].node.refs} - seen
                seen |= more
                waiting.extend(more)
        return False
