"""Context and expert parallelism against torch's ring attention and all_to_all in its fake process group."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from torch import nn

from symacct.account import Ledger
from symacct.conventions import convention
from symacct.errors import Unsupported
from symacct.oracles_context import METHODS, ring_rank
from symacct.oracles_experts import expert_rank
from symacct.parallel import rank, read_degrees
from symacct.symbols import symbol
from symacct.targets import graph_of, source_of
from symacct.verify_context import context_checks
from symacct.verify_experts import expert_checks
from symacct.verify_findings import Findings
from symacct.verify_parallel import parallel_checks

EXAMPLES = Path(__file__).parents[1] / "examples"
SEED = 18


def source(name):
    return source_of(str(EXAMPLES / f"{name}.py"))


@cache
def compared(name, degrees):
    return parallel_checks(source(name), graph_of(name), read_degrees(degrees), SEED)


def wrong(found):
    return [(c.quantity, c.observed, c.expected) for c in found.checks if not c.equal]


def of(found, oracle):
    return {c.quantity: c.observed for c in found.checks if oracle in c.oracle}


class OneAttention(nn.Module):
    """Nothing but attention of four heads with two of keys, each eight wide."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_what_torch_s_ring_sends_by_hand(method, ranks):
    """Keys and values of a rank, 2·3·2·6·8 numbers. c - 1 hops or one gather; gradients take c hops."""
    q, k, v = (torch.randn(3, h, 6, 8, requires_grad=True) for h in (4, 2, 2))
    mine = 4 * 2 * 3 * 2 * 6 * 8
    seen, blocks = ring_rank(OneAttention(), (q, k, v), None, ranks, ranks - 1, method)
    hops = [("all_to_all", mine)] * (ranks - 1)
    gathers = [("all_gather", mine * ranks)] if method == "allgather" else hops
    assert [(s.kind, s.payload) for s in seen.sent if s.phase == "forward"] == gathers
    backward = [(s.kind, s.payload) for s in seen.sent if s.phase == "backward"]
    assert sorted(backward) == sorted(gathers + [("all_to_all", mine)] * ranks)
    assert [(b.queries, b.keys, b.causal) for b in blocks] == [(6, 6, True)] + [(6, 6, False)] * (ranks - 1)
    assert seen.flops_forward == ranks * 2 * (2 * 3 * 4 * 6 * 6 * 8)
    assert k.grad.shape == k.shape


