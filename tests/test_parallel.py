"""Ranks of a step: published figures for ZeRO, pipelines and sharded activations, hand counts, and bad degrees."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import Block
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger
from symacct.errors import SizeError, Unsupported
from symacct.formula_reader import parse
from symacct.parallel import rank, read_degrees
from symacct.parallel.collectives import Traffic
from symacct.parallel.data import States, divided_states, gathered_bytes
from symacct.symbols import symbol
from symacct.targets import graph_of


def number(expr, **sizes):
    """An expression at numbers."""
    return expr.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()})


GPT3 = {"B": 1, "T": 2048, "V": 51200, "L": 96, "d": 12288, "h": 96, "t": 8, "p": 8, "m": 64}


class Layer(Block):
    """The attention core is computed again in backward, as in Korthikanti et al. 2022."""

    def attention(self, q, k, v):
        return checkpoint(super().attention, q, k, v, use_reentrant=False)


class GPT(nn.Module):
    """GPT-3 as Megatron builds it: dropout behind the embedding, tied tables, no learned positions counted here."""

    def __init__(self, V, L, d, h, T):
        super().__init__()
        self.words, self.positions = nn.Embedding(V, d), nn.Embedding(T, d)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        x = self.drop(x.transpose(0, 1))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@cache
def gpt():
    return symacct.derive(
        model=lambda V, L, d, h, T: GPT(V, L, d, h, T).to(torch.bfloat16),
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1).float(), inputs.t().flatten()),
        dims={"B": 2, "T": 16, "V": 96, "L": 2, "d": 32, "h": 4},
    ).graph


# Megatron-LM's theoretical_memory_usage.py at d98e8a6 for GPT-3 175B, TP8 PP8, micro-batch 1, with sequence
# parallelism and selective recomputation, as executed: 10,292,838,400 bytes of activations on the first stage, from
# (34·s·b·h·L + 8·s·b·p + s·b·h·p)/t. It leaves out mean and rstd of the norms, 16·s·b/t a layer, and takes the token
# ids, 8 bytes each, as divided by t, where every rank of a tensor-parallel group holds them whole.
def test_the_first_stage_of_gpt3_keeps_what_megatron_estimates():
    first = rank(gpt(), read_degrees("tp=8,sp,pp=8,m=64")).shares[0]
    assert first.stage.name == "first stage"
    layers = parse("34*B*T*d*L/t + 16*B*T*L/t")
    embedding = first.kept - layers
    kept = number(first.kept, **GPT3)
    norms, ids = 16 * 2048 * 96 // 8, 8 * 2048 * 8 - 8 * 2048 * 8 // 8
    beside = number(embedding, **GPT3) - (8 * 2048 * 8 + 2048 * 12288 * 8 // 8)
    assert kept - norms - ids - beside == 10_292_838_400
    # what else stands before the layers is the positions that the lookup keeps: 8 bytes each, for each of p passes
    assert beside == 8 * 2048 * 8


# The same program: 50,348,611,584 bytes at 18 a parameter, that is 2,797,145,088 on the most loaded of 64 shards. It
# has no biases and no learned positions, and adds the final norm, of another stage, divided by t.
def test_the_most_loaded_shard_of_gpt3():
    first = rank(gpt(), read_degrees("tp=8,sp,pp=8,m=64")).shares[0]
    d, layers = 12288, 12
    biases, positions, final = layers * (7 * d // 8 + 2 * d), 2048 * d, 2 * d // 8
    assert number(first.states.params, **GPT3) / 2 - biases - positions + final == 50_348_611_584 // 18


# Korthikanti et al. 2022, equation 5 and section 4.2.3: the first stage keeps as much as L layers, times
# 1 + (p-1)/(p·v) interleaved.
@pytest.mark.parametrize(("text", "factor"), [("pp=4,m=8", "1"), ("pp=4,m=8,v=3", "1 + (p - 1)/(p*v)"), ("pp=4,m=4,v=3", "m/p")])
def test_the_first_stage_keeps_all_layers(text, factor):
    found = rank(graph_of("llama"), read_degrees(text)).shares[0].kept
    layers = Ledger(graph_of("llama")).formulas["bytes.saved"].coeff(symbol("L"))
    assert sp.expand(found.coeff(symbol("L")) - sp.expand(layers * parse(factor))) == 0


# Korthikanti et al. 2022, tables 2 and 3: bytes a layer for 175B at t = 8, in order none, tensor, with sequence.
@pytest.mark.parametrize(
    ("text", "published"),
    [("tp=8", 327_155_712), ("tp=8,sp", 106_954_752)],
)
def test_bytes_a_layer_of_gpt3_under_selective_recomputation(text, published):
    kept = rank(gpt(), read_degrees(text)).shares[0].kept
    layer = number(kept.coeff(symbol("L")), **GPT3)
    norms = 16 * 2048 if text == "tp=8" else 16 * 2048 // 8
    assert layer - norms == published


# EleutherAI/cookbook, calc_transformer_mem.py at 827ee3b, for Pythia 6.9B on 128 devices, tp = 2, 8 sequences of 2048,
# as executed, GiB: activations 34.00, weights 6.40, gradients 25.60, optimizer 0.60, buffers 0.93, in all 67.53. Its
# quirks: the terms 34sbh/t of a layer under selective recomputation, gradients not divided by t, 8Lh + 2h for norms,
# no biases, a table of 51200 words counted twice, positions once; 10^9 bytes of buffers.
def test_eleuthers_estimate_for_pythia():
    sizes = {"B": 8, "T": 2048, "V": 51200, "L": 32, "d": 4096, "h": 32, "t": 2}
    kept = rank(gpt(), read_degrees("tp=2,sp")).shares[0].kept.coeff(symbol("L")) * symbol("L")
    activations = number(kept, **sizes) - 16 * 2048 * 8 * 32 // 2  # norms' statistics, which it leaves out
    # ours is tied, and has biases and 4Lh + 2h of norms
    ours = number(Ledger(gpt()).formulas["params.total"], **sizes)
    biases = 9 * 4096 * 32
    theirs = ours - biases + 51200 * 4096 + 4 * 32 * 4096
    gib = [round(float(x) / 2**30, 2) for x in (activations, 2 * theirs / 2, 4 * theirs, 12 * theirs / 128, 10**9)]
    assert gib == [34.00, 6.40, 25.60, 0.60, 0.93]
    assert round(sum(float(x) for x in (activations, theirs, 4 * theirs, 12 * theirs / 128, 10**9)) / 2**30, 2) == 67.53


# Rajbhandari et al. 2020, figure 1: 7.5e9 parameters on 64 devices, 2 + 2 + 12 bytes each.
@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_zero_divides_as_its_first_figure_says(stage, gigabytes):
    P = sp.Integer(7_500_000_000)
    assert divided_states(States(2 * P, 2 * P, 12 * P), sp.Integer(64), stage).total == int(gigabytes * 10**9)


# BP-79 of the bug list: 1e9 parameters, units of 5e7, 8 ranks, 16 bit, 16 bytes a parameter in all: 2.0 GB of parts,
# 0.2 GB gathered and 0.1 GB of a full gradient.
def test_fsdp_holds_gathered_units_beside_its_parts():
    P = sp.Integer(10**9)
    parts = divided_states(States(2 * P, 2 * P, 12 * P), sp.Integer(8), 3).total
    assert parts + gathered_bytes(sp.Integer(2 * 5 * 10**7), sp.Integer(0)) == 2_300_000_000


# Megatron-LM, test_weight_and_optimizer_memory.py: (352 + 36)·(6 + 12/16) + 64·(6 + 12/4) = 3195 with a distributed
# optimizer: 6 bytes of weight and gradient, 12 of state over 16 ranks, for experts over 4.
def test_experts_are_divided_among_fewer_ranks():
    dense, experts = (States(2 * x, 4 * x, 12 * x) for x in (sp.Integer(388), sp.Integer(64)))
    total = divided_states(dense, sp.Integer(16), 1).total + divided_states(experts, sp.Integer(4), 1).total
    assert total == 3195


# Rajbhandari et al. 2020, section 7: 2Ψ sent for stages 0 to 2, 3Ψ for stage 3, for many ranks.
@pytest.mark.parametrize(("zero", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_what_data_parallel_ranks_send(zero, times):
    found = rank(graph_of("llama"), read_degrees(f"dp=64,zero={zero}"))
    sent = sp.Add(*(x.ring for x in found.traffic))
    weights = Ledger(graph_of("llama")).formulas["bytes.params"]
    kept_gathered = parse("4*(2*V*d + d)") if zero == 3 else 0  # the root stays gathered until its backward
    assert sp.expand(sent - (times * weights - kept_gathered) * (1 - 1 / symbol("dp"))) == 0


# By hand for Mixtral: tokens in, outputs out, and the gradients of both, B·T·k rows of d numbers in float32, a layer.
def test_tokens_travel_to_their_experts_and_back():
    found = rank(graph_of("mixtral"), read_degrees("dp=8,ep=4"))
    rows = [x for x in found.traffic if x.axis == "ep"]
    assert {x.kind for x in rows} == {"all_to_all"}
    assert sp.expand(sum(x.payload for x in rows) - parse("4*4*B*T*k*d*L")) == 0
    one = rank(graph_of("mixtral"), read_degrees("dp=8")).shares[0].states.params
    assert sp.expand(one - found.shares[0].states.params - parse("12*E*L*d*f") * (1 - 1 / symbol("e"))) == 0


def test_a_stage_hands_on_the_residual_stream():
    """Llama in float32: B·T·d numbers each way for each micro-batch; 1/(c·t) of it where the sequence is divided."""
    found = rank(graph_of("llama"), read_degrees("pp=4,m=8"))
    assert [sp.expand(x.payload - parse("4*B*T*d*m")) for x in found.traffic if x.axis == "pp"] == [0, 0]
    assert found.idle == parse("(p - 1)/m")
    parted = rank(graph_of("llama"), read_degrees("pp=4,m=8,tp=2,sp,cp=2"))
    assert [sp.expand(x.payload - parse("4*B*T*d*m/(c*t)")) for x in parted.traffic if x.axis == "pp"] == [0, 0]


def test_the_stages_hold_the_model_between_them():
    """First, in between and last: L/p layers each, the table on the first, norm and head on the last."""
    shares = rank(graph_of("llama"), read_degrees("pp=4,m=8")).shares
    assert [s.stage.name for s in shares] == ["first stage", "second stage", "last stage"]
    first, second, last = (s.states.params for s in shares)
    whole = Ledger(graph_of("llama")).formulas["bytes.params"]
    assert sp.expand(number(first + 2 * second + last, p=4) - whole) == 0


class LoRA(nn.Module):
    """Queries and values with a low-rank product beside each; the rest of attention is frozen."""

    def __init__(self, d, r):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False).requires_grad_(False) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(d, r, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(r, d, bias=False) for _ in range(2))

    def forward(self, x):
        q, v = (f(x) + up(down(x)) for f, down, up in zip((self.q, self.v), self.down, self.up, strict=True))
        return x + self.o(F.scaled_dot_product_attention(q, self.k(x), v))


# Hu et al. 2021, table 4: Wq and Wv of GPT-3 175B (L = 96, d = 12288): 4.7M trained at r = 1, 37.7M at r = 8; only
# these have gradients and optimizer state.
def test_low_rank_adapters_train_what_is_published():
    ledger = symacct.derive(
        model=lambda d, r, L: nn.Sequential(*(LoRA(d, r) for _ in range(L))), inputs=lambda B, T, d: torch.randn(B, T, d),
        dims={"B": 2, "T": 8, "d": 16, "r": 2, "L": 3},
    )
    trained = ledger.formulas["params.trainable"]
    assert [number(trained, d=12288, L=96, r=r) for r in (1, 4, 8)] == [4_718_592, 18_874_368, 37_748_736]
    assert ledger.formulas["bytes.grads"] == 4 * trained
    assert sp.expand(ledger.formulas["bytes.optimizer"] - 8 * trained - parse("16*L")) == 0  # a step count for each of 4


def test_one_device_alone_is_the_ledger():
    for name in ("gpt2", "t5", "mixtral"):
        found, ledger = rank(graph_of(name), read_degrees("")), Ledger(graph_of(name)).formulas
        states = found.shares[0].states
        assert [states.params, states.grads, states.optimizer] == [ledger[f"bytes.{k}"] for k in ("params", "grads", "optimizer")]
        assert found.shares[0].kept == ledger["bytes.saved"] and not found.traffic


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 10**6), st.sampled_from(["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]))
def test_a_ring_sends_less_than_twice_the_payload(ranks, payload, kind):
    """Step by step: a ring of n ranks passes on n-1 pieces of a size for a gather or scatter, twice as many to reduce."""
    found = Traffic("tp", kind, "forward", "", sp.Integer(1), sp.Integer(payload), sp.Integer(ranks))
    piece = sp.Rational(payload, ranks)
    steps = (ranks - 1) * (2 if kind == "all_reduce" else 1)
    assert found.ring == sum([piece] * steps)
    assert found.ring <= 2 * payload and found.tree >= found.ring


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp=0", "a degree is a positive integer"),
        ("dp=-2", "a degree is a positive integer"),
        ("dp=2.5", "write a whole number"),
        ("tpp=2", "did you mean tp?"),
        ("zero=4", "stages are 0"),
        ("sp", "give tp too"),
        ("dp=2,dp=4", "given twice"),
        ("dp=6,ep=4", "ep = 4 does not divide"),
        ("v=2", "give pp too"),
        ("pp=4,m=6,v=2", "no multiple of pp"),
    ],
)
def test_bad_degrees_are_refused_in_words(text, said):
    with pytest.raises(SizeError, match=said.replace("?", r"\?")):
        read_degrees(text)


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("t5", "pp=2", "2 regions of layers"),
        ("resnet50", "pp=2", "cannot be cut into pipeline stages"),
        ("unet", "tp=2", "divides nothing"),
        ("resnet50", "cp=2", "no size T"),
        ("llama", "dp=4,ep=2", "no weights of E experts"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_words(target, text, said):
    with pytest.raises(Unsupported, match=said):
        rank(graph_of(target), read_degrees(text))


def test_more_stages_than_layers_break_a_condition():
    found = rank(graph_of("gpt2"), read_degrees("pp=8"))
    broken = [a for a in found.conditions if not a.holds({symbol(k): sp.Integer(v) for k, v in {**GPT3, "L": 4, "f": 1}.items()})]
    assert [a.short for a in broken] == ["p | L"]
