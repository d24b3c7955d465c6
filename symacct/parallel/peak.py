"""The peak of one rank: what is alive at every moment of its pass, weighed by what the rank holds of each storage.

On one device, and under tensor and context parallelism, the moments are those of the traced step, so with one
micro-batch the peak is that of the step. Else it is a bound from above: other micro-batches under way are counted
with all that they keep, gradients that are summed over micro-batches with all their bytes, and what FSDP gathers with
its largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy as sp
from sympy import Expr

from symacct.errors import GraphError
from symacct.graph import Graph, Node, Ref
from symacct.liveness import Timeline, kinds, timeline
from symacct.parallel.degrees import Degrees
from symacct.parallel.holdings import AFTER, BEFORE, Holding, depth_of, positions
from symacct.parallel.pipeline import Stage
from symacct.symbols import symbol

ONE = sp.Integer(1)


@dataclass(frozen=True, slots=True)
class Nature:
    """What decides how much of a storage a rank holds.

    `where` it stands in depth; `gradient`: it is one, so several micro-batches add to it; `least`: the ZeRO stage
    from which on it is divided, 4 for none; `expert`: of experts; `apart`: held by the expert's own ranks alone.
    """

    where: tuple[str, ...]
    gradient: bool
    least: int
    expert: bool
    apart: bool


def followed(node: Node, owner: Mapping[str, str], roots: Mapping[str, str]) -> dict[str, str]:
    """The parameter that each output of an optimizer's op is about."""
    first = next((argument for _, argument in node.arguments if isinstance(argument, (Ref, tuple))), None)
    refs = [part for part in first if isinstance(part, Ref)] if isinstance(first, tuple) else [first] * len(node.outputs)
    pairs = zip(node.outputs, refs, strict=False)
    return {out.value: label for out, ref in pairs if isinstance(ref, Ref) and (label := owner.get(roots[ref.value]))}


class Peaks:
    """The moments of one rank's graph, weighed for a kind of stage."""

    def __init__(self, graph: Graph, held: tuple[Holding, ...], degrees: Degrees, replicas: Expr, spread: Expr) -> None:
        self.graph, self.degrees, self.replicas, self.spread = graph, degrees, replicas, spread
        self.held = {h.label: h for h in held}

    @cached_property
    def line(self) -> Timeline | None:
        """The moments; None where deaths follow no rule."""
        try:
            return timeline(self.graph) if self.graph.deaths is not None else None
        except GraphError:
            return None

    @cached_property
    def _facts(self) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str], set[str]]:
        owner: dict[str, str] = {}
        for op in ("parameter", "gradient", "state"):
            for place in self.graph.sources(op):
                label = place.node.label.rpartition(".")[0] if op == "state" else place.node.label
                owner.update((out.storage, label) for out in place.node.outputs)
        late: set[str] = set()
        for place in self.graph.ops:  # what the optimizer makes follows its first operands, entry by entry
            if place.node.phase == "optimizer":
                late.update(out.value for out in place.node.outputs)
                owner.update(followed(place.node, owner, self._roots))
        return kinds(self.graph), owner, positions(self.graph), late

    @cached_property
    def _roots(self) -> dict[str, str]:
        return {value: tensor.storage for value, tensor in self.graph.tensors().items()}

    def of(self, stage: Stage, others: Expr | None, gathered: Expr, grads: Expr) -> tuple[Expr, ...] | None:
        """The undominated candidates for the peak of a stage, in bytes. `others` is what it keeps of the other passes
        that are under way, None where that is not known; `grads` are the stage's own."""
        if self.line is None or others is None:
            return None
        summed = self.degrees.micro_batches > 1
        weights = {value: self._weight(value, size, stage, summed) for value, size in self.graph.storages.items()}
        found = [live for _, live in self.line.candidates(weights)]
        if self.degrees.stages > 1:
            depth = symbol(depth_of(self.graph))
            found = [live.xreplace({depth: depth * stage.layers}) for live in found]
        beside = gathered + others + (grads if summed else 0)
        return tuple(dict.fromkeys(sp.expand(live + beside) for live in found))

    def nature(self, value: str) -> Nature:
        """What a storage is, as far as ranks hold more or less of it."""
        kind, owner, place, late = (table.get(value, "") if isinstance(table, Mapping) else value in table for table in self._facts)
        held = self.held.get(owner) if isinstance(owner, str) else None
        single = held is not None and kind == "optimizer state" and self._single(value)
        least = 4 if single else {"parameters": 3, "gradients": 2, "optimizer state": 1}.get(str(kind), 1 if late else 4)
        expert = held is not None and held.expert
        where = held.where if held is not None else (str(place),)
        return Nature(where, held is not None and kind == "gradients", least, expert, expert and not (single and held is not None and held.stacked))

    def _weight(self, value: str, size: Expr, stage: Stage, summed: bool) -> Expr:
        nature = self.nature(value)
        if self._elsewhere(nature.where, stage) or (summed and nature.gradient):
            return sp.Integer(0)
        shared = self.spread if nature.expert else self.replicas
        shared = ONE if self.degrees.number("dp") * self.degrees.number("cp") == 1 else shared
        own = size / (self.replicas / self.spread) if nature.apart else size
        return sp.expand(own / shared) if self.degrees.zero >= nature.least else sp.expand(own)

    def _single(self, value: str) -> bool:
        return not self._shapes.get(value)

    @cached_property
    def _shapes(self) -> dict[str, tuple[Expr, ...]]:
        return {value: tensor.shape for value, tensor in self.graph.tensors().items()}

    def _elsewhere(self, where: tuple[str, ...], stage: Stage) -> bool:
        """Whether a storage belongs to what stands before or after the layers, on another stage."""
        if self.degrees.stages == 1:
            return False
        ends = {BEFORE: stage.before, AFTER: stage.after}
        return all(w in ends and not ends[w] for w in where)
