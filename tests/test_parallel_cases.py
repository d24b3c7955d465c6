"""Shares of a rank that are easily counted wrong, each by hand at numbers, and a plan of one's own."""

from __future__ import annotations

import pytest
import sympy as sp
import torch
from torch import nn

import symacct
from symacct.cli import main
from symacct.errors import SizeError, Unsupported
from symacct.formula_reader import parse
from symacct.graph import Tensor
from symacct.parallel import rank, read_degrees
from symacct.parallel.holdings import stands
from symacct.rules import price
from symacct.symbols import symbol
from symacct.targets import graph_of


def number(expr, **sizes):
    """An expression at numbers."""
    return int(expr.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()}))


def share(target, text, sizes=None, **more):
    graph = graph_of(target) if isinstance(target, str) else target
    return rank(graph, read_degrees(text), sizes, **more)


def peak(found, stage=0, **sizes):
    """The largest candidate for a stage's peak at numbers."""
    return max(number(live, **found.numbers, **sizes) for live in found.shares[stage].peak)


# Llama-3-8B in bf16, 64 sequences of 8192 cached tokens, 8 ranks: one head of keys and values on each rank, so
# 2 tensors · 2 bytes · 64 · 32 layers · 8193 tokens · 128.
def test_a_cache_is_divided_by_heads():
    graph = graph_of("examples/llama.py", "decode", dtype="bf16")
    found = rank(graph, read_degrees("tp=8"))
    left = [p for p in found.graph.sources("cache") if "after" in p.node.notes]
    cached = sum(p.node.outputs[0].bytes * p.times for p in left)
    assert number(cached, B=64, T=8192, L=32, h_kv=8, d_h=128, t=8) == 2 * 2 * 64 * 32 * 8193 * 128
    with pytest.raises(Unsupported, match="a pass of decode has one"):
        rank(graph, read_degrees("cp=2"))


