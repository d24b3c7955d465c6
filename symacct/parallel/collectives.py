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
from sympy import Expr

from symacct.graph import Graph, Placed, Tensor, total_over
from symacct.parallel.holdings import stands
from symacct.parallel.layout import GRADIENT

PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2, "send": None}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind over one axis: how many in a step, and the bytes of all their payloads.

    `once`: they sum gradients, once a step. `place`: before the layers, inside or after them.
    """

    axis: str
    kind: str
    phase: str
    what: str
    count: Expr
    payload: Expr
    ranks: Expr
    once: bool = False
    place: str = ""

    @property
    def ring(self) -> Expr:
        """Bytes that one rank sends in a step, by ring."""
        passes = PASSES[self.kind]
        return self.payload if passes is None else sp.expand(passes * self.payload * (self.ranks - 1) / self.ranks)

    @property
    def tree(self) -> Expr:
        """Bytes that the busiest rank sends in a step where an all_reduce is a double binary tree."""
        return sp.expand(2 * self.payload) if self.kind == "all_reduce" else self.ring


def traffic_of(graph: Graph, axis: str, ranks: Expr) -> tuple[Traffic, ...]:
    """The collectives that one division put into a graph, alike ones of a module and place together; those of gradients
    apart."""
    found: dict[tuple[str, str, str, bool, str], list[tuple[Expr, Expr]]] = {}
    where = stands(graph)
    for place, kind, payload in _collectives(graph, ranks):
        if f"axis:{ranks}" in place.node.notes:
            key = (kind, place.node.phase, place.node.module, GRADIENT in place.node.notes, where[place.node.name])
            found.setdefault(key, []).append((sp.expand(place.times), payload))
    return tuple(
        Traffic(axis, kind, phase, module or "the model", _sum(c for c, _ in rows), _sum(b for _, b in rows), ranks, once, stand)
        for (kind, phase, module, once, stand), rows in found.items()
    )


def _sum(values: Iterable[Expr]) -> Expr:
    return sp.expand(sp.Add(*values))


def _collectives(graph: Graph, ranks: Expr) -> Iterator[tuple[Placed, str, Expr]]:
    tensors = graph.tensors()
    for place in graph.placed():
        if not place.node.op.startswith("c10d."):
            continue
        kind = place.node.op.removeprefix("c10d.").removesuffix("_")
        operand = next((tensors[ref.value] for ref in place.node.refs), None)
        out: Tensor | None = place.node.outputs[0] if place.node.outputs else operand
        assert out is not None
        parted = kind == "reduce_scatter" or (kind == "all_gather" and not place.node.outputs)
        size = out.bytes * ranks if parted else out.bytes
        yield place, kind, sp.expand(total_over(sp.expand(size), place.loops))
