"""One rank of many: what it holds, computes and sends, as formulas in the sizes and the degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.conventions import Convention
from symacct.errors import SizeError, Unsupported
from symacct.graph import Assumption, Graph
from symacct.parallel.collectives import Traffic, traffic_of
from symacct.parallel.data import Gathers, States, data_traffic, divided_states
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
    one_tower,
    period_of,
    stands,
)
from symacct.parallel.own_experts import of_own_experts
from symacct.parallel.peak import Peaks
from symacct.parallel.pipeline import Stage, bubble, stages
from symacct.parallel.proposal import Plan, propose
from symacct.parallel.remarks import remarks
from symacct.parallel.sharding import Division
from symacct.parallel.staged import on_stage
from symacct.parallel.styles import read_styles
from symacct.parallel.tensor import sharded
from symacct.parallel.units import gathered, units_of
from symacct.symbols import symbol

ONE = sp.Integer(1)
_SEQUENCES = ("T", "S")


@dataclass(frozen=True)
class Share:
    """What a rank of one kind of stage holds, in bytes. `gathered` is what FSDP holds whole for a while, at most.
    `others` is the part of `kept` that belongs to other passes than the one at work.

    `total` adds up states and activations, which are not all alive at one moment; `peak` is what is.
    """

    stage: Stage
    states: States
    kept: Expr | None
    others: Expr | None
    gathered: Expr
    peaks: Peaks = field(repr=False, compare=False)

    @property
    def total(self) -> Expr | None:
        """Everything that this counts; temporaries of single ops are outside."""
        return None if self.kept is None else sp.expand(self.states.total + self.kept) + self.gathered

    @cached_property
    def peak(self) -> tuple[Expr, ...] | None:
        """The candidates for the peak, of which the largest holds; None where deaths follow no rule."""
        return self.peaks.of(self.stage, self.others, self.gathered, self.states.grads)


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


def rank(
    graph: Graph, degrees: Degrees, sizes: Mapping[str, int] | None = None, convention: Convention | None = None, styles: str | None = None
) -> Rank:
    """One rank of `degrees.devices`. With `sizes`, what the degrees do not divide stays whole, and `whole` says so.

    `styles` is a tensor-parallel plan of one's own (`symacct.parallel.styles`); without it one is proposed.
    Raises Unsupported for a graph that cannot be divided so, with the ops that prevent it.
    """
    if graph.mode != "train" and (degrees.stages > 1 or degrees.data > 1 or degrees.zero):
        raise Unsupported(f"{graph.target} was traced in mode {graph.mode}: dp, zero and pp are about training steps; tp, cp and ep are fine")
    if graph.mode == "decode" and degrees.context > 1:
        raise Unsupported("cp divides the tokens of a pass, and a pass of decode has one; leave out cp")
    names = names_for(graph)
    numbers = names.numbers(degrees)
    local, plan = divided(graph, degrees, names, dict(sizes or {}) | numbers, styles)
    held = holdings(local)
    p, m, v = (names.of[key] for key in ("pp", "m", "v"))
    passes = m if degrees.micro_batches > 1 else ONE
    kinds = stages(p, m, v, degrees.stages, degrees.micro_batches, degrees.interleave)
    if degrees.stages > 1:
        one_tower(local)
    replicas, spread = _groups(degrees, names)
    peaks = Peaks(local, held, degrees, replicas, spread)
    shares = tuple(_share(peaks, stage, held, p) for stage in kinds)
    example = {symbol(n): sp.Integer(i.traced_at) for n, i in graph.symbols.items()}
    example |= {symbol(n): sp.Integer(v) for n, v in {**(sizes or {}), **numbers}.items()}
    conditions = [*local.assumptions, *_more_conditions(local, degrees, names)]
    return Rank(
        local, degrees, names, numbers, shares, _flops(Ledger(local, convention), shares, degrees, p, passes, example, replicas, spread),
        _traffic(local, held, degrees, names, passes, shares, example), tuple(dict.fromkeys(conditions)), plan,
        bubble(p, m, v if degrees.interleave > 1 else ONE) if degrees.stages > 1 else sp.Integer(0), remarks(local, degrees, names),
    )


def divided(
    graph: Graph, degrees: Degrees, names: Names, numbers: Mapping[str, int], styles: str | None = None
) -> tuple[Graph, Plan | None]:
    """The graph with the sequence divided among context ranks, and then weights and sequence among tensor ranks."""
    sequences = tuple(symbol(name) for name in _SEQUENCES if name in graph.symbols)
    if degrees.context > 1:
        if not sequences:
            raise Unsupported(f"{graph.target} has no size T (or S) of a sequence to divide; leave out cp")
        c = names.of["cp"]
        graph = sharded(graph, Division(c, {}, sequences, tokens=True))
        sequences = tuple(s / c for s in sequences)
    if degrees.tensor == 1:
        if styles is not None:
            raise SizeError("styles divide weights among tensor-parallel ranks; give tp too, such as --parallel tp=2")
        return graph, None
    if degrees.sequence and not sequences:
        raise Unsupported(f"{graph.target} has no size T (or S) of a sequence to divide; leave out sp")
    t = names.of["tp"]
    chosen = sequences if degrees.sequence else ()
    plan = propose(graph, t, numbers, chosen) if styles is None else read_styles(styles, graph)
    if not plan.params:
        none = "no rule divides its convolutions" if any("convolution" in x.node.op for x in graph.ops) else "it has no weights that products use"
        reasons = list(dict.fromkeys(plan.whole.values())) or [none]
        raise Unsupported(f"tensor parallelism divides nothing of {graph.target}: {'; '.join(reasons[:4])}")
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
    scalars = sp.Add(*(part * h.scalars / (e if h.expert and not h.stacked else 1) for h, part in mine))
    params, grads, optimizer = (sp.expand(sp.Add(*(getattr(s, kind) for s in states))) for kind in ("params", "grads", "optimizer"))
    kept, others = _kept(peaks.graph, stage, degrees)
    return Share(stage, States(params, grads, sp.expand(optimizer + scalars)), kept, others, gathered(peaks.graph, mine, e, degrees), peaks)


def _part(h: Holding, stage: Stage, degrees: Degrees, p: Expr) -> Expr:
    """Which part of a parameter this stage holds: its share of the layers, or what stands at its end of them."""
    if INSIDE in h.where:
        return stage.layers
    here = (stage.before and BEFORE in h.where) or (stage.after and AFTER in h.where)
    return ONE if here or degrees.stages == 1 else sp.Integer(0)


def _kept(graph: Graph, stage: Stage, degrees: Degrees) -> tuple[Expr | None, Expr | None]:
    """What a stage keeps for backward, and what of it is of other passes than the one at work."""
    places = kept_by_place(graph)
    if places is None:
        return (None, None) if graph.mode == "train" else (sp.Integer(0), sp.Integer(0))
    if degrees.stages == 1:
        return sp.expand(sp.Add(*places.values())), sp.Integer(0)
    layers, before = places[INSIDE] * stage.layers, places[BEFORE] * int(stage.before)
    kept = layers * stage.under_way + before * stage.entered + places[AFTER] * int(stage.after)
    return sp.expand(kept), sp.expand(layers * (stage.under_way - 1) + before * (stage.entered - 1))


def _flops(
    ledger: Ledger, shares: tuple[Share, ...], degrees: Degrees, p: Expr, passes: Expr, example: Mapping[sp.Symbol, Expr], replicas: Expr,
    spread: Expr,
) -> dict[str, Expr]:
    """FLOPs of a step on the rank that has most: with the layers, what stands before or after them, the larger one.

    The optimizer's are those of the rank's own parameters, of which ZeRO has each replica step its part.
    """
    found = {key: value for key, value in ledger.formulas.items() if key.startswith("flops.")}
    if degrees.experts > 1 and not degrees.zero and found.get("flops.optimizer", 0) != 0:
        ledger, _ = of_own_experts(ledger, replicas / spread)
        found["flops.optimizer"] = ledger.flops_formulas()["flops.optimizer"]
    once = lambda key: 1 / (replicas if degrees.zero else ONE) if key == "flops.optimizer" else passes  # noqa: E731
    if degrees.stages == 1:
        return {key: sp.expand(value * once(key)) for key, value in found.items()}
    places = stands(ledger.graph)
    parts = {where: _flops_at(ledger, {name for name, place in places.items() if place == where}) for where in (BEFORE, INSIDE, AFTER)}
    ends = [{key: sp.expand((parts[INSIDE][key] / p + parts[end][key]) * once(key)) for key in found} for end in (BEFORE, AFTER)]
    if found.get("flops.optimizer", 0) != 0:
        layers = symbol(depth_of(ledger.graph))
        for end, share in zip(ends, (shares[0], shares[-1]), strict=True):
            stepped = on_stage(ledger, share.stage).flops_formulas()["flops.optimizer"] or sp.Integer(0)
            end["flops.optimizer"] = sp.expand(stepped.xreplace({layers: layers / p}) * once("flops.optimizer"))
    return max(ends, key=lambda end: _number(end["flops.hardware"], example))


def _flops_at(ledger: Ledger, names: set[str]) -> dict[str, Expr]:
    """The formulas of FLOPs of some nodes alone."""
    part = Ledger(ledger.graph, ledger.convention)
    part.__dict__["entries"] = tuple(entry for entry in ledger.entries if entry.place.node.name in names)
    return part.flops_formulas()


def _number(expr: Expr, example: Mapping[sp.Symbol, Expr]) -> float:
    return float(expr.xreplace(dict(example)))


def _traffic(
    graph: Graph, held: tuple[Holding, ...], degrees: Degrees, names: Names, passes: Expr, shares: tuple[Share, ...], example: Mapping[sp.Symbol, Expr]
) -> tuple[Traffic, ...]:
    """What the rank sends that sends most: with a pipeline the first or the last stage, by their ends."""
    found = _between(graph, held, degrees, names, passes, example)
    if graph.mode == "train":
        ends = [_summed(graph, held, degrees, names, passes, share) for share in (shares[0], *shares[1:][-1:])]
        found += max(ends, key=lambda rows: _number(sp.Add(*(x.ring for x in rows)), example))
    return tuple(x for x in found if x.count != 0)


def _between(
    graph: Graph, held: tuple[Holding, ...], degrees: Degrees, names: Names, passes: Expr, example: Mapping[sp.Symbol, Expr]
) -> list[Traffic]:
    """What ranks of one replica send each other."""
    found: list[Traffic] = []
    p = names.of["pp"] if degrees.stages > 1 else ONE
    for key in ("cp", "tp"):
        if degrees.number(key) > 1:
            rows = [_scaled(x, passes, p) for x in traffic_of(graph, key, names.of[key]) if not (x.once and key == "cp")]
            found += _of_one_end(rows, example) if degrees.stages > 1 else rows
    if degrees.experts > 1:
        found += expert_traffic(graph, held, names.of["ep"], passes / p)
    if degrees.stages > 1:
        found += _handed_on(graph, held, degrees, names, passes)
    return found


def _of_one_end(rows: list[Traffic], example: Mapping[sp.Symbol, Expr]) -> list[Traffic]:
    """The rows of the layers and of that end of them which sends more: no stage has both."""
    weight = {end: _number(sp.Add(*(x.ring for x in rows if x.place == end)), example) for end in (BEFORE, AFTER)}
    return [x for x in rows if x.place != min(weight, key=lambda end: weight[end])]


def _handed_on(graph: Graph, held: tuple[Holding, ...], degrees: Degrees, names: Names, passes: Expr) -> list[Traffic]:
    """Activations and gradients between stages; a stage in between sends both. A tied table's gradient is summed."""
    v = names.of["v"] if degrees.interleave > 1 else ONE
    each = sp.expand(boundary(graph) * passes * v)
    rows = [Traffic("pp", "send", "forward", "activations to the next stage", passes * v, each, names.of["pp"])]
    if degrees.stages > 2 or degrees.interleave > 1:
        rows.append(Traffic("pp", "send", "backward", "their gradients back", passes * v, each, names.of["pp"]))
    tied = [h.summed for h in held if {BEFORE, AFTER} <= set(h.where)]
    if tied:
        rows.append(Traffic("pp", "all_reduce", "backward", "gradients of what the first and the last stage share", sp.Integer(len(tied)), sp.Add(*tied), sp.Integer(2)))
    return rows


