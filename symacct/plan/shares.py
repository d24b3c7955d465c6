"""What a way to divide a graph costs, as formulas in the batch and the context degree alone: made once for
each way.

A way fixes the tensor-parallel degree, sequence parallelism and recomputation; what data, expert and
pipeline ranks do with it is arithmetic on these formulas, done for many degrees at once in `search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.parallel.collectives import traffic_of
from symacct.parallel.degrees import Degrees, names_for
from symacct.parallel.experts import expert_traffic
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
    period_of,
    stands,
)
from symacct.parallel.peak import Peaks
from symacct.parallel.rank import divided
from symacct.parallel.remarks import undivided
from symacct.parallel.units import layer_bytes, units_of
from symacct.plan.moments import Moments, moments_of
from symacct.symbols import symbol

ENDS = (BEFORE, INSIDE, AFTER)
Held = Mapping[tuple[str, bool], float]
At = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True)
class Way:
    """How a graph is divided beside data and pipeline parallelism.

    `adds`: the graph's step is the last of several micro-batches, or the only one; None where it stands for
    both.
    """

    recompute: str
    tensor: int
    sequence: bool
    context: bool
    adds: bool | None = None


@dataclass(frozen=True, slots=True)
class Gathering:
    """What FSDP gathers, in bytes as those of a `Share`: a unit of each kind, all of them once, all that a pass
    calls for, and the root.

    `ahead`: a second unit is gathered while one is at work.
    """

    units: tuple[Held, ...]
    each: Held
    called: Held
    root: Held
    ahead: bool


@dataclass(frozen=True)
class Share:
    """The formulas of a way: numbers where only the model's sizes matter, else in the batch and the context
    degree.

    `params`, `grads`, `states` are bytes by place in depth and by whether they belong to experts; `summed`
    what replicas add up of gradients; `scalars` bytes of single numbers, by whether the experts' ranks divide
    them; `gathering` what FSDP does; `kept` bytes a pass by place; `flops` (hardware) a pass by place; `sent`
    bytes by ring by axis, place and whether a step sends them once rather than in each pass; `routed` the
    payload of what a pass sends to experts and back; `handed` bytes between stages, `tied` those of gradients
    that both ends share; `depth` how many layers a tower has, `layers` how many groups of unlike ones, but 0 where
    the graph cannot be cut; `experts` how many experts, 0 where none can be spread, for the reason `unspread`; `conditions`
    what the context degree must meet: the condition in words, a multiple and its divisor; `undivided` says what
    every context rank computes whole; `moments` are those that may hold the peak.
    """

    way: Way
    params: Held
    grads: Held
    summed: Held
    states: Held
    scalars: Held
    gathering: Gathering
    kept: Mapping[str, Expr]
    flops: Mapping[str, Expr]
    sent: Mapping[tuple[str, str, bool], Expr]
    routed: Expr
    handed: Expr
    tied: int
    depth: int
    layers: int
    experts: int
    unspread: str
    conditions: tuple[tuple[str, Expr, Expr], ...]
    undivided: str
    moments: Moments | None


def share(graph: Graph, way: Way, sizes: Mapping[str, int], batch: str) -> Share:
    """The formulas of one way, the sizes as numbers but for the batch. Raises Unsupported where it cannot
    be.
    """
    degrees = Degrees(tensor=way.tensor, sequence=way.sequence, context=2 if way.context else 1)
    names = names_for(graph)
    t = names.of["tp"]
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != batch} | {
        t: sp.Integer(way.tensor)
    }
    local, _ = divided(graph, degrees, names, {**sizes, t.name: way.tensor})
    at = lambda expr: sp.expand(expr.xreplace(numbers))  # noqa: E731
    held, kept = holdings(local), kept_by_place(local)
    if kept is None:
        raise Unsupported(
            f"what {graph.target} keeps for backward follows no rule, so nothing can be searched"
        )
    depth = depth_of(local)
    layers = int(numbers[symbol(depth)]) if depth else 0
    axes = [(key, names.of[key]) for key, on in (("tp", way.tensor > 1), ("cp", way.context)) if on]
    one = _one(local)
    routed, unspread = _routed(local, held)
    more = [a for a in local.assumptions if a.kind == "divides" and a not in graph.assumptions]
    return Share(
        way=way,
        params=_by_place(held, "param", at),
        grads=_by_place(held, "grad", at),
        summed=_by_place(held, "summed", at),
        states=_by_place(held, "state", at),
        scalars=_by_place(held, "scalars", at),
        gathering=_gathering(local, held, at),
        kept={where: at(v) for where, v in kept.items()},
        flops={where: at(v) for where, v in _flops(local).items()},
        sent=_sent(local, axes, at),
        routed=at(routed),
        handed=at(boundary(local)) if one else sp.Integer(0),
        tied=sum(int(at(h.summed)) for h in held if {BEFORE, AFTER} <= set(h.where)),
        depth=layers,
        layers=layers // period_of(graph) if one else 0,
        experts=0 if unspread or "E" not in sizes else sizes["E"],
        unspread=unspread,
        conditions=tuple((a.short, at(a.left), at(a.right)) for a in more),
        undivided=undivided(local, names) if way.context else "",
        moments=moments_of(Peaks(local, held, degrees, sp.Integer(1), sp.Integer(1)), depth, numbers),
    )


def _sent(graph: Graph, axes: list[tuple[str, sp.Symbol]], at: At) -> dict[tuple[str, str, bool], Expr]:
    """Bytes by ring. What context ranks sum of gradients is left to those of the data."""
    found: dict[tuple[str, str, bool], Expr] = {}
    for key, ranks in axes:
        for x in traffic_of(graph, key, ranks):
            if not (x.once and key == "cp"):
                place = key, x.place, x.once
                found[place] = found.get(place, sp.Integer(0)) + at(x.ring)
    return {place: sp.expand(expr) for place, expr in found.items()}


def _routed(graph: Graph, held: tuple[Holding, ...]) -> tuple[Expr, str]:
    """The payload of a pass to experts and back, and why there is none."""
    if not any(h.expert for h in held):
        return sp.Integer(0), "no weights of experts"
    try:
        rows = expert_traffic(graph, held, symbol("e"), sp.Integer(1))
    except Unsupported as error:
        return sp.Integer(0), str(error)
    return sp.expand(sp.Add(*(x.payload for x in rows))), ""


def _by_place(held: Iterable[Holding], kind: str, at: At) -> Held:
    return _placed(((h, getattr(h, kind)) for h in held), at, kind == "scalars")


def _placed(sizes: Iterable[tuple[Holding, Expr]], at: At, scalars: bool = False) -> Held:
    found = {(where, apart): sp.Integer(0) for where in (*ENDS, "both") for apart in (False, True)}
    for h, size in sizes:
        where = "both" if BEFORE in h.where and AFTER in h.where else h.where[0]
        found[where, h.expert and not (scalars and h.stacked)] += at(size)
    return {place: float(size) for place, size in found.items()}


def _gathering(graph: Graph, held: tuple[Holding, ...], at: At) -> Gathering:
    labelled, units = {h.label: h for h in held}, units_of(graph)
    sizes = layer_bytes(graph, units)
    once = {label: unit.calls / unit.count for unit in units for label in unit.labels}
    return Gathering(
        tuple(_placed(((labelled[label], size) for label, size in unit.items()), at) for unit in sizes),
        _placed(((h, h.param) for h in held if h.label in once), at),
        _placed(((h, h.param * once[h.label]) for h in held if h.label in once), at),
        _placed(((h, h.param) for h in held if h.label not in once), at),
        len(units) > 1 or not all(unit.shared for unit in units),
    )


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
