"""Stages of a pipeline that other ranks divide, as derived, against torch's own on stages of the real model.

With tensor parallelism a pass of each stage, with ZeRO 3 a step of each in torch's schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import sympy as sp
from sympy import Expr
from torch import Tensor, nn

from symacct import verify_runs as runs
from symacct.certificate import Check
from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.oracles_parallel import rank_of
from symacct.oracles_stages import Cut, handed, scheduled, stage_of
from symacct.oracles_styles import Tensors
from symacct.parallel.collectives import Traffic
from symacct.parallel.degrees import Degrees
from symacct.parallel.holdings import AFTER, BEFORE, depth_of, holdings
from symacct.parallel.pipeline import Stage
from symacct.parallel.rank import Rank, Share, among_replicas, rank
from symacct.parallel.shared_inputs import apart_from
from symacct.parallel.torch_styles import needed_in_parts
from symacct.parallel.units import units_of
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, check_of, models_at, torch_running
from symacct.verify_sent import alone_in
from symacct.verify_sharded import even, modules_of
from symacct.verify_tensor import label_of, styles_of, unsayable_in

_OF_SHARDS = (("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward"))
_KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def tensor_stage_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Every kind of stage on a tensor-parallel rank, in a pass. `share` as in `sharded_checks`.

    Raises Unsupported where a stage cannot be cut out of the model, or torch cannot divide it so.
    """
    if degrees.sequence:
        raise Unsupported("a stage of a real model is not run on a part of the sequence; leave out sp")
    wanted = Degrees(stages=degrees.stages, micro_batches=degrees.micro_batches, tensor=degrees.tensor)
    share = share or rank(graph, wanted)
    for group in alone_in(graph, share):
        raise Unsupported(f"{apart_from(group)}, which is not compared on stages")
    _compare(source, graph, wanted, found, seed, share, _tensor)


def sharded_stage_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Every kind of stage with its shards, in a step of torch's schedule. Else as `tensor_stage_checks`."""
    if degrees.interleave > 1:
        raise Unsupported("a stage of a real model is run in one part; leave out v")
    replicas = degrees.data * degrees.context
    wanted = Degrees(stages=degrees.stages, micro_batches=degrees.micro_batches, data=replicas, zero=3)
    _compare(source, graph, wanted, found, seed, share, _sharded)


@dataclass(frozen=True, slots=True)
class _Part:
    """One kind of stage, its number, and how to make it anew: a model, what it is given, and its loss."""

    share: Share
    number: int
    made: Callable[[], runs.Real]


def _compare(
    source: ModelSource, graph: Graph, degrees: Degrees, found: Findings, seed: int, share: Rank | None,
    compare: Callable[[Rank, list[_Part], Mapping[str, int]], Iterator[Check]],
) -> None:  # fmt: skip
    share = share or rank(graph, degrees)
    names = {key: symbol.name for key, symbol in share.names.of.items() if degrees.number(key) > 1}
    given = {name: degrees.number(key) for key, name in names.items()}
    bounded = even(share) if degrees.zero == 3 else replace(share.graph, assumptions=share.conditions)
    for point, real in models_at(source, bounded, given, found, seed):
        checks = list(compare(share, _parts(source, share, real.model, point), point))
        found.points.append(point)
        found.checks += checks
        return


def _parts(source: ModelSource, share: Rank, model: nn.Module, point: Mapping[str, int]) -> list[_Part]:
    """The kinds of stages, each to be cut out of a model of its own."""
    (unit,) = units_of(share.graph)
    if len(unit.prefixes) != 1:
        raise Unsupported("the parts of its layers stand in several lists, and a stage takes a part of one")
    stages = share.degrees.stages
    layers, each = unit.prefixes[0].rpartition(".")[0], point[depth_of(share.graph)] // stages
    at = {"first stage": 0, "second stage": 1, "last stage": stages - 1}

    def made(part: Share) -> runs.Real:
        number = at[part.stage.name]
        real = runs.build(source, point)
        if number == 0 and not isinstance(real.inputs, Tensor):
            raise Unsupported("the model is given more than one tensor, and a stage is run with one")
        inputs = real.inputs if number == 0 else handed(real.model, real.inputs, layers, number * each - 1)
        cut = Cut(layers, number * each, (number + 1) * each, _elsewhere(share.graph, real.model, part.stage))
        loss = real.loss if part.stage.after else None
        return runs.Real(stage_of(real.model, cut), inputs, loss)

    return [_Part(part, at[part.stage.name], partial(made, part)) for part in share.shares]


