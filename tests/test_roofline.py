"""The roofline: intensities and times by hand, published ridge points and shares, and where the time goes."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from io import StringIO

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from function_models import STORED, Apply, forward, stored
from torch import nn

import symacct
from symacct.devices import card
from symacct.errors import DeviceError, SizeError, UnknownOps
from symacct.plan import friendliness, slowness
from symacct.plan.fusion import kernels, launches
from symacct.plan.roofline import intensity, roofline
from symacct.report.grids import Page
from symacct.report.rates import duration, rate
from symacct.report.roofed import as_json, as_text
from symacct.report.unroofed import besides
from symacct.symbols import symbol

B, T, S, D, F_, h, d_h, c = (symbol(name) for name in ("B", "T", "S", "d", "f", "h", "d_h", "c"))
GPT2 = {"B": 1, "T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
LLAMA = {"B": 1, "T": 8192, "V": 128256, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336}
ROUND = card("fp32=100,memory=1e9,bandwidth=10")


def same(a, b):
    return sp.cancel(a - b) == 0


# Intensities of Stanford CS336 (2025), lecture 10: bf16, 2 bytes an element


@cache
def matmul():
    return forward(
        lambda x, w: x @ w,
        lambda s: [(s["B"], s["d"])],
        {"B": 4, "d": 24, "f": 56},
        w=lambda s: (s["d"], s["f"]),
    )


def test_a_matmul_moves_and_multiplies_as_the_lecture_counts():
    found = intensity(matmul())
    assert same(found, 2 * B * D * F_ / (2 * B * D + 2 * D * F_ + 2 * B * F_))
    assert sp.limit(found.xreplace({D: c * B, F_: c * B}), c, sp.oo) == B


@cache
def gated():
    return forward(
        lambda x, gate, up, down: (F.silu(x @ gate) * (x @ up)) @ down,
        lambda s: [(s["B"], s["T"], s["d"])],
        {"B": 3, "T": 5, "d": 24, "f": 56},
        gate=lambda s: (s["d"], s["f"]),
        up=lambda s: (s["d"], s["f"]),
        down=lambda s: (s["f"], s["d"]),
    )


def test_a_gated_mlp_has_the_lectures_intensity():
    found = intensity(gated(), "products")
    assert same(found, 6 * B * T * D * F_ / (4 * B * T * D + 4 * B * T * F_ + 6 * D * F_))
    assert sp.limit(found.xreplace({D: c * B * T, F_: c * B * T}), c, sp.oo) == B * T


def test_a_gated_mlp_moves_what_a_hand_count_says():
    # op by op: three products read x, x and the hidden values, and their weights, and write theirs; silu
    # reads and writes BTf, the product of gate and up reads two and writes one
    products = (2 * B * T * D + 2 * D * F_ + 2 * B * T * F_) * 3
    assert sp.expand(sum(k.bytes for k in kernels(gated())) - products - 4 * B * T * F_ - 6 * B * T * F_) == 0
    # merged: silu's result is neither written nor read
    assert sp.expand(sum(k.bytes for k in kernels(gated(), fused=True)) - products - 6 * B * T * F_) == 0
    assert launches(kernels(gated())) == 5 and launches(kernels(gated(), fused=True)) == 4


@cache
def attention():
    dims = {"B": 2, "h": 3, "T": 6, "S": 10, "d_h": 16}

    def shapes(s):
        return [(s["B"], s["h"], n, s["d_h"]) for n in (s["T"], s["S"], s["S"])]

    return forward(F.scaled_dot_product_attention, shapes, dims)


def test_attention_has_the_lectures_intensity():
    """4BSTD / (4BSD + 4BTD), D = h·d_h. The kernel also writes a logsumexp of 4 bytes for each query and
    head, which the lecture leaves out: it vanishes as heads grow wide."""
    found = intensity(attention())
    wide = h * d_h
    assert same(found, 4 * B * S * T * wide / (4 * B * S * wide + 4 * B * T * wide + 4 * B * h * T))
    ideal = sp.limit(found, d_h, sp.oo)
    assert same(ideal, S * T / (S + T))
    assert same(ideal.xreplace({T: S}), S / 2)  # prefill
    assert same(ideal.xreplace({T: sp.Integer(1)}), S / (S + 1))  # decode


# Ridge points


@pytest.mark.parametrize(
    ("peak", "bandwidth", "ridge"),
    [
        ("312e12", "1.5e12", 208),  # A100, kipply, transformer inference arithmetic
        ("989e12", "3.35e12", 295.2238806),  # H100, CS336 lecture 10, which rounds to 295
        ("1.97e14", "8.1e11", 243.2098765),  # TPU v5e, scaling-book, which rounds to 240
    ],
)
def test_ridge_points_as_published(peak, bandwidth, ridge):
    device = card(f"peak={peak},memory=80e9,bandwidth={bandwidth}")
    assert float(device.ridge("bf16")) == pytest.approx(ridge, rel=1e-6)
    wide = {"d": 2**20, "f": 2**20}  # so wide that the intensity is B, less than one in a thousand
    for rows, limit in ((int(ridge) - 1, "memory"), (int(ridge) + 2, "compute")):
        (bound,) = roofline(matmul(), device, {**wide, "B": rows}).unfused.bounds
        assert bound.limit == limit


def test_the_time_of_one_product_by_hand():
    """B, d, f = 2, 3, 5 in fp32: 60 FLOPs at 100 a second, (6 + 15 + 10) · 4 bytes at 10 a second."""
    ledger = forward(
        lambda x, w: x @ w,
        lambda s: [(s["B"], s["d"])],
        {"B": 4, "d": 24, "f": 56},
        None,
        w=lambda s: (s["d"], s["f"]),
    )
    found = roofline(ledger, ROUND, {"B": 2, "d": 3, "f": 5})
    (bound,) = found.unfused.bounds
    assert (bound.computing, bound.moving, bound.seconds) == (
        Fraction(6, 10),
        Fraction(124, 10),
        Fraction(124, 10),
    )
    assert found.computing == Fraction(6, 10) and found.unfused.mfu == Fraction(60) / (
        100 * Fraction(124, 10)
    )
    assert found.unfused.mfu == found.fused.mfu and found.ridge == 10


# Shares


def test_the_heads_share_of_flops_as_nanogpt_prints_it():
    """transformer_sizing.ipynb: dense 79,047,426,048 of a forward's 291,648,307,200; backward is twice."""
    words = friendliness.vocabulary(stored("gpt2"))
    at = {symbol(n): sp.Integer(v) for n, v in GPT2.items()}
    assert words.rows == symbol("V")
    step = 3 * 79_047_426_048, 3 * 291_648_307_200
    assert (words.flops.xreplace(at), words.of_flops.xreplace(at)) == step