def test_gradients_travel_in_float32():
    """Keys and values of 2·1·1·6·8 numbers in 16 bits; their gradients' two hops are in 32."""
    given = tuple(torch.randn(1, 1, 6, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    seen, _ = ring_rank(OneAttention(), given, None, 2, 1, "allgather")
    assert [(s.kind, s.payload) for s in seen.sent if s.phase == "backward"] == [
        ("all_gather", 2 * 2 * 96),
        ("all_to_all", 4 * 96),
        ("all_to_all", 4 * 96),
    ]


def test_ranks_with_both_ends_do_alike():
    """12 tokens as pieces of 3: rank 0 has 0-2 and 9-11, rank 1 3-8; 39 of the 78 pairs each, by hand."""
    pairs = []
    for number in (0, 1):
        given = tuple(torch.randn(1, 1, 6, 8, requires_grad=True) for _ in range(3))
        seen, blocks = ring_rank(OneAttention(), given, None, 2, number, balanced=True)
        pairs.append((seen.flops_forward - sum(block.behind for block in blocks)) / (2 * 16))
    assert pairs == [(1 + 2 + 3) + (10 + 11 + 12), 4 + 5 + 6 + 7 + 8 + 9] == [39, 39]


@pytest.mark.parametrize("degrees", ["cp=2", "cp=4"])
def test_llama_with_its_sequence_divided(degrees):
    found = compared("llama", degrees)
    assert not wrong(found)
    (at,), c = found.points, int(degrees[-1])
    mine = 4 * 2 * at["B"] * at["T"] // c * at["h_kv"] * at["d_h"]  # keys and values of a layer on a rank
    for method in ("gathers", "passes"):
        seen = of(found, method)
        assert seen["bytes sent in forward"] == at["L"] * (c - 1) * mine
        assert seen["bytes sent in backward"] == 2 * at["L"] * (c - 1) * mine
        assert {"flops.forward", "flops.backward", "bytes.saved"} <= set(seen)
    exact = [c for c in found.checks if "exact" in c.quantity]
    assert {c.observed for c in exact} == {exact[0].expected} and len(exact) == 2


def test_pairs_behind_the_mask_are_left_out_evenly():
    """T (T + 1) / 2 pairs, as many on each of c ranks; two products of d_h numbers, 2 FLOPs each."""
    exact = Ledger(rank(graph_of("llama"), read_degrees("cp=2")).graph, convention(None, attention="exact"))
    full = Ledger(rank(graph_of("llama"), read_degrees("cp=2")).graph)
    B, L, T, h, d_h, c = (symbol(name) for name in ("B", "L", "T", "h", "d_h", "c"))
    less = full.formulas["flops.forward"] - exact.formulas["flops.forward"]
    assert sp.expand(less - 4 * B * L * h * d_h * (T * T - T * (T + 1) / 2) / c) == 0


def test_mistakes_are_caught():
    graph, wanted = graph_of("llama"), read_degrees("cp=2")
    share, found = rank(graph, wanted), Findings()
    rows = tuple(
        replace(x, payload=2 * x.payload) if (x.kind, x.phase) == ("all_gather", "backward") else x
        for x in share.traffic
    )
    flops = {**share.flops, "flops.forward": share.flops["flops.forward"] * 2}
    context_checks(source("llama"), graph, wanted, found, SEED, replace(share, traffic=rows, flops=flops))
    assert {row[0] for row in wrong(found)} == {"flops.forward", "flops.backward", "bytes sent in backward"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixtral", "more of the sequence than the keys and values of attention, in blocks.*.moe"),
        ("t5", "no fused attention in its graph"),
        ("resnet50", "no size T"),
    ],
)
def test_what_the_ring_does_not_divide_is_said(name, said):
    with pytest.raises(Unsupported, match="cp is not compared") as caught:
        compared(name, "cp=2")
    assert said in str(caught.value)


def test_a_mask_of_one_s_own_is_said():
    class Masked(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(6, 6))

    with pytest.raises(Unsupported, match="no mask but the causal one"):
        ring_rank(Masked(), torch.randn(1, 1, 6, 8), None, 2, 0)


def test_whole_products_on_context_ranks_are_said():
    remarks = {name: rank(graph_of(name), read_degrees("cp=2")).remarks for name in ("mixtral", "llama")}
    (said,) = [text for text in remarks["mixtral"] if "products" in text]
    assert "blocks.*.moe.experts are of the whole sequence on every context rank" in said
    assert not [text for text in remarks["llama"] if "products" in text]


# Experts


class Queues(nn.Module):
    """Four experts, matrices of 3 by 5 and back."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(4, *shape)) for shape in ((3, 5), (5, 3)))

    def forward(self, x):
        return (x @ self.up) @ self.down


def test_what_an_all_to_all_sends_by_hand():
    """Four queues of 6 tokens of 3 numbers leave a rank and come back, and so do their gradients."""
    model = nn.Sequential(Queues())
    seen = expert_rank(model, torch.randn(4, 6, 3, requires_grad=True), None, ["0"], 2)
    assert [(s.kind, s.phase, s.payload) for s in seen.sent] == [
        ("all_to_all", phase, 4 * 4 * 6 * 3) for phase in ("forward", "forward", "backward", "backward")
    ]
    assert seen.shapes == {"0.up": (2, 3, 5), "0.down": (2, 5, 3)}
    assert seen.flops_forward == 2 * 2 * 4 * 6 * 3 * 5 and seen.flops_backward == 2 * seen.flops_forward


@pytest.mark.parametrize("degrees", ["dp=2,ep=2", "dp=4,ep=2"])
def test_mixtral_with_its_experts_divided(degrees):
    found = compared("mixtral", degrees)
    assert not wrong(found)
    (at,), seen = found.points, of(found, "all_to_all")
    experts = 3 * at["L"] * at["E"] * at["d"] * at["f"]
    assert seen["bytes.params"] == seen["bytes.grads"]
    whole = sum(p.numel() for p in source("mixtral").model(at).parameters())
    assert seen["bytes.params"] == 4 * (whole - experts // 2)
    for phase in ("forward", "backward"):
        assert seen[f"collectives.{phase}.ep.all_to_all"] == 2 * at["L"]
        tokens = 4 * at["B"] * at["T"] * at["k"] * at["d"]
        assert seen[f"traffic.{phase}.ep.all_to_all"] == 2 * at["L"] * tokens
    assert {"flops.forward", "flops.backward", "bytes.saved"} <= set(seen)


def test_weights_that_are_not_divided_are_caught():
    graph, wanted = graph_of("mixtral"), read_degrees("dp=2,ep=2")
    whole, found = rank(graph, read_degrees("dp=2")).shares, Findings()
    expert_checks(source("mixtral"), graph, wanted, found, SEED, replace(rank(graph, wanted), shares=whole))
    assert {row[0] for row in wrong(found)} == {"bytes.params", "bytes.grads"}


def test_experts_that_take_something_else_are_said():
    with pytest.raises(Unsupported, match="does not take queues of tokens"):
        expert_rank(nn.Sequential(Queues()), torch.randn(8, 6, 3), None, ["0"], 2)
