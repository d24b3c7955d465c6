"""Published figures for training time, MFU and serving, through traced models, each under its author's
convention.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import sympy as sp

import symacct
from symacct.account import Ledger
from symacct.conventions import convention
from symacct.devices import card, device
from symacct.errors import SizeError
from symacct.evaluation import evaluate
from symacct.parallel import rank, read_degrees
from symacct.plan.fitting import demand
from symacct.plan.planning import plan
from symacct.plan.question import Case, Question
from symacct.plan.serving import Pass, cache_bytes, moving, picked, weights_read
from symacct.plan.solving import Ceiling, largest
from symacct.plan.training_time import (
    DAY,
    HOUR,
    PETAFLOP_DAY,
    Run,
    cards_for,
    estimates,
    flops_in,
    in_products,
    overhead,
    rule_of_thumb,
    tokens_of,
    utilisation,
)
from symacct.symbols import symbol
from symacct.targets import graph_of

ROOT = Path(__file__).parents[1]
B, T, V, L, d, N = map(symbol, "BTVLdN")
H100 = device("h100").peak("bf16")
A100 = device("a100").peak("bf16")
GPT2_XL = {"V": 50257, "T": 1024, "L": 48, "d": 1600, "h": 25, "f": 6400}
GPT3 = {"V": 50257, "T": 2048, "L": 96, "d": 12288, "h": 96, "f": 49152}
LLAMA3_405B = {"V": 128256, "L": 126, "d": 16384, "h": 128, "h_kv": 8, "d_h": 128, "f": 53248}
PALM = {"V": 256000, "L": 118, "d": 18432, "h": 48, "h_kv": 1, "d_h": 256, "f": 73728}
LLAMA2_13B = {"V": 32000, "L": 40, "d": 5120, "h": 40, "h_kv": 40, "d_h": 128, "f": 13824}


@cache
def stored(name, author=None):
    return Ledger(graph_of(name), convention(author))


@cache
def decode():
    """One token behind T cached ones of a Llama in bf16."""
    return symacct.derive(str(ROOT / "examples" / "llama.py"), mode="decode", dtype="bf16")


def at(ledger, key, **sizes):
    return evaluate(ledger.formulas[key], sizes)


def percent(share):
    return float(100 * share)


# Training time


def test_a_70b_model_on_15t_tokens():
    """Stanford CS336 (2025), lecture 2: 6·N·D on 1024 H100 at MFU 0.5."""
    run = Run(rule_of_thumb(70 * 10**9, 15 * 10**12), H100, 1024, Fraction(1, 2))
    assert run.flops == 63 * 10**23
    assert flops_in(DAY, H100 * Fraction(1, 2), 1024) == 437723136 * 10**14
    assert float(run.days) == pytest.approx(143.926593818427, rel=1e-12)
    assert run.card_hours == run.days * 24 * 1024
    assert run.cost(2) == 2 * run.card_hours


def test_the_largest_model_on_8_h100():
    """CS336, lecture 2: naive fp32 AdamW needs 16 B a parameter, so 8 · 80 GB hold 40e9 parameters."""
    kinds = demand(stored("gpt2").graph, stored("gpt2").formulas).kinds
    states = kinds["weights"] + kinds["gradients"] + kinds["optimizer state"]
    each = sp.expand(states - 16 * stored("gpt2").formulas["params.total"])
    assert each == 16 * (3 * L + 1)  # what is left are the 4-byte step counts of 12·L + 4 tensors
    found = largest([Ceiling(16 * N, 8 * device("h100").memory)], N)
    assert found.number == 40 * 10**9


def test_gpt2_xl_by_cs336():
    """CS336, assignment 1, adamwAccounting (d): 400K steps of 1024 sequences on one A100 in fp32 at MFU
    0.5.
    """
    ledger = stored("gpt2")
    forward = at(ledger, "flops.forward", B=1, **GPT2_XL)
    assert forward == 3_506_703_564_800
    steps, peak = 400_000 * 1024, device("a100").peak("fp32")
    exact = Run(at(ledger, "flops.step", B=1, **GPT2_XL) * steps, peak, 1, Fraction(1, 2))
    assert float(exact.days) == pytest.approx(5115.191524722507, rel=1e-12)
    # 6·N·D with the handout's N = 2·V·d + L·(12·d² + 2·d) + d: untied tables, no positions, no biases, norms
    # of d
    own = evaluate(2 * V * d + L * (12 * d**2 + 2 * d) + d, GPT2_XL)
    assert own == 1_635_537_600
    thumb = Run(rule_of_thumb(own, 1024 * steps), peak, 1, Fraction(1, 2))
    assert float(thumb.days) == pytest.approx(4885.998502728205, rel=1e-12)


def test_the_batch_that_cs336_fits():
    """CS336, assignment 1, adamwAccounting (b): a·B + b bytes, at most 3 sequences on 80 GB and on 80 GiB."""
    bytes_ = 15_517_753_344 * B + 26_168_601_600
    assert largest([Ceiling(bytes_, 80 * 10**9)], B).number == 3
    assert largest([Ceiling(bytes_, 80 * 2**30)], B).number == 3


@pytest.mark.parametrize(
    ("parameters", "each", "flops", "days"),
    [(174_600, 6, 3.14e23, 3.64e3), (12_850, 6, 2.31e22, 2.68e2), (11_000, 3, 3.30e22, 3.82e2)],
)
def test_gpt3_table_d1(parameters, each, flops, days):
    """Brown et al. 2020, table D.1: millions of parameters; T5 saw 1e12 tokens, each with half of its
    parameters.
    """
    tokens = 3 * 10**11 if each == 6 else 10**12
    found = rule_of_thumb(parameters * 10**6, tokens, each)
    assert float(found) == pytest.approx(flops, rel=0.005)
    assert float(Fraction(found, PETAFLOP_DAY)) == pytest.approx(days, rel=0.005)


def test_gpt3_through_the_traced_model():
    ledger = stored("gpt2")
    assert at(ledger, "params.total", **GPT3) == 174_604_259_328
    step = estimates(ledger.graph, ledger.formulas, ledger.convention)["6ND"]
    assert float(Fraction(evaluate(step, {**GPT3, "B": 1})) / 2048 * 300 * 10**9) == pytest.approx(
        3.14e23, rel=0.005
    )


def test_attention_is_all_you_need():
    """Vaswani et al. 2017, table 2: 12 hours and 3.5 days on 8 P100 of 9.5e12 FLOP/s."""
    assert flops_in(12 * HOUR, 95 * 10**11, 8) == 3_283_200_000_000_000_000
    assert flops_in(Fraction(7, 2) * DAY, 95 * 10**11, 8) == 2_298_240 * 10**13


def test_llama3_405b():
    """Llama 3 herd of models, section 3.2: 3.8e25 FLOPs for 15.6T tokens."""
    parameters = at(stored("llama"), "params.total", **LLAMA3_405B)
    tokens = 156 * 10**11
    assert float(rule_of_thumb(parameters, tokens)) == pytest.approx(3.798787719168e25, rel=1e-12)
    assert rule_of_thumb(405 * 10**9, tokens) == 37_908 * 10**21


def test_llama_65b_days():
    """Touvron et al. 2023, section 2.4: 1.4T tokens, 380 tokens/s a GPU, 2048 of them: about 21 days."""
    run = Run(14 * 10**11, 380, 2048)  # tokens for FLOPs: the same quotient
    assert float(run.days) == pytest.approx(20.8210, abs=5e-5)


@pytest.mark.parametrize(
    ("parameters", "tokens", "cards", "rate", "days"),
    [(175, 300, 1024, 140, 33.908420), (1000, 450, 3072, 163, 83.210847)],
)
def test_narayanan_eq_4(parameters, tokens, cards, rate, days):
    """Narayanan et al. 2021, eq. 4: 8·T·P/(n·X), every forward recomputed (published: 34 and 84 days)."""
    flops = rule_of_thumb(parameters * 10**9, tokens * 10**9, 8)
    assert float(Run(flops, rate * 10**12, cards).days) == pytest.approx(days, rel=1e-7)


def test_the_scaling_book():
    """scaling-book: 6.3e24 FLOPs on 8960 TPU v5p at 40 %; DeepSeek-V3's 2.79M H800-hours at 1.513e15
    FLOP/s.
    """
    run = Run(63 * 10**23, device("v5p").peak("bf16"), 8960, Fraction(2, 5))
    assert float(run.days) == pytest.approx(44.3247, abs=5e-5)
    # 37e9 active parameters, 14.8e12 tokens; the book prints 21.7 %.
    flops = rule_of_thumb(37 * 10**9, 148 * 10**11)
    seen = utilisation(flops, 279 * 10**4 * HOUR, card("fp8=1.513e15").peak("fp8"))
    assert percent(seen) == pytest.approx(21.621, abs=0.01)


def test_how_many_cards_for_a_month():
    """6·N·D/(t·peak·MFU) for 7e9 parameters, 1e12 tokens, 30 days on A100 at 40 %: 129.8, so 130."""
    flops = rule_of_thumb(7 * 10**9, 10**12)
    assert cards_for(flops, 30 * DAY, A100, Fraction(2, 5)) == 130
    assert Run(flops, A100, 130, Fraction(2, 5)).days < 30 < Run(flops, A100, 129, Fraction(2, 5)).days


# MFU and HFU


def test_palm_540b():
    """Chowdhery et al. 2022, appendix B: 45.7 % without and 46.2 % with attention, on a traced model of
    PaLM's shape.

    Its traced N′, the parameters in products, are the 540.35e9 of the paper: the head is the embedding.
    """
    ledger = stored("llama", "palm")
    active = in_products(ledger.formulas["flops.step"], tokens_of(ledger.graph))
    assert evaluate(active, PALM) == 540_354_281_472
    step = estimates(ledger.graph, ledger.formulas, convention("palm", params="matmul"))
    peak = device("tpu-v4").peak("bf16")
    rate, sizes = Fraction(238_300), {**PALM, "B": 1, "T": 2048}
    for key, truth in (("6ND", 45.726), ("exact", 46.229)):
        seen = utilisation(Fraction(evaluate(step[key], sizes)) / 2048 * rate, 1, peak, 6144)
        assert percent(seen) == pytest.approx(truth, abs=0.005)


def test_korthikanti_175b():
    """Korthikanti et al. 2022, eqs. 7 and 8, table 5: 51.4 % MFU, 52.8 % HFU at 13.75 s on 64 A100."""
    ledger, sizes = stored("gpt2"), {**GPT3, "V": 51200, "B": 64}
    model = at(ledger, "flops.step", **sizes)
    assert model == 141_091_531_099_471_872
    assert percent(utilisation(model, Fraction(55, 4), A100, 64)) == pytest.approx(51.39, abs=0.005)
    # Eq. 8 as printed adds 12·B·L·s²·h for recomputed attention; one more forward of it, as described, is
    # 4·B·L·s²·h.
    printed, described = (model + k * 64 * 96 * 2048**2 * 12288 for k in (12, 4))
    assert printed == 144_891_443_285_065_728
    assert percent(utilisation(printed, Fraction(55, 4), A100, 64)) == pytest.approx(52.77, abs=0.005)
    assert percent(Fraction(described, model) - 1) == pytest.approx(0.8977, abs=5e-5)


def test_nanogpt_sizing():
    """nanoGPT, transformer_sizing.ipynb: 37.14 % at 0.755 s for 100 sequences; 3.46 days for 300B tokens at
    30 %.
    """
    ledger = stored("gpt2", "nanogpt")
    sizes = {"V": 50257, "T": 1024, "L": 12, "d": 768, "h": 12, "f": 3072}
    step = at(ledger, "flops.step", B=100, **sizes)
    assert step == 100 * 874_944_921_600
    assert percent(utilisation(step, Fraction(755, 1000), A100)) == pytest.approx(37.14, abs=0.005)
    flops = rule_of_thumb(at(ledger, "params.total", **sizes), 3 * 10**11)
    assert float(Run(flops, A100, 8, Fraction(3, 10)).days) == pytest.approx(3.46, abs=0.005)


@pytest.mark.parametrize(
    ("shape", "parameters", "rate", "truth"),
    [
        ({"L": 32, "d": 4096, "h": 32, "f": 16384}, 6_658_859_008, 4_951_479, 42.196),
        ({"L": 24, "d": 2048, "h": 16, "f": 8192}, 1_315_950_592, 20_396_905, 36.652),
    ],
)
def test_llm_foundry(shape, parameters, rate, truth):
    """llm-foundry, benchmarking README: (6·N·s + 12·L·d·s²) a sequence on 512 H100, N all parameters
    (published 42.2, 36.65).
    """
    ledger, sizes = stored("gpt2", "palm"), {"V": 50368, "T": 2048, **shape}
    assert at(ledger, "params.total", **sizes) == parameters
    step = estimates(ledger.graph, ledger.formulas, ledger.convention)["6ND+attention"]
    flops = Fraction(evaluate(step, {**sizes, "B": 1})) / 2048 * rate
    assert percent(utilisation(flops, 1, H100, 512)) == pytest.approx(truth, abs=0.005)


def test_accumulation_and_ranks_count_once():
    """Micro-batches of a step all count (BP-85: 6.3 %, not 0.79); FLOPs are of all cards (BP-86: 12.0 %, not
    48.1).
    """
    step = rule_of_thumb(10**8, 4 * 8 * 1024)
    assert percent(utilisation(step, 1, A100)) == pytest.approx(6.3, abs=0.05)
    assert percent(utilisation(rule_of_thumb(10**9, 10**6), 10, A100, 16)) == pytest.approx(12.0, abs=0.05)
    assert percent(utilisation(9600 * 5 * 10**10, 1, H100)) == pytest.approx(
        48.5, abs=0.05
    )  # dense, not sparse


def test_muon():
    """K. Jordan's post on Muon: T·m/B more FLOPs, 0.7 % for m = 768 and B = 524288, 0.5 % for Llama 405B;
    traced.
    """
    from torch import nn, optim, randn

    ledger = symacct.derive(
        model=lambda d: nn.Linear(d, d, bias=False),
        inputs=lambda B, d: randn(B, d, requires_grad=True),
        optimizer=lambda parameters: optim.Muon(parameters),
        dims={"B": 6, "d": 8},
    )
    assert sp.cancel(ledger.formulas["flops.optimizer"] / ledger.formulas["flops.step"]) == 5 * d / B
    for width, batch, truth in ((768, 524_288, 0.732), (16384, 16 * 10**6, 0.512)):
        numbers = ledger.at(B=batch, d=width)
        assert percent(overhead(numbers["flops.optimizer"], numbers["flops.step"])) == pytest.approx(
            truth, abs=0.005
        )


# Serving


@pytest.mark.parametrize(
    ("batch", "bytes_", "milliseconds", "throughput"),
    [
        (1, 26_869_760_000, 8.020824, 124.6755),
        (64, 79_717_990_400, 23.796415, 2689.4807),
        (256, 240_779_264_000, 71.874407, 3561.7685),
    ],
)
def test_llama2_13b_decoding(batch, bytes_, milliseconds, throughput):
    """CS336, lecture 10: S = 1024, 3.35e12 B/s; its parameters are those of the matrices, without the
    norms.
    """
    ledger = decode()
    norms = (2 * L + 1) * d
    matrices = evaluate(ledger.formulas["params.total"] - norms, LLAMA2_13B)
    assert matrices == 13_015_449_600
    cache = at(ledger, "bytes.kv_cache", B=batch, T=1023, **LLAMA2_13B)  # the step leaves T + 1 tokens
    bandwidth = device("h100").bandwidth
    found = Pass(
        2 * matrices + cache,
        at(ledger, "flops.forward", B=batch, T=1023, **LLAMA2_13B),
        batch,
        bandwidth,
        H100,
    )
    assert found.bytes == bytes_
    assert float(1000 * found.seconds) == pytest.approx(milliseconds, rel=1e-7)
    assert float(found.throughput) == pytest.approx(throughput, rel=1e-6)
    assert found.limit == "memory"
    # 1 card for an hour costs 2: 2/3600 a second, spread over the tokens of a second
    assert float(found.cost(2)) == pytest.approx(2 / 3600 / throughput * 1e6, rel=1e-6)


def planned(**asked):
    """A plan of decoding 64 sequences behind 1023 cached tokens each on H100, and what the ledger itself
    says.
    """
    ledger, sizes = decode(), {**LLAMA2_13B, "B": 64, "T": 1023}
    case = Case(ledger, ledger.formulas, lambda expr: expr, sizes, ledger.graph.assumptions)
    return plan(case, Question(device("h100"), **asked)), ledger.at(**sizes)


def test_a_plan_of_decoding():
    found, truth = planned(
        cards=4, amount=Fraction(10**9), price=Fraction(2), rate=Fraction(5000), mfu=Fraction(1, 2)
    )
    served = found.served
    assert found.precision == "bf16"
    assert found.fit.need == truth["bytes.peak"]
    assert served.least.bytes == truth["bytes.params"] + truth["bytes.kv_cache"]
    assert served.traced.bytes == truth["bytes.read"] + truth["bytes.written"]
    seconds = Fraction(served.least.bytes, device("h100").bandwidth)
    assert served.least.seconds == seconds  # bound by memory, also at half the peak
    assert served.least.throughput == 4 * 64 / seconds  # each card serves a batch of its own
    assert served.seconds == 10**9 / 5000  # at the rate that is measured
    assert served.least.cost(2) == Fraction(2, 3600) * seconds / 64 * 10**6
    assert served.cost(2) == Fraction(4 * 2 * 10**6, 3600 * 5000)  # 200 s of 4 cards at 2 an hour
    # 5000 tokens a second on 4 cards: 5000/64 passes, each reading the least bytes
    assert served.mbu == Fraction(5000, 64) * served.least.bytes / (4 * device("h100").bandwidth)
    assert served.mfu == Fraction(5000, 64) * truth["flops.forward"] / (4 * H100)


def test_a_rank_reads_what_it_holds_whole():
    """8 ranks, but 2 heads of keys and values: each holds their projections and all of the cache, as norms."""
    sizes = {"B": 64, "T": 8191, "V": 32000, "L": 40, "d": 5120, "h": 40, "h_kv": 2, "d_h": 128, "f": 13824}
    ledger = decode()
    case = Case(ledger, ledger.formulas, lambda expr: expr, sizes, ledger.graph.assumptions)
    asked = Question(device("h100"), cards=8, replicas=1, price=Fraction(3), rate=Fraction(5000))
    served = plan(case, asked, divide=lambda new: rank(new.graph, read_degrees("tp=8"), sizes)).served
    b, layers, d, f = 64, 40, 5120, 13824
    halves = 2 * layers * d * d + 3 * layers * d * f + 32000 * d  # q, o, three of the MLP, the head
    own = halves // 8 + 2 * layers * d * 2 * 128  # k and v whole
    cache = 2 * b * layers * 8192 * 2 * 128  # numbers
    assert served.least.bytes == 2 * (own + 32000 * d // 8 + (2 * layers + 1) * d) + 2 * cache
    assert served.least.flops == 2 * b * own + 4 * b * layers * 8192 * d // 8  # of 5 heads
    seconds = Fraction(served.least.bytes, device("h100").bandwidth)
    assert served.least.seconds == seconds and served.least.throughput == 64 / seconds
    assert served.least.cost(3) == Fraction(3 * 8, 3600) * seconds / 64 * 10**6
    # 5000/64 passes a second: each card reads all of its bytes, and the model's FLOPs are shared among 8
    assert served.mbu == Fraction(5000, 64) * seconds
    assert served.mfu == Fraction(5000, 64) * ledger.at(**sizes)["flops.forward"] / (8 * H100)


def test_the_batch_that_decoding_fits():
    found, _ = planned()
    peaks = {B: at(decode(), "bytes.peak", **{**LLAMA2_13B, "B": B, "T": 1023}) for B in range(55, 70)}
    assert found.solution.solved.number == max(B for B, peak in peaks.items() if peak <= 80 * 10**9)
    assert found.solution.kind == "KV cache"
    assert not found.fit.fits  # at the 64 that were asked for


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"amount": Fraction(5), "unit": "steps"}, "mode decode has none; say how much with --tokens"),
        ({"accumulate": 2}, "--micro-batches is of training"),
        ({"estimate": "6ND"}, "--flops 6ND is of training"),
        ({"days": Fraction(3)}, "--days is of training"),
    ],
)
def test_what_only_training_has(asked, says):
    with pytest.raises(SizeError, match=says):
        planned(**asked)


def test_kipply_52b():
    """kipply, "Transformer Inference Arithmetic": d = 8192, L = 64, V = 65536."""
    shape = {"L": 64, "d": 8192, "V": 65536, "h": 64, "f": 4 * 8192}
    ledger = stored("gpt2")
    active = in_products(ledger.formulas["flops.step"], tokens_of(ledger.graph))
    assert evaluate(active, shape) == 52_076_478_464  # with the one table that is also the head
    assert evaluate(active - V * d, shape) == 51_539_607_552
    body = sp.expand(ledger.by("module", phases=["forward"])[("blocks.*.attn.qkv",)] / (B * T))
    assert evaluate(body, shape) * Fraction(2, 3) == 17_179_869_184  # keys and values are two of the three
    assert 2 * evaluate(active - V * d, shape) == 103_079_215_104
    cache = decode().formulas["bytes.kv_cache"] / (B * (T + 1))
    assert evaluate(sp.cancel(cache), {**shape, "h_kv": 64, "d_h": 128}) == 2_097_152


def test_kipply_latencies():
    """The same text: 208 FLOPs a byte; 52B on one A100; 260B on 16 at batches 1 and 512; its
    communication.
    """
    a100 = card("peak=312e12,memory=40e9,bandwidth=1.5e12,link=300e9")
    assert a100.ridge("bf16") == 208
    body = sp.expand(
        in_products(stored("gpt2").formulas["flops.step"], tokens_of(stored("gpt2").graph)) - V * d
    )
    bytes_52b = 2 * evaluate(body, {"L": 64, "d": 8192, "f": 4 * 8192, "h": 64, "V": 1})
    assert float(1000 * moving(bytes_52b, a100.bandwidth)) == pytest.approx(68.72, rel=1e-3)
    weights = 260 * 10**9
    one, many = (
        Pass(2 * weights, 2 * weights * batch, batch, a100.bandwidth, a100.peak("fp16"), 16)
        for batch in (1, 512)
    )
    assert (one.limit, many.limit) == ("memory", "compute")
    assert float(1000 * one.seconds) == pytest.approx(21.67, rel=1e-3)
    assert float(1000 * many.seconds) == pytest.approx(53.33, rel=1e-3)
    assert float(1000 * moving(512 * 8 * 80 * 16384, a100.needed("link"))) == pytest.approx(17.90, rel=1e-3)


def test_key_value_caches():
    """Pope et al. 2022, section 2.1: 3 TB for PaLM 540B with plain heads. Scaling book: int8 caches."""
    graph = decode().graph
    palm = {**PALM, "h_kv": 48, "d_h": 128, "B": 512, "T": 2047}
    assert float(Fraction(at(decode(), "bytes.kv_cache", **palm), 10**12)) == pytest.approx(3.0408, abs=0.05)
    narrow = cache_bytes(graph, 1)
    llama3_70b = {"L": 80, "h_kv": 8, "d_h": 128}
    assert evaluate(sp.cancel(narrow / (B * (T + 1))), llama3_70b) == 163_840
    assert evaluate(narrow, {"L": 64, "h_kv": 64, "d_h": 128, "B": 1, "T": 8191}) == 8 * 2**30  # 8192 tokens
    assert cache_bytes(stored("gpt2").graph) is None


def test_experts_that_are_read():
    """256 experts, 8 a token, 32 tokens: 163.3 distinct ones on average, not all (and 8 for one token)."""
    assert float(picked(256, 8, 32)) == pytest.approx(163.3, abs=0.05)
    assert picked(256, 8, 1) == 8
    # Mixtral 8x7B: 46,702,792,704 parameters, 12,879,925,248 of them active for one token
    total, active = 46_702_792_704, 12_879_925_248
    assert weights_read(total, active, 8, 2, 1) == active
    assert active < weights_read(total, active, 8, 2, 4) < weights_read(total, active, 8, 2, 400) < total
    assert weights_read(total, total, 4, 4, 3) == total