def test_the_heads_share_of_the_first_assignments_xl_model():
    """CS336 assignment 1: head 164,682,137,600 of 4,513,336,524,800 FLOPs forward (3.65 %)."""
    at = {"B": 1, "T": 1024, "V": 50257, "L": 48, "d": 1600, "h": 25, "h_kv": 25, "d_h": 64, "f": 6400}
    words = friendliness.vocabulary(stored("llama"))
    numbers = {symbol(n): sp.Integer(v) for n, v in at.items()}
    assert (
        words.flops.xreplace(numbers) == 3 * 164_682_137_600
        and words.of_flops.xreplace(numbers) == 3 * 4_513_336_524_800
    )
    # kept: log-probabilities of each token in fp32; parameters: table and head
    assert words.kept == 4 * B * T * symbol("V") and words.parameters == 2 * symbol("V") * D


def test_a_model_without_a_vocabulary_has_no_logits_line():
    assert friendliness.vocabulary(stored("resnet50")) is None


def test_bytes_from_the_host():
    assert friendliness.host_bytes(stored("gpt2")) == 8 * B * T  # int64 tokens


def test_an_odd_vocabulary_is_told_and_a_padded_one_is_not():
    rows = friendliness.unfriendly(stored("gpt2"), GPT2)
    assert [(str(r.side), r.size, r.divisor, r.modules) for r in rows] == [("V", 50257, 1, ("head",))]
    assert not friendliness.unfriendly(stored("gpt2"), {**GPT2, "V": 50304})  # nanoGPT pads it to this


def test_rounding_up_by_hand():
    """(100, 96) by (96, 130): to 64s 128, 128, 192; to 128s only 130 is long enough, and becomes 256."""
    sizes = {"B": 100, "d": 96, "f": 130}
    assert friendliness.padded(matmul(), sizes, 64) == Fraction(128 * 128 * 192, 100 * 96 * 130)
    assert friendliness.padded(matmul(), sizes, 128) == Fraction(256, 130)
    assert friendliness.small(matmul(), sizes) == (1, 1)
    assert friendliness.small(matmul(), {"B": 128, "d": 128, "f": 4096}) == (0, 0)


# Why


@pytest.mark.parametrize("name", STORED)
def test_the_parts_add_up_and_none_is_negative(name):
    ledger = stored(name)
    sizes = {n: info.traced_at * (16 if n in "BT" else 2) for n, info in ledger.graph.symbols.items()}
    sizes |= {"P": sizes["T"]} if "P" in sizes else {}
    found = roofline(ledger, card("h100"), sizes, "bf16")
    parts = slowness.losses(found)
    assert slowness.useful(found) + sum(p.seconds for p in parts) == found.unfused.seconds
    assert all(p.seconds > 0 for p in parts) and list(parts) == sorted(parts, key=lambda p: -p.seconds)
    assert found.computing <= found.fused.seconds <= found.unfused.seconds
    assert sum(p.seconds for p in found.fused.modules) == found.fused.seconds
    assert sum(p.seconds for p in found.unfused.ops) == found.unfused.seconds