def among_replicas(found: Rank, share: Share) -> list[Traffic]:
    """What replicas of one stage send each other in a step."""
    passes = found.names.of["m"] if found.degrees.micro_batches > 1 else ONE
    return _summed(found.graph, holdings(found.graph), found.degrees, found.names, passes, share)


def _summed(graph: Graph, held: tuple[Holding, ...], degrees: Degrees, names: Names, passes: Expr, share: Share) -> list[Traffic]:
    """What replicas of a stage send each other; experts that are spread are on fewer of them."""
    replicas, spread = _groups(degrees, names)
    if replicas == 1:
        return []
    p = names.of["pp"] if degrees.stages > 1 else ONE
    whole, gathers = _undivided(graph, held, degrees, share.stage, p, experts=False)
    found = list(data_traffic(whole, replicas, degrees.zero, passes, gathers))
    if degrees.experts > 1 and degrees.data * degrees.context > degrees.experts:
        routed, gathers = _undivided(graph, held, degrees, share.stage, p, experts=True)
        e = names.of["ep"]
        mine = States(*(sp.expand(x / e) for x in (routed.params, routed.grads, routed.optimizer)))
        gathers = replace(gathers, **{kind: sp.expand(getattr(gathers, kind) / e) for kind in ("called", "rest", "each")})
        rows = data_traffic(mine, spread, degrees.zero, passes, gathers)
        found += [replace(x, what=f"experts' {x.what}") for x in rows]
    return found


