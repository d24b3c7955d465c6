"""What collectives send: volumes by ring and by tree, from the payload and the number of ranks.

Payload is the bytes of the whole tensor: what all_gather gives, what reduce_scatter and all_reduce are given on each
rank, and for all_to_all what each rank holds. A ring of n ranks sends (n-1)/n of it from every rank for a gather or a
scatter, twice that for an all_reduce; a double binary tree sends at most twice the payload for an all_reduce, in
2·log2(n) steps where the ring needs 2(n-1) (Sanders, Speck and Träff 2009; NCCL's two algorithms).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sympy as sp

from symacct.graph import Graph, Placed, Tensor, total_over

Expr = sp.Expr
PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2, "send": None}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind over one axis: how many in a step, and the bytes of all their payloads."""

    axis: str
    kind: str
    phase: str
    what: str
    count: Expr
    payload: Expr
    ranks: Expr

    @property
    def ring(self) -> Expr:
        """Bytes that one rank sends in a step, by ring."""
        passes = PASSES[self.kind]
        return self.payload if passes is None else sp.expand(passes * self.payload * (self.ranks - 1) / self.ranks)

    @property
    def tree(self) -> Expr:
        """Bytes that the busiest rank sends in a step where an all_reduce is a double binary tree."""
        return sp.expand(2 * self.payload) if self.kind == "all_reduce" else self.ring


def traffic_of(graph: Graph, axis: str, ranks: Expr, among: Iterable[str] | None = None) -> tuple[Traffic, ...]:
    """The collectives that a sharded graph holds, those of a kind, phase and module together."""
    wanted = None if among is None else set(among)
    found: dict[tuple[str, str, str], list[tuple[Expr, Expr]]] = {}
    for place, kind, payload in _collectives(graph, ranks):
        if wanted is None or place.node.name in wanted:
            count = sp.expand(place.times)
            found.setdefault((kind, place.node.phase, place.node.module), []).append((count, payload))
    return tuple(
        Traffic(axis, kind, phase, module or "the model", sp.expand(sp.Add(*(c for c, _ in rows))), sp.expand(sp.Add(*(b for _, b in rows))), ranks)
        for (kind, phase, module), rows in found.items()
    )


def _collectives(graph: Graph, ranks: Expr) -> Iterator[tuple[Placed, str, Expr]]:
    tensors = graph.tensors()
    for place in graph.placed():
        if not place.node.op.startswith("c10d."):
            continue
        kind = place.node.op.removeprefix("c10d.").removesuffix("_")
        operand = next((tensors[ref.value] for ref in place.node.refs), None)
        out: Tensor | None = place.node.outputs[0] if place.node.outputs else operand
        assert out is not None
        size = out.bytes * ranks if kind == "reduce_scatter" else out.bytes
        yield place, kind, sp.expand(total_over(sp.expand(size), place.loops))