def test_recomputed_blocks_are_a_loss_of_their_own():
    """Two checkpointed blocks of one product each: one forward of them is repeated, 2·2·B·d·d FLOPs."""
    ledger = symacct.derive(
        model=lambda d: nn.Sequential(
            *(nn.Sequential(nn.Linear(d, d, bias=False), nn.Tanh()) for _ in range(2))
        ),
        inputs=lambda B, d: torch.randn(B, d, requires_grad=True),
        dims={"B": 4, "d": 24},
        checkpoint="[01]",
    )
    found = roofline(ledger, card("peak=1e3,memory=1e9,bandwidth=1e12"), {"B": 64, "d": 128})
    (repeated,) = [p for p in slowness.losses(found) if "repeat" in p.reason]
    assert repeated.seconds == Fraction(2 * 2 * 64 * 128 * 128, 1000)


def test_masked_pairs_take_no_time():
    """Causal attention of T tokens: T (T + 1) / 2 pairs, two products of 2·d_h FLOPs for each and head."""
    ledger = forward(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda s: [(s["B"], s["h"], s["T"], s["d_h"])],
        {"B": 2, "h": 3, "T": 6, "d_h": 16},
    )
    (bound,) = [
        b
        for b in roofline(ledger, card("h100"), {"B": 2, "h": 4, "T": 100, "d_h": 64}).unfused.bounds
        if b.product
    ]
    assert bound.product == 2 * 4 * (100 * 101 // 2) * 4 * 64


# Words


def shown(found, width):
    out = StringIO()
    with Page(out, width) as page:
        as_text(page, found)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 100])
def test_the_section_fits_and_says_what_json_says(width):
    found = roofline(stored("llama"), card("h100"), LLAMA, "bf16")
    text, data = shown(found, width), as_json(found)
    assert max(map(len, text.splitlines())) <= width
    assert json.loads(json.dumps(data))["unfused"]["launches"]["formula"] == "108*L + 47"
    assert f"{100 * data['fused']['mfu']:.1f} %" in text and "108·L + 47" in text and "optimizer" in text
    assert "bytes are those of the graph's float32" in " ".join(text.split())
    assert data["padded"]["128"] == 1.0 and data["logits"]["rows"] == "V"


def test_launches_stand_first_where_they_are_likely_the_limit():
    tiny = {n: info.traced_at for n, info in stored("llama").graph.symbols.items()}
    few, many = (
        list(besides(roofline(stored("llama"), card("h100"), sizes), lambda e: e)) for sizes in (tiny, LLAMA)
    )
    assert few[0][0] == "launches" and "launching is likely the limit" in few[0][1]
    assert many[-1][0] == "launches" and "3,503" in many[-1][1]  # 108·L + 47


def test_durations_and_rates_are_readable():
    assert [duration(Fraction(*p)) for p in ((1, 2000), (86400 * 3, 1), (1234567, 10**9), (0, 1))] == [
        "500.0 µs",
        "3.000 days",
        "1.235 ms",
        "0 s",
    ]
    assert (rate(989_500_000_000_000, "FLOP"), rate(3_350_000_000_000, "B")) == ("989.5 TFLOP/s", "3.35 TB/s")


def test_integer_products_run_at_the_integer_peak():
    ledger = symacct.derive(
        model=lambda: Apply(lambda a, b: torch._int_mm(a, b)),
        inputs=lambda B, d, f: (torch.zeros(B, d, dtype=torch.int8), torch.zeros(d, f, dtype=torch.int8)),
        dims={"B": 32, "d": 24, "f": 56},
        mode="forward",
    )
    found = roofline(ledger, card("h100"), {"B": 64, "d": 128, "f": 256})
    assert found.precision == "int8" and found.unfused.peak == 1979 * 10**12


# Bad input


@pytest.mark.parametrize(
    ("device", "sizes", "precision", "kind", "says"),
    [
        ("h100", {"B": 1}, None, SizeError, "leaves out"),
        ("h100", {**GPT2, "T": 0}, None, SizeError, "positive integer"),
        ("peak=1e12,memory=1e9", GPT2, None, DeviceError, "bandwidth"),
        ("v100", GPT2, "bf16", DeviceError, "bf16"),
    ],
)
def test_what_cannot_be_answered_is_said(device, sizes, precision, kind, says):
    with pytest.raises(kind, match=says):
        roofline(stored("gpt2"), card(device), sizes, precision)


def test_unknown_words_and_ops_are_refused():
    with pytest.raises(SizeError, match="choose from"):
        intensity(matmul(), "merged")
    with pytest.raises(SizeError, match="no kernel"):
        intensity(matmul(), "fused", "nowhere")
    ledger = symacct.derive(
        model=lambda: Apply(torch.linalg.eigvalsh),
        inputs=lambda d: torch.eye(d),
        dims={"d": 4},
        mode="forward",
        allow_unknown=True,
    )
    if ledger.unknown:
        with pytest.raises(UnknownOps):
            roofline(ledger, card("h100"), {"d": 4})