class Unfused(nn.Module):
    """Attention by two products and a softmax, one layer."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (f(x).view(B, T, self.h, d // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return x + self.o((weights @ v).transpose(1, 2).reshape(B, T, d))


# Rows of queries stay, keys and values are gathered: the probabilities are T/c by T; four gathers of B·T·d numbers
# (keys and values, each way) and two scatters of their gradients.
def test_context_ranks_keep_their_rows_of_unfused_attention():
    graph = symacct.derive(
        model=Unfused, inputs=lambda B, T, d: torch.randn(B, T, d, requires_grad=True), dims={"B": 2, "T": 8, "d": 16, "h": 4}
    ).graph
    found = share(graph, "cp=2")
    assert found.shares[0].kept.coeff(symbol("T"), 2) == parse("4*B*h/c")
    sent = {kind: sum(x.payload for x in found.traffic if x.axis == "cp" and x.kind == kind) for kind in ("all_gather", "reduce_scatter")}
    assert sent == {"all_gather": parse("16*B*T*d"), "reduce_scatter": parse("8*B*T*d")}


# 16 ranks, 8 heads of keys and values: these stay whole, all else as with Megatron's sequence parallelism: six gathers
# and four scatters of B·T·d a layer (the gathered inputs of attention and MLP, again in backward; their gradients).
def test_fewer_key_heads_than_ranks_leave_the_rest_of_the_plan_as_it_is():
    sizes = {"B": 1, "V": 128256, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336, "T": 8192}
    found = share("llama", "tp=16,sp", sizes)
    assert set(found.whole) == {"blocks.*.attn.k.weight", "blocks.*.attn.v.weight"}
    residual = [x for x in found.traffic if x.kind == "all_gather" and sp.expand(x.payload / x.count - parse("4*B*T*d")) == 0]
    assert number(sum(x.count for x in residual), L=32) == 6 * 32 + 3


# Four ranks with two experts each: 352.3e6 of the parameters are experts' (4 layers, 8 experts, three 1024 by 3584
# matrices), 78.2e6 are not; five copies of what a rank holds at the optimizer's root (weights, gradients, two moments,
# their root) and the logits' rows.
def test_what_the_optimizer_makes_of_experts_is_spread_like_them():
    sizes = {"B": 1, "V": 32000, "L": 4, "d": 1024, "h": 16, "h_kv": 8, "d_h": 64, "f": 3584, "T": 128, "E": 8, "k": 2}
    experts = 4 * 8 * 3 * 1024 * 3584
    dense = 2 * 32000 * 1024 + 4 * (2 * 1024 * 1024 + 2 * 1024 * 512 + 8 * 1024 + 2 * 1024) + 1024
    found = peak(share("mixtral", "dp=4,ep=4"), **sizes)
    expected = 20 * (experts // 4 + dense) + 4 * 128 * 32002
    assert abs(found - expected) < 4 * 4 * 40  # step counts of tensors, a scalar or two
    states = share("mixtral", "dp=4,ep=4").shares[0].states.optimizer
    assert number(states, e=4, dp=4, **sizes) == 8 * (experts // 4 + dense) + 4 * (4 * 10 + 3)


# Two stages of Llama with one layer each and a table of 128256 by 512 on either: at the optimizer five copies.
def test_the_embeddings_update_is_on_the_first_stage():
    sizes = {"B": 1, "T": 16, "V": 128256, "L": 2, "d": 512, "h": 4, "h_kv": 4, "d_h": 128, "f": 512}
    found = share("llama", "pp=2,m=2")
    layer = 4 * 512 * 512 + 3 * 512 * 512 + 2 * 512
    at_least = 20 * (128256 * 512 + layer)
    assert at_least <= peak(found, 0, **sizes) < at_least * 1.01
    assert 20 * (128256 * 512 + 512 + layer) <= peak(found, 1, **sizes) < at_least * 1.02


# No rank has both ends: with two stages the last one has the head's products and none of what stands before.
def test_flops_and_links_are_of_a_stage_that_there_is():
    found = share("gpt2", "pp=2,m=4", {"B": 1, "T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072})
    assert sp.expand(found.flops["flops.step"] - parse("m*(6*B*T*V*d + (24*B*L*T*d**2 + 12*B*L*T*d*f + 12*B*L*T**2*d)/p)")) == 0
    rows = {(x.kind, x.phase): x for x in found.traffic}
    assert rows["send", "forward"].payload == parse("4*B*T*d*m") and ("send", "backward") not in rows  # one way each
    tied = rows["all_reduce", "backward"]
    assert tied.payload == parse("4*V*d") and tied.ranks == 2


@pytest.mark.parametrize("op", ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"])
def test_a_collective_moves_bytes_and_computes_nothing(op):
    """6 numbers of 4 bytes in, 12 out."""
    given, out = (Tensor(name, (sp.Integer(n),), "float32", name) for name, n in (("a", 6), ("b", 12)))
    cost = price(f"c10d.{op}", {"self": given}, out)
    assert (cost.read, cost.written, cost.product, cost.elementwise, cost.reduction) == (24, 48, 0, 0, 0)


def test_each_node_stands_before_in_or_after_the_layers():
    """GPT-2: the lookups and their gradients before, the last norm, the head and the loss after, both ways."""
    graph = graph_of("gpt2")
    where = stands(graph)
    found = {}
    for place in graph.ops:
        if place.node.phase != "optimizer":
            found.setdefault(place.node.module.partition(".")[0], set()).add(where[place.node.name])
    assert {name: found[name] for name in ("wte", "wpe", "blocks", "ln_f", "head")} == {
        "wte": {"before"}, "wpe": {"before"}, "blocks": {"inside"}, "ln_f": {"after"}, "head": {"after"}
    }


def test_one_card_gathers_nothing():
    alone, sharded = (share("gpt2", text).shares[0] for text in ("", "zero=3"))
    assert sharded.gathered == 0 and set(sharded.peak) == set(alone.peak)


GATED = "blocks.*.mlp.gate=colwise,blocks.*.mlp.up=colwise,blocks.*.mlp.down=rowwise"


def test_a_plan_of_ones_own_divides_what_it_names():
    """Llama's MLP alone: 3·d·f a layer is divided, and each layer sums once each way."""
    found = share("llama", "tp=4", styles=GATED)
    whole = share("llama", "").shares[0].states.params
    assert sp.expand(whole - found.shares[0].states.params - parse("12*L*d*f") * (1 - 1 / symbol("t"))) == 0
    assert sum(x.count for x in found.traffic) == parse("2*L")


@pytest.mark.parametrize(
    ("styles", "said"),
    [
        ("mlp=colwise", "fits no module with parameters"),
        ("embed=diag", "a style is colwise or rowwise"),
        ("embed", "a style is"),
        ("", "styles are empty and divide nothing; write some"),
        (" , ", "styles are empty"),
        ("norm=rowwise", "'norm=rowwise' divides nothing of .*llama.*: rowwise divides weights of two dimensions"),
    ],
)
def test_a_plan_that_names_nothing_is_refused(styles, said):
    with pytest.raises(SizeError, match=said):
        share("llama", "tp=4", styles=styles)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "8"], "only --search asks for that"),
        (["--price", "2"], "--price needs to know how much"),
        (["--styles", GATED], "give --parallel"),
        (["--parallel", "keep"], "give sp too"),
        (["--parallel", "tp=5"], "divides nothing"),
        (["--parallel", ""], "--parallel is empty; write how many ranks do what, such as tp=2"),
        (["--parallel", " , "], "--parallel is empty"),
        (["--parallel", "tp=2", "--styles", ""], "styles are empty and divide nothing"),
        (["--search", "--cards", "8", "--batch", "8", "--parallel", "tp=2"], "leave out --parallel"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(capsys, words, said):
    sizes = "B=1,T=1024,V=50257,L=12,d=768,h=12,f=3072"
    assert main(["plan", "gpt2", "--card", "h100", "--at", sizes, *words]) == 2
    assert said in capsys.readouterr().err

