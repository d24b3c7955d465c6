"""One expert-parallel rank as it is derived, against real experts that torch's all_to_all feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy as sp
from sympy import Expr
from torch import nn

from symacct.certificate import Check
from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.oracles_experts import expert_rank
from symacct.oracles_parallel import Rank as Seen
from symacct.parallel.degrees import Degrees
from symacct.parallel.holdings import holdings
from symacct.parallel.rank import Rank, rank
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, check_of, models_at, torch_running
from symacct.verify_tensor import label_of

_COUNTS = (
    "torchtitan's ExpertParallel also sends how many tokens go to each expert, E whole numbers a layer; here "
    "tokens are taken as spread evenly, and that is known"
)


def expert_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Weights, products, kept bytes and what is sent of one rank. `share` as in `context_checks`."""
    share = share or rank(graph, Degrees(data=degrees.data * degrees.context, experts=degrees.experts))
    given = {share.names.of[key].name: share.degrees.number(key) for key in ("dp", "ep")}
    bounded = replace(share.graph, assumptions=share.conditions)
    for point, real in models_at(source, bounded, given, found, seed):
        modules = _stacked(real.model, share)
        with torch_running("this model"):
            seen = expert_rank(real.model, real.inputs, real.loss, modules, degrees.experts)
        found.points.append(point)
        found.notes.update(dict.fromkeys((*seen.notes, _COUNTS)))
        oracle = f"all_to_all around the experts, rank 0 of {degrees.experts}"
        found.checks += _checks(share, seen, oracle, point)
        return


def _stacked(model: nn.Module, share: Rank) -> list[str]:
    """The modules whose parameters are stacked weights of all experts."""
    experts = [h for h in holdings(share.graph) if h.expert]
    labels = {h.label: None for h in experts if h.stacked}
    found, met = [], set()
    for path, module in model.named_modules():
        mine = {label_of(f"{path}.{name}", labels) for name, _ in module.named_parameters(recurse=False)}
        if mine and mine <= labels.keys():
            found.append(path)
            met |= mine
    if not found or met != {h.label for h in experts}:
        raise Unsupported(
            "its experts are not stacked weights in a module of their own, so no one all_to_all feeds them"
        )
    return found


def _checks(share: Rank, seen: Seen, oracle: str, point: Mapping[str, int]) -> Iterator[Check]:
    flops, states = share.flops, share.shares[0].states
    pairs: list[tuple[str, Expr | None, int]] = [
        ("bytes.params", states.params, seen.params_bytes),
        ("bytes.grads", states.grads, seen.grads_bytes),
        ("flops.forward", flops["flops.forward"], seen.flops_forward),
        ("flops.backward", flops["flops.hardware"] - flops["flops.forward"], seen.flops_backward),
        ("bytes.saved", share.shares[0].kept, seen.saved_bytes),
    ]
    for phase in ("forward", "backward"):
        sent = [s.payload for s in seen.sent if (s.kind, s.phase) == ("all_to_all", phase)]
        rows = [x for x in share.traffic if (x.axis, x.phase) == ("ep", phase)]
        pairs.append((f"collectives.{phase}.ep.all_to_all", sp.Add(*(x.count for x in rows)), len(sent)))
        pairs.append((f"traffic.{phase}.ep.all_to_all", sp.Add(*(x.payload for x in rows)), sum(sent)))
    for quantity, formula, observed in pairs:
        if formula is not None:
            yield check_of(quantity, formula, observed, oracle, point)
