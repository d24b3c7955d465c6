"""One rank of many: what it holds, computes and sends, as formulas in the sizes and the degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import sympy as sp

from symacct.account import Ledger
from symacct.conventions import Convention
from symacct.errors import Unsupported
from symacct.graph import Assumption, Graph
from symacct.parallel.collectives import Traffic, traffic_of
from symacct.parallel.data import States, data_traffic, divided_states, gathered_bytes
from symacct.parallel.degrees import AXES, Degrees, Names, names_for
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
    layer_count,
    one_tower,
)
from symacct.parallel.peak import Peaks
from symacct.parallel.pipeline import Stage, bubble, stages
from symacct.parallel.proposal import Plan, propose
from symacct.parallel.sharding import Division
from symacct.parallel.tensor import sharded
from symacct.symbols import symbol

Expr = sp.Expr
ONE = sp.Integer(1)
_SEQUENCES = ("T", "S")


@dataclass(frozen=True)
class Share:
    """What a rank of one kind of stage holds, in bytes. `gathered` is what FSDP holds whole for a while, at most.

    `total` adds up states and activations, which are not all alive at one moment; `peak` is what is.
    """

    stage: Stage
    states: States
    kept: Expr | None
    gathered: Expr
    peaks: Peaks = field(repr=False, compare=False)

    @property
    def total(self) -> Expr | None:
        """Everything that this counts; temporaries of single ops are outside."""
        return None if self.kept is None else sp.expand(self.states.total + self.kept) + self.gathered

    @cached_property
    def peak(self) -> tuple[Expr, ...] | None:
        """The candidates for the peak, of which the largest holds; None where deaths follow no rule."""
        return self.peaks.of(self.stage, self.kept, self.gathered, self.states.grads)


@dataclass(frozen=True)
class Rank:
    """A rank's share of a step of m micro-batches of B each.

    `names` gives the symbol of each axis, `numbers` the degrees by those symbols. `flops` are those of a step by the
    ledger's keys; `whole` says which weights tensor parallelism leaves on every rank, and why; `graph` is one rank's.
    """

    graph: Graph
    degrees: Degrees
    names: Names
    numbers: Mapping[str, int]
    shares: tuple[Share, ...]
    flops: Mapping[str, Expr]
    traffic: tuple[Traffic, ...]
    conditions: tuple[Assumption, ...]
    plan: Plan | None
    idle: Expr
    remarks: tuple[str, ...]

    @property
    def whole(self) -> Mapping[str, str]:
        """Weights that every tensor-parallel rank holds whole, with the reason."""
        return self.plan.whole if self.plan else {}


def rank(graph: Graph, degrees: Degrees, sizes: Mapping[str, int] | None = None, convention: Convention | None = None) -> Rank:
    """One rank of `degrees.devices`. With `sizes`, what the degrees do not divide stays whole, and `whole` says so.

    Raises Unsupported for a graph that cannot be divided so, with the ops that prevent it.
    """
    if graph.mode != "train" and (degrees.stages > 1 or degrees.data > 1 or degrees.zero):
        raise Unsupported(f"{graph.target} was traced in mode {graph.mode}: dp, zero and pp are about training steps; tp, cp and ep are fine")
    names = names_for(graph)
    numbers = names.numbers(degrees)
    local, plan = divided(graph, degrees, names, dict(sizes or {}) | numbers)
    held = holdings(local)
    p, m, v = (names.of[key] for key in ("pp", "m", "v"))
    passes = m if degrees.micro_batches > 1 else ONE
    kinds = stages(p, m, v, degrees.stages, degrees.micro_batches, degrees.interleave)
    if degrees.stages > 1:
        one_tower(local)
    replicas, spread = _groups(degrees, names)
    peaks = Peaks(local, held, degrees, replicas, spread)
    shares = tuple(_share(peaks, stage, held, p) for stage in kinds)
    ledger = Ledger(local, convention)
    conditions = [*local.assumptions, *_more_conditions(local, degrees, names)]
    return Rank(
        local, degrees, names, numbers, shares, _flops(ledger, degrees, p, passes),
        _traffic(local, held, degrees, names, passes, shares[0]), tuple(dict.fromkeys(conditions)), plan,
        bubble(p, m, v if degrees.interleave > 1 else ONE) if degrees.stages > 1 else sp.Integer(0), _remarks(degrees),
    )


def divided(graph: Graph, degrees: Degrees, names: Names, numbers: Mapping[str, int]) -> tuple[Graph, Plan | None]:
    """The graph with the sequence divided among context ranks, and then weights and sequence among tensor ranks."""
    sequences = tuple(symbol(name) for name in _SEQUENCES if name in graph.symbols)
    if degrees.context > 1:
        if not sequences:
            raise Unsupported(f"{graph.target} has no size T (or S) of a sequence to divide; leave out cp")
        c = names.of["cp"]
        graph = sharded(graph, Division(c, {}, sequences, tokens=True))
        sequences = tuple(s / c for s in sequences)
    if degrees.tensor == 1:
        return graph, None
    if degrees.sequence and not sequences:
        raise Unsupported(f"{graph.target} has no size T (or S) of a sequence to divide; leave out sp")
    t = names.of["tp"]
    chosen = sequences if degrees.sequence else ()
    plan = propose(graph, t, numbers, chosen)
    if not plan.params:
        first = next(iter(plan.whole.items()), ("", "it has no weights that products use"))
        raise Unsupported(f"tensor parallelism divides nothing of {graph.target}: {first[0]} {first[1]}".strip())
    return sharded(graph, Division(t, plan.params, chosen, not degrees.keep)), plan


def _groups(degrees: Degrees, names: Names) -> tuple[Expr, Expr]:
    """How many ranks hold the same weights, and how many the same expert."""
    n = sp.Mul(*(names.of[key] for key in ("dp", "cp") if degrees.number(key) > 1))
    return n, n / names.of["ep"] if degrees.experts > 1 else n


def _share(peaks: Peaks, stage: Stage, held: tuple[Holding, ...], p: Expr) -> Share:
    degrees, replicas, spread = peaks.degrees, peaks.replicas, peaks.spread
    mine = [(h, part) for h in held if (part := _part(h, stage, degrees, p)) != 0]
    e = replicas / spread
    states = [
        divided_states(States(*(part * size / (e if h.expert else 1) for size in (h.param, h.grad, h.state))), spread if h.expert else replicas, degrees.zero)
        for h, part in mine
    ]
    scalars = sp.Add(*(part * h.scalars / (e if h.expert else 1) for h, part in mine))
    columns = zip(*((s.params, s.grads, s.optimizer) for s in states), strict=True)
    params, grads, optimizer = (sp.expand(sp.Add(*column)) for column in columns)
    kept, gathered = _kept(peaks.graph, stage, degrees, p), _gathered(mine, e, degrees)
    return Share(stage, States(params, grads, sp.expand(optimizer + scalars)), kept, gathered, peaks)


def _part(h: Holding, stage: Stage, degrees: Degrees, p: Expr) -> Expr:
    """Which part of a parameter this stage holds: its share of the layers, or what stands at its end of them."""
    if INSIDE in h.where:
        return stage.layers
    here = (stage.before and BEFORE in h.where) or (stage.after and AFTER in h.where)
    return ONE if here or degrees.stages == 1 else sp.Integer(0)


def _gathered(mine: list[tuple[Holding, Expr]], e: Expr, degrees: Degrees) -> Expr:
    if degrees.zero < 3:
        return sp.Integer(0)
    size = lambda h: h.unit / e if h.expert else h.unit  # noqa: E731
    layer, rest = (sp.Add(*(size(h) for h, _ in mine if (INSIDE in h.where) == inside)) for inside in (True, False))
    return gathered_bytes(sp.expand(layer), sp.expand(rest))


def _kept(graph: Graph, stage: Stage, degrees: Degrees, p: Expr) -> Expr | None:
    places = kept_by_place(graph)
    if places is None:
        return None if graph.mode == "train" else sp.Integer(0)
    if degrees.stages == 1:
        return sp.expand(sp.Add(*places.values()))
    return sp.expand(
        places[INSIDE] * stage.layers * stage.under_way + places[BEFORE] * stage.entered * int(stage.before) + places[AFTER] * int(stage.after)
    )


def _flops(ledger: Ledger, degrees: Degrees, p: Expr, passes: Expr) -> dict[str, Expr]:
    """FLOPs of a step on the rank that has most: the last stage, which has the layers of any other and the head."""
    found = {key: value for key, value in ledger.formulas.items() if key.startswith("flops.")}
    if degrees.stages == 1:
        return {key: sp.expand(value * (passes if key != "flops.optimizer" else 1)) for key, value in found.items()}
    depth = symbol(depth_of(ledger.graph))
    per_stage = {key: value.xreplace({depth: depth / p}) for key, value in found.items()}
    return {key: sp.expand(value * (passes if key != "flops.optimizer" else 1)) for key, value in per_stage.items()}


def _traffic(graph: Graph, held: tuple[Holding, ...], degrees: Degrees, names: Names, passes: Expr, first: Share) -> tuple[Traffic, ...]:
    found: list[Traffic] = []
    depth, p = depth_of(graph), names.of["pp"] if degrees.stages > 1 else ONE
    for key in ("cp", "tp"):
        if degrees.number(key) > 1:
            found += [_scaled(x, passes, p) for x in traffic_of(graph, key, names.of[key], depth) if not (x.once and key == "cp")]
    if degrees.experts > 1:
        found += expert_traffic(graph, held, names.of["ep"], passes / p)
    if degrees.stages > 1:
        v = names.of["v"] if degrees.interleave > 1 else ONE
        each = boundary(graph)
        found += [Traffic("pp", "send", phase, "activations to the next stage" if phase == "forward" else "their gradients back", passes * v, sp.expand(each * passes * v), names.of["pp"]) for phase in ("forward", "backward")]
    replicas, spread = _groups(degrees, names)
    if replicas != 1:
        layers = layer_count(graph) * first.stage.layers
        whole, rest = _undivided(held, degrees, first.stage, p, experts=False)
        found += data_traffic(whole, replicas, degrees.zero, passes, layers, rest)
        if degrees.experts > 1 and spread != 1:
            routed, rest = _undivided(held, degrees, first.stage, p, experts=True)
            e = names.of["ep"]
            mine = States(*(sp.expand(x / e) for x in (routed.params, routed.grads, routed.optimizer)))
            found += [replace(x, what=f"experts' {x.what}") for x in data_traffic(mine, spread, degrees.zero, passes, layers, sp.expand(rest / e))]
    return tuple(x for x in found if x.count != 0)


def _scaled(x: Traffic, passes: Expr, p: Expr) -> Traffic:
    """The traffic of a stage's share of the layers, or of what stands outside them, for all its micro-batches."""
    scale = (ONE if x.once else passes) / (p if x.layered else ONE)
    return replace(x, count=sp.expand(x.count * scale), payload=sp.expand(x.payload * scale))