def _scaled(x: Traffic, passes: Expr, p: Expr) -> Traffic:
    """The traffic of a stage's share of the layers, or of what stands outside them, for all its micro-batches."""
    scale = (ONE if x.once else passes) / (p if x.place == INSIDE else ONE)
    return replace(x, count=sp.expand(x.count * scale), payload=sp.expand(x.payload * scale))


def _undivided(
    graph: Graph, held: tuple[Holding, ...], degrees: Degrees, stage: Stage, p: Expr, experts: bool
) -> tuple[States, Gathers]:
    """What the data-parallel ranks of a stage sum and gather. Spread experts are apart."""
    rows = [(h, _part(h, stage, degrees, p)) for h in held if (h.expert and degrees.experts > 1) == experts]
    params, grads, state = (sp.expand(sp.Add(*(part * getattr(h, kind) for h, part in rows))) for kind in ("param", "summed", "state"))
    units = [unit for unit in units_of(graph) if unit.labels & {h.label for h, _ in rows}]
    once = {label: unit.calls / unit.count for unit in units for label in unit.labels}
    called = sp.Add(*(part * h.param * once[h.label] for h, part in rows if h.label in once))
    rest = sp.Add(*(part * h.param for h, part in rows if h.label not in once))
    count, calls = (sp.expand(sp.Add(*(getattr(unit, of) for unit in units)) * stage.layers) for of in ("count", "calls"))
    each = sp.Add(*(part * h.param for h, part in rows if h.label in once))
    first = stage.under_way if degrees.stages > 1 else None
    return States(params, grads, state), Gathers(count, calls, sp.expand(called), sp.expand(rest), sp.expand(each), first)


def _more_conditions(graph: Graph, degrees: Degrees, names: Names) -> list[Assumption]:
    found = []
    if degrees.stages > 1:
        parts = names.of["pp"] * (names.of["v"] if degrees.interleave > 1 else 1)
        found.append(Assumption("divides", symbol(depth_of(graph)), parts, ""))
        if (period := period_of(graph)) > 1:  # else stages are not alike
            found.append(Assumption("divides", symbol(depth_of(graph)), period * parts, ""))
    if degrees.experts > 1:
        found.append(Assumption("divides", symbol("E"), names.of["ep"], ""))
    return found


__all__ = ["AXES", "Rank", "Share", "among_replicas", "rank"]
