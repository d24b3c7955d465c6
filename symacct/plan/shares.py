"""What a way to divide a graph costs, as formulas in the batch and the context degree alone: made once for each way.

A way fixes the tensor-parallel degree, sequence parallelism and recomputation; what data and pipeline ranks do with it
is arithmetic on these formulas, done for many degrees at once in `search`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.parallel.collectives import traffic_of
from symacct.parallel.degrees import Degrees, names_for
from symacct.parallel.holdings import (
    AFTER,
    BEFORE,
    INSIDE,
    Holding,
    boundary,
    depth_of,
    holdings,
    kept_by_place,
    one_tower,
    stands,
)
from symacct.parallel.rank import divided
from symacct.symbols import symbol

ENDS = (BEFORE, INSIDE, AFTER)


@dataclass(frozen=True, slots=True)
class Way:
    """How a graph is divided beside data and pipeline parallelism."""

    recompute: str
    tensor: int
    sequence: bool
    context: bool


@dataclass(frozen=True)
class Share:
    """The formulas of a way: numbers where only the model's sizes matter, else in the batch and the context degree.

    `params`, `grads`, `states` are bytes by place in depth, `scalars` bytes of single numbers; `kept` bytes a pass by
    place; `flops` (hardware) a pass by place; `sent` bytes by ring a pass by axis and place; `handed` bytes between stages; `layers` how many layers there are, 0 where the graph cannot be cut;
    `conditions` what the context degree must meet: the condition in words, a multiple and its divisor.
    """

    way: Way
    params: Mapping[str, int]
    grads: Mapping[str, int]
    states: Mapping[str, int]
    scalars: Mapping[str, int]
    kept: Mapping[str, Expr]
    flops: Mapping[str, Expr]
    sent: Mapping[tuple[str, str], Expr]
    handed: Expr
    layers: int
    conditions: tuple[tuple[str, Expr, Expr], ...]


def share(graph: Graph, way: Way, sizes: Mapping[str, int], batch: str) -> Share:
    """The formulas of one way, the sizes as numbers but for the batch. Raises Unsupported where it cannot be."""
    degrees = Degrees(tensor=way.tensor, sequence=way.sequence, context=2 if way.context else 1)
    names = names_for(graph)
    t, c = names.of["tp"], names.of["cp"]
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != batch} | {t: sp.Integer(way.tensor)}
    local, _ = divided(graph, degrees, names, {**sizes, t.name: way.tensor})
    at = lambda expr: sp.expand(expr.xreplace(numbers))  # noqa: E731
    held, kept = holdings(local), kept_by_place(local)
    if kept is None:
        raise Unsupported(f"what {graph.target} keeps for backward follows no rule, so nothing can be searched")
    depth = depth_of(local)
    sent: dict[tuple[str, str], Expr] = {}
    for key, ranks, on in (("tp", t, way.tensor > 1), ("cp", c, way.context)):
        for x in traffic_of(local, key, ranks) if on else ():
            if not x.once:
                sent[key, x.place] = sent.get((key, x.place), sp.Integer(0)) + at(x.ring)
    return Share(
        way, *(_by_place(held, kind, at) for kind in ("param", "grad", "state", "scalars")), {k: at(v) for k, v in kept.items()},
        {where: at(v) for where, v in _flops(local).items()}, {k: sp.expand(v) for k, v in sent.items()},
        at(_handed(local)), int(numbers.get(symbol(depth), 0)) if depth and _one(local) else 0,
        tuple((a.short, at(a.left), at(a.right)) for a in local.assumptions if a.kind == "divides" and c in (a.left.free_symbols | a.right.free_symbols)),
    )


def _by_place(held: tuple[Holding, ...], kind: str, at: object) -> dict[str, int]:
    found = dict.fromkeys((*ENDS, "both"), 0)
    for h in held:
        where = "both" if BEFORE in h.where and AFTER in h.where else h.where[0]
        found[where] += int(at(getattr(h, kind)))  # type: ignore[operator]
    return found


def _flops(graph: Graph) -> dict[str, Expr]:
    """Hardware FLOPs of a pass, before the layers, inside and after."""
    found = dict.fromkeys(ENDS, sp.Integer(0))
    where = stands(graph)
    for entry in Ledger(graph).entries:
        if entry.phase in ("forward", "loss", "backward", "recompute"):
            found[where[entry.place.node.name]] += entry.product
    return found


def _one(graph: Graph) -> bool:
    try:
        one_tower(graph)
    except Unsupported:
        return False
    return True


def _handed(graph: Graph) -> Expr:
    return boundary(graph) if _one(graph) else sp.Integer(0)