def _undivided(held: tuple[Holding, ...], degrees: Degrees, stage: Stage, p: Expr, experts: bool) -> tuple[States, Expr]:
    """What the data-parallel ranks of a stage sum, and the parameters outside its layers. Spread experts are apart."""
    rows = [(h, _part(h, stage, degrees, p)) for h in held if (h.expert and degrees.experts > 1) == experts]
    params, grads, state = (sp.expand(sp.Add(*(part * getattr(h, kind) for h, part in rows))) for kind in ("param", "grad", "state"))
    rest = sp.expand(sp.Add(*(part * h.param for h, part in rows if INSIDE not in h.where)))
    return States(params, grads, state), rest


def _more_conditions(graph: Graph, degrees: Degrees, names: Names) -> list[Assumption]:
    found = []
    if degrees.stages > 1:
        parts = names.of["pp"] * (names.of["v"] if degrees.interleave > 1 else 1)
        found.append(Assumption("divides", symbol(depth_of(graph)), parts, ""))
    if degrees.experts > 1:
        found.append(Assumption("divides", symbol("E"), names.of["ep"], ""))
    return found


def _remarks(degrees: Degrees) -> tuple[str, ...]:
    said = []
    if degrees.zero or degrees.data > 1:
        said.append("ZeRO parts are taken as even; FSDP pads a tensor whose rows the ranks do not divide")
    if degrees.experts > 1:
        said.append("tokens are taken as spread evenly over the experts")
    if degrees.context > 1:
        said.append("a causal mask leaves context ranks unequal work unless they hold a piece of both ends of the sequence")
    return tuple(said)


__all__ = ["AXES", "Rank", "Share", "rank"]
