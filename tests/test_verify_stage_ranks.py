"""Stages of a real model that tensor-parallel ranks or replicas divide, against torch's own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from symacct import verify_parallel
from symacct.errors import Unsupported
from symacct.oracles_stages import Cut, handed, scheduled, stage_of
from symacct.parallel import rank, read_degrees
from symacct.targets import graph_of, source_of
from symacct.verify_findings import Findings
from symacct.verify_stage_ranks import sharded_stage_checks, tensor_stage_checks

EXAMPLES = Path(__file__).parents[1] / "examples"
SEED = 18


def source(name):
    return source_of(str(EXAMPLES / f"{name}.py"))


class Chain(nn.Module):
    """A table of 5 by 4, four layers of 4 by 4, and a head of 4 by 3, without biases."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3, bias=False)
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, x):
        x = self.table(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_stage_cut_by_hand():
    model, tokens = Chain(), torch.randint(5, (2, 7))
    whole = model(tokens)
    between = handed(model, tokens, "layers", 1)
    last = stage_of(model, Cut("layers", 2, 4, ["table"]))
    assert between.shape == (2, 7, 4)
    assert [tuple(p.shape) for p in last.parameters()] == [(3, 4), (4, 4), (4, 4)]
    assert torch.equal(last(between), whole)


def test_what_a_stage_of_two_replicas_sends():
    """Three micro-batches on the last of two stages: a root of 12 numbers, two layers of 16; by hand."""
    model, tokens = Chain(), torch.randint(5, (2, 7))
    given = handed(model, tokens, "layers", 1)
    last = stage_of(model, Cut("layers", 2, 4, ["table"]))
    sent, held = scheduled(last, [("layers.0",), ("layers.1",)], given, None, (1, 2), 3, 2)
    assert held == 4 * (2 * 4 + 2 * 2 * 4)  # of three rows the first rank has two
    seen = [(s.kind, s.phase) for s in sent]
    assert seen.count(("all_gather", "forward")) == 3 and seen.count(("all_gather", "backward")) == 2 * 3
    assert seen.count(("reduce_scatter", "outside")) == 3


@cache
def compared(degrees):
    found, wanted = Findings(), read_degrees(degrees)
    checks = sharded_stage_checks if wanted.zero else tensor_stage_checks
    checks(source("llama"), graph_of("llama"), wanted, found, SEED)
    return found


def wrong(found):
    return {c.quantity for c in found.checks if not c.equal}


def test_stages_of_llama_on_tensor_parallel_ranks():
    """A stage has L/2 layers of four all_reduces; the last one also the head's and the loss's four."""
    found = compared("pp=2,m=2,tp=2")
    assert not wrong(found)
    seen, at = {c.quantity: c.observed for c in found.checks}, found.points[-1]
    assert seen["collectives.tp.all_reduce of a pass"] == 4 * at["L"] // 2 + 4
    rows = 4 * at["B"] * at["T"]
    assert seen["traffic.tp.all_reduce of a pass"] == rows * ((2 * at["L"] + 1) * at["d"] + 3)
    less = seen["bytes.params, last stage"] - seen["bytes.params, first stage"]
    assert less == 4 * at["d"]  # table and head are halves alike; the last norm is whole


def test_stages_of_llama_on_replicas():
    """1F1B: two micro-batches forward on the first stage before one is back, one on the last."""
    found = compared("pp=2,m=2,dp=2,zero=3")
    assert not wrong(found)
    seen, at = {c.quantity: c.observed for c in found.checks}, found.points[-1]
    layers = at["L"] // 2
    assert seen["collectives.forward.dp.all_gather, first stage"] == 2 * layers + 1
    assert seen["collectives.forward.dp.all_gather, last stage"] == layers + 1
    assert seen["collectives.backward.dp.reduce_scatter, last stage"] == layers + 1
    assert seen["collectives.backward.dp.all_gather, last stage"] == 2 * layers


def test_mistakes_are_caught():
    graph = graph_of("llama")
    wanted, found = read_degrees("pp=2,m=2,dp=2,zero=3"), Findings()
    share = rank(graph, wanted)
    first, last = share.shares
    early = replace(last, stage=replace(last.stage, under_way=share.names.of["m"]))
    sharded_stage_checks(source("llama"), graph, wanted, found, SEED, replace(share, shares=(first, early)))
    kinds = (f"{of}.{way}" for of in ("collectives", "traffic") for way in ("forward", "backward"))
    assert wrong(found) == {f"{kind}.dp.all_gather, last stage" for kind in kinds}


@pytest.mark.parametrize(
    ("name", "degrees", "said"),
    [
        ("gpt2", "pp=2,m=2,tp=2", "both ends of the layers share a table"),
        ("llama", "pp=2,m=2,tp=2,sp", "leave out sp"),
    ],
)
def test_stages_that_cannot_be_cut_are_said(name, degrees, said):
    with pytest.raises(Unsupported, match=said):
        tensor_stage_checks(
            source({"gpt2": "gpt"}.get(name, name)), graph_of(name), read_degrees(degrees), Findings(), SEED
        )


@pytest.mark.parametrize(
    ("degrees", "run"),
    [
        ("pp=2,m=2,tp=2,dp=2,zero=3", "tensor sharded pipeline stage tensor_stage sharded_stage"),
        ("pp=2,m=2,tp=2", "tensor pipeline stage tensor_stage"),
        ("cp=2,dp=2,ep=2", "context expert"),
        ("cp=2,zero=3", "sharded context"),
    ],
)
def test_each_axis_that_is_asked_for_is_compared(degrees, run, monkeypatch):
    ran = []
    for name in "tensor sharded pipeline stage context expert tensor_stage sharded_stage".split():
        monkeypatch.setattr(verify_parallel, f"{name}_checks", lambda *_, name=name: ran.append(name))
    with pytest.raises(Unsupported):  # nothing was found
        verify_parallel.parallel_checks(source("llama"), graph_of("llama"), read_degrees(degrees))
    assert sorted(ran) == sorted(run.split())
