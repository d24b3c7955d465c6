"""Tensor, sequence and context parallelism on the derived graph: published forms, and hand counts of collectives."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
from test_memory import SIZES, Block
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger
from symacct.errors import SizeError
from symacct.formula_reader import parse
from symacct.parallel import rank, read_degrees
from symacct.parallel.collectives import traffic_of
from symacct.parallel.proposal import propose
from symacct.parallel.sharding import Division
from symacct.parallel.tensor import sharded
from symacct.symbols import symbol
from symacct.targets import graph_of

t, c, s, T = (symbol(name) for name in ("t", "c", "s", "T"))


class Selective(Block):
    """The attention core is computed again in backward."""

    def attention(self, q, k, v):
        return checkpoint(super().attention, q, k, v, use_reentrant=False)


class Full(Block):
    """Everything is computed again in backward."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@cache
def block(kind):
    return symacct.derive(
        model=lambda h, a: kind(h, a).to(torch.bfloat16),
        inputs=lambda s, b, h: torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True),
        dims=SIZES,
    ).graph


def share(graph, ranks=t, sequence=(), again=True):
    """The ledger of one rank under the proposed plan."""
    plan = propose(graph, ranks, sequence=sequence)
    return Ledger(sharded(graph, Division(ranks, plan.params, sequence, again)))


# Korthikanti et al. 2022, table 2 (per layer, 16 bit): tensor parallel sbh(10 + 24/t + 5as/ht), with sequence
# parallelism sbh/t (34 + 5as/h), with selective recomputation sbh(10 + 24/t) and 34sbh/t, with full 2sbh. They leave
# out the norms' mean and rstd in float32: 2 norms × 2 numbers × 4 bytes for each of the s·b positions.
@pytest.mark.parametrize(
    ("kind", "sequence", "expected"),
    [
        (Block, (), "s*b*h*(10 + 24/t) + 5*a*s**2*b/t + 16*s*b"),
        (Block, (s,), "34*s*b*h/t + 5*a*s**2*b/t + 16*s*b/t"),
        (Selective, (), "s*b*h*(10 + 24/t) + 16*s*b"),
        (Selective, (s,), "34*s*b*h/t + 16*s*b/t"),
        (Full, (), "2*s*b*h"),
        (Full, (s,), "2*s*b*h/t"),
    ],
)
def test_a_rank_keeps_what_korthikanti_count(kind, sequence, expected):
    found = share(block(kind), sequence=sequence).formulas["bytes.saved"]
    assert sp.expand(found - parse(expected)) == 0


def test_torch_keeps_what_megatron_gathers_again():
    """Inputs of the two column-parallel products, 2sbh bytes each, stay whole on every rank where they are kept."""
    kept = share(block(Block), sequence=(s,), again=False).formulas["bytes.saved"]
    assert sp.expand(kept - share(block(Block), sequence=(s,)).formulas["bytes.saved"] - parse("4*s*b*h - 4*s*b*h/t")) == 0


# Shoeybi et al. 2019, figure 4: two all-reduces in the forward pass of a layer and two in the backward pass.
def test_a_layer_reduces_twice_each_way():
    found = traffic_of(share(block(Block)).graph, "tp", t)
    assert {(x.kind, x.phase): x.count for x in found} and all(x.kind == "all_reduce" for x in found)
    for phase in ("forward", "backward"):
        rows = [x for x in found if x.phase == phase]
        assert sum(x.count for x in rows) == 2
        assert sp.expand(sum(x.payload for x in rows) - parse("4*s*b*h")) == 0


# Korthikanti et al. 2022, section 4.2.2: an all-gather and a reduce-scatter in place of each all-reduce, so that the
# same bytes are sent, and one more all-gather of each product's input in backward, which is not kept.
def test_sequence_parallelism_sends_as_much_and_gathers_inputs_again():
    whole, parted = traffic_of(share(block(Block)).graph, "tp", t), traffic_of(share(block(Block), sequence=(s,)).graph, "tp", t)
    weights = sum(x.ring for x in parted if x.kind == "all_reduce")  # gradients of norms and biases
    sent = sum(x.ring for x in parted) - weights
    assert sp.expand(sent - sum(x.ring for x in whole) - 2 * parse("2*s*b*h") * (t - 1) / t) == 0
    # gains and offsets of two norms, biases of the two row-parallel products: 6h numbers of 2 bytes
    assert sp.expand(sum(x.payload for x in parted if x.kind == "all_reduce") - parse("12*h")) == 0


