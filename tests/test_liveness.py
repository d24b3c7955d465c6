"""Where storages die, against births and deaths that runs at other depths recorded, and hand counts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate

import pytest
import sympy as sp

from symacct.errors import GraphError
from symacct.liveness import Moment, Unfolded, kinds, timeline
from symacct.storage import dumps, loads
from symacct.symbols import symbol
from symacct.targets import graph_of

pytest.importorskip("torch")
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file, model_source
from symacct.tracing.run import trace_concrete


def recorded(trace):
    """Live bytes at every record of a run: the caller's tensors all the time, the rest from birth to recorded
    death."""
    given = {
        out.storage
        for r in trace.records
        if r.op in ("parameter", "buffer", "state", "input")
        for out in r.outputs
    }
    storages = {out.id: out.storage for r in trace.records for out in r.outputs}
    held = given | {storages[value] for value in trace.outputs}
    ends = {storage: at for at, storage in trace.deaths if storage not in held}
    born = dict.fromkeys(given, 0)
    for number, record in enumerate(trace.records):
        for out in record.outputs:
            born.setdefault(out.storage, number)
    change = [0] * (len(trace.records) + 1)
    for storage, start in born.items():
        change[start] += trace.storages[storage]
        change[ends.get(storage, len(trace.records))] -= trace.storages[storage]
    return list(accumulate(change))[:-1]


@pytest.mark.parametrize(("name", "file"), [("gpt2", "gpt"), ("llama", "llama"), ("t5", "t5")])
def test_live_bytes_of_the_folded_step_are_those_of_runs_at_other_depths(name, file):
    graph, source = graph_of(name), load_model_file(f"examples/{file}.py")
    for depth in (2, 3, 4, 5, 9):
        sizes = {**source.dims, "L": depth, "B": 3}
        assert Unfolded(graph, sizes).bytes() == recorded(trace_concrete(source, "train", "cuda", sizes)), (
            depth
        )


SIZES = ({}, {"B": 64}, {"T": 512}, {"V": 50_000}, {"L": 24}, {"d": 4096}, {"f": 9000}, {"c": 70, "H": 70})


@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama", "bert", "unet", "lstm"])
def test_the_timeline_peaks_where_the_runs_did(name):
    graph = graph_of(name)
    found = timeline(graph).candidates()
    base = {name: info.traced_at for name, info in graph.symbols.items()}
    for change in SIZES:
        change = {n: v for n, v in change.items() if n in base}
        now = {symbol(n): sp.Integer(change.get(n, v)) for n, v in base.items()}
        assert max(live.xreplace(now) for _, live in found) == max(
            live.xreplace(now) for _, live in graph.peak
        )


@pytest.fixture(scope="module")
def chain():
    """L layers d -> d with ReLU on B rows: small enough to count by hand."""
    import torch
    from torch import nn

    class Chain(nn.Module):
        def __init__(self, L, d):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(L))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return x

    source = model_source(
        "chain",
        dims={"L": 2, "B": 3, "d": 5},
        model=Chain,
        inputs=lambda B, d: torch.randn(B, d),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss=lambda output: output.sum(),
    )
    return Builder(source, "train", "cpu").graph("chain")


def test_what_a_chain_keeps_dies_on_the_way_back(chain):
    relu = next(p.node for p in chain.ops if p.node.op == "aten.relu")
    L, i = symbol("L"), symbol("i1")
    rules = chain.deaths[relu.outputs[0].value]
    back = [rule for rule in rules if rule.after and rule.at]
    assert [rule.at for rule in back] == [(L - 2 - i,)] or [rule.at for rule in back] == [(L - 1 - i,)]
    assert {rule.after for rule in rules} <= {
        p.node.name for p in chain.ops if p.node.phase == "backward"
    } | {""}


def test_the_composition_of_a_chain_is_a_hand_count(chain):
    """After the loss: L weights, the input, L activations (the last is the output); the product of a layer
    has died."""
    line = timeline(chain)
    loss = next(p.node for p in chain.ops if p.node.phase == "loss")
    live = line.live(Moment(loss.name, ()))
    kind = {out.value: p.node.op for p in chain.placed() for out in p.node.outputs}
    counted = {}
    for value, count in live.items():
        counted[kind[value]] = counted.get(kind[value], 0) + count
    L = symbol("L")
    assert counted == {"parameter": L, "input": 1, "aten.relu": L, loss.op: 1}


def test_weights_of_another_kind_give_another_peak(chain):
    """A device that holds half of each parameter and gradient, and all of the rest."""
    weights = {
        value: size / 2 if kind in ("parameters", "gradients") else size
        for (value, size), kind in zip(chain.storages.items(), kinds(chain).values(), strict=True)
    }
    line = timeline(chain)
    at = {symbol("L"): 7, symbol("B"): 1, symbol("d"): 100}
    whole = max(live.xreplace(at) for _, live in line.candidates())
    share = max(live.xreplace(at) for _, live in line.candidates(weights))
    # parameters and gradients, 4 bytes each, dominate; the temporaries of SGD's step add none
    assert whole - share == 7 * 100 * 100 * 4


def test_a_graph_reads_back_with_its_deaths(chain):
    assert loads(dumps(chain)).deaths == chain.deaths
    assert json.loads(dumps(chain))["symacct"] == 3


def test_a_graph_without_deaths_says_so():
    with pytest.raises(GraphError, match="when each tensor dies"):
        timeline(replace(graph_of("mlp"), deaths=None))