def _elsewhere(graph: Graph, model: nn.Module, stage: Stage) -> list[str]:
    """The modules whose parameters all stand at an end of the layers that this stage has not."""
    here = {BEFORE: stage.before, AFTER: stage.after}
    where = {h.label: h.where for h in holdings(graph)}
    if any({BEFORE, AFTER} <= set(places) for places in where.values()):
        raise Unsupported("both ends of the layers share a table, and torch's stages have no such tie")
    away = {label for label, places in where.items() if all(not here.get(place, True) for place in places)}
    found = []
    for path, module in model.named_modules():
        mine = [label_of(f"{path}.{name}", where) for name, _ in module.named_parameters(recurse=False)]
        if mine and set(mine) <= away:
            found.append(path)
    return found


def _tensor(share: Rank, parts: list[_Part], point: Mapping[str, int]) -> Iterator[Check]:
    """Parameters on each stage; products of the stage with most of them, and what the busiest one sends."""
    assert share.plan is not None
    ranks = share.degrees.tensor
    passes = share.names.of["m"] if share.degrees.micro_batches > 1 else sp.Integer(1)
    if needed_in_parts(share.graph, share.names.of["tp"]):
        raise Unsupported("ranks take parts of what a whole weight gives, which is compared without stages")
    seen = []
    for part in parts:
        real = part.made()
        if unsayable_in(share.plan, real.model):
            raise Unsupported("torch's styles cannot divide the model as derived, and a stage is not else")
        tensors = Tensors(styles_of(real.model, share.plan), ranks)
        with torch_running("a stage"):
            seen.append(rank_of(real.model, real.inputs, real.loss, tensors))
    oracle = f"parallelize_module on each of {share.degrees.stages} stages, rank 0 of {ranks}"
    for part, own in zip(parts, seen, strict=True):
        name, states = part.share.stage.name, part.share.states
        yield check_of(f"bytes.params, {name}", states.params, own.params_bytes, oracle, point)
    fullest = max(seen, key=lambda own: own.flops_forward + own.flops_backward)
    for key, observed in (("forward", fullest.flops_forward), ("backward", fullest.flops_backward)):
        yield check_of(f"flops.{key} of a pass", share.flops[f"flops.{key}"] / passes, observed, oracle, point)
    rows = [x for x in share.traffic if x.axis == "tp" and not x.once]
    busiest = max(seen, key=lambda own: sum(s.payload for s in own.sent))
    for kind in _KINDS:
        mine = [x for x in rows if x.kind == kind]
        heard = [s.payload for s in busiest.sent if s.kind == kind]
        if mine or heard:
            yield from _sent(f"tp.{kind} of a pass", mine, heard, passes, oracle, point)


def _sharded(share: Rank, parts: list[_Part], point: Mapping[str, int]) -> Iterator[Check]:
    """Parameters on each stage, and what its replicas send in a step."""
    replicas, stages, passes = share.degrees.data, share.degrees.stages, share.degrees.micro_batches
    oracle = f"fully_shard in Schedule1F1B, each of {stages} stages, rank 0 of {replicas}"
    for part in parts:
        real = part.made()
        units = modules_of(real.model, units_of(share.graph))
        place = (part.number, stages)
        with torch_running("a stage"):
            sent, held = scheduled(real.model, units, real.inputs, real.loss, place, passes, replicas)
        name = part.share.stage.name
        yield check_of(f"bytes.params, {name}", part.share.states.params, held, oracle, point)
        rows = among_replicas(share, part.share)
        for kind, phase in _OF_SHARDS:
            mine = [x for x in rows if (x.kind, x.phase) == (kind, phase)]
            heard = [s.payload for s in sent if (s.kind, _phase(s.phase)) == (kind, phase)]
            yield from _sent(f"{phase}.dp.{kind}, {name}", mine, heard, sp.Integer(1), oracle, point)


def _phase(phase: str) -> str:
    """Gradients are scattered behind the last backward pass."""
    return "backward" if phase == "outside" else phase


def _sent(
    what: str, rows: list[Traffic], heard: list[int], passes: Expr, oracle: str, point: Mapping[str, int]
) -> Iterator[Check]:
    yield check_of(f"collectives.{what}", sp.Add(*(x.count for x in rows)) / passes, len(heard), oracle, point)
    yield check_of(f"traffic.{what}", sp.Add(*(x.payload for x in rows)) / passes, sum(heard), oracle, point)