def test_norms_are_not_divided_and_grouped_heads_are():
    """Llama: 2d of norms a layer and d at the end are on every rank; all else is 1/t of it."""
    ledger = share(graph_of("llama"))
    whole = graph_of("llama")
    total, norms = Ledger(whole).formulas["params.total"], parse("2*L*d + d")
    assert sp.expand(ledger.formulas["params.total"] - ((total - norms) / t + norms)) == 0
    assert sp.expand(ledger.formulas["flops.step"] - Ledger(whole).formulas["flops.step"] / t) == 0
    assert {a.short for a in ledger.graph.assumptions} >= {"t | h_kv", "t | f", "t | V"}


def test_fewer_key_heads_than_ranks_stay_whole_on_every_rank():
    sizes = {"V": 128256, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336, "B": 1, "T": 128, "t": 16}
    plan = propose(graph_of("llama"), t, sizes)
    assert set(plan.whole) == {"blocks.*.attn.k.weight", "blocks.*.attn.v.weight"}
    assert "h_kv = 8 is no multiple of t = 16" in plan.whole["blocks.*.attn.k.weight"]
    ledger = Ledger(sharded(graph_of("llama"), Division(t, plan.params)))
    # by hand: q, o, gate, up, down and both tables by 16; keys, values and norms whole
    layer = (2 * 4096 * 4096 + 3 * 4096 * 14336) // 16 + 2 * 4096 * 1024 + 2 * 4096
    assert ledger.at(**sizes)["params.total"] == 2 * 128256 * 4096 // 16 + 32 * layer + 4096


def test_uneven_division_is_said_and_not_rounded():
    sizes = {"V": 96, "L": 2, "d": 32, "h": 4, "f": 128, "B": 2, "T": 16, "t": 3}
    with pytest.raises(SizeError, match=r"breaks Mod\((V|f|h), t\) = 0"):
        share(graph_of("gpt2")).at(**sizes)
    plan = propose(graph_of("gpt2"), t, sizes)  # 3 divides the vocabulary alone
    assert set(plan.params) == {"wte.weight"}
    assert "d = 32 is no multiple of t = 3" in plan.whole["blocks.*.attn.qkv.weight"]


# Fused and separate projections, an encoder, two towers, latent attention, experts: each weight once.
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("gpt2", set()),
        ("bert", set()),
        ("t5", set()),
        ("vit", set()),
        ("mixtral", {"blocks.*.moe.router.weight"}),
        ("deepseek-mla", {"blocks.*.attn.kv_down.weight", "blocks.*.attn.q_down.weight"}),
        ("mlp", set()),
    ],
)
def test_the_plan_pairs_columns_with_rows(name, whole):
    plan = propose(graph_of(name), symbol("tp"))
    assert set(plan.whole) == whole
    weights = [p.node.label for p in graph_of(name).sources("parameter") if len(p.node.outputs[0].shape) > 1]
    assert {plan.styles[label] for label in weights if label in plan.styles} <= {"colwise", "rowwise"}


# Llama 3 trains long contexts so: keys and values are gathered, 2·B·T·h_kv·d_h elements a layer, float32 here.
def test_context_parallelism_gathers_keys_and_values():
    graph = sharded(graph_of("llama"), Division(c, {}, (T,), tokens=True))
    ledger = Ledger(graph)
    assert sp.expand(ledger.formulas["flops.step"] - Ledger(graph_of("llama")).formulas["flops.step"] / c) == 0
    assert ledger.formulas["params.total"] == Ledger(graph_of("llama")).formulas["params.total"]
    gathered = [x for x in traffic_of(graph, "cp", c) if x.kind == "all_gather" and x.phase == "forward"]
    assert sp.expand(sum(x.payload for x in gathered) - parse("8*L*B*T*h_kv*d_h")) == 0


def test_axes_compose():
    """Context first, tensor and sequence within: FLOPs by c·t, weights by t."""
    once = sharded(graph_of("llama"), Division(c, {}, (T,), tokens=True))
    ledger = share(once, sequence=(T / c,))
    assert sp.expand(ledger.formulas["flops.step"] - Ledger(graph_of("llama")).formulas["flops.step"] / (c * t)) == 0


@pytest.mark.parametrize(("degrees", "tokens"), [("tp=2,sp", "B*T"), ("tp=2,sp,cp=2", "B*T/c")])
def test_gradients_are_summed_once_whatever_else_divides_the_sequence(degrees, tokens):
    """By hand: six weights a block that no rank divides (scale and shift of two norms, two biases), two of the
    last norm and the table of positions; and of the loss three numbers a token, float32.
    """
    found = rank(graph_of("gpt2"), read_degrees(degrees)).traffic
    rows = [x for x in found if (x.axis, x.kind) == ("tp", "all_reduce")]
    assert sp.expand(sum(x.count for x in rows) - parse("6*L + 2 + 1 + 3")) == 0
    assert sp.expand(sum(x.payload for x in rows) - parse(f"4*(6*L*d + 2*d + T*d) + 12*{tokens}")) == 0
    assert sp.expand(sum(x.count for x in rows if x.once) - parse("6*L + 3")) == 0
