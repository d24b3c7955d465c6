"""Reported miscounts of other tools, and the right answers: ready models, conventions, formulas in symbols."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from bug_cases import ATTENTION, Scan, found
from bug_cases_training import CASES, Checkpointed
from small_models import Attention, Call, linear, randn
from torch import nn
from torch.utils._pytree import tree_map_only

import symacct
from symacct.account import Ledger
from symacct.storage import dumps, loads
from symacct.symbols import symbol

B, T = symbol("B"), symbol("T")


@cache
def formulas(id, mode, dx=False, **convention):
    """Formulas of a case's ready model and inputs; with `dx`, of floating inputs that require grad."""
    torch.manual_seed(0)
    model, inputs = found(id).build()
    if dx:
        inputs = tree_map_only(torch.Tensor, lambda t: t.requires_grad_(t.is_floating_point()), inputs)
    return symacct.derive(model=lambda: model, inputs=lambda: inputs, dims={}, mode=mode, **convention).formulas


def ids(chosen):
    return [pytest.param(c, id=f"{c.id} {c.what}") for c in chosen]


@pytest.mark.parametrize("case", ids(CASES))
def test_parameters_and_forward(case):
    got = formulas(case.id, "forward")
    assert (got["params.total"], got["flops.forward"]) == (case.params, case.forward), case.link
    if case.trainable is not None:
        assert got["params.trainable"] == case.trainable, case.link


@pytest.mark.parametrize("case", ids(c for c in CASES if c.step is not None))
def test_training_step(case):
    assert formulas(case.id, "train")["flops.step"] == case.step, case.link


@pytest.mark.parametrize("case", ids(c for c in CASES if c.step_dx is not None))
def test_training_step_with_input_gradient(case):
    assert formulas(case.id, "train", dx=True)["flops.step"] == case.step_dx, case.link


# Conventions: the other figures of the same threads


@pytest.mark.parametrize(
    ("id", "switches", "expected"),
    [
        ("BP-16", {"unit": "MAC"}, 18_289_152),
        ("BP-16", {"count": "all"}, 38_610_432),  # a bias addition per output
        ("BP-19", {"count": "all"}, 1024 + 64),
        ("BP-22", {"attention": "half"}, 32_768),
        ("BP-22", {"attention": "exact"}, 34_816),  # 16·17/2 pairs of 16²
        ("BP-01", {"attention": "half"}, 65_536),  # no mask, nothing to halve
    ],
)
def test_forward_under_a_convention(id, switches, expected):
    assert formulas(id, "forward", **switches)["flops.forward"] == expected


def test_backward_as_twice_the_forward():
    got = formulas("BP-55", "train", backward="twice")
    assert (got["flops.backward"], got["flops.step"]) == (2 * 6144, 3 * 6144)


def test_scan_arithmetic_is_apart():
    """BP-15: 5·B·T·D·N = two products and a sum for the state, a product and a sum for the read-out."""
    ledger = symacct.derive(model=lambda: Scan(4, 3), inputs=lambda: randn(2, 6, 4), dims={}, mode="forward")
    kinds = ledger.by("kind")
    rest = kinds["elementwise",] + kinds["reduction",]
    assert (kinds["product",], rest) == (576, 5 * 2 * 6 * 4 * 3)


def test_attention_part_of_wide_heads():
    model, x = found("BP-27").build()
    ledger = symacct.derive(model=model, inputs=x, dims={}, mode="forward")
    assert ledger.by("op")["aten.bmm",] == 32_768


def test_packed_and_half_width_weights_in_bytes():
    assert formulas("BP-75", "forward")["bytes.params"] == 1024
    assert formulas("BP-81", "forward")["bytes.params"] == 2_000_000


def test_deriving_twice_gives_the_same():
    """BP-44: https://github.com/deepspeedai/DeepSpeed/issues/2292"""
    model, x = nn.Linear(10, 10), randn(32, 10)
    once, again = (symacct.derive(model=model, inputs=x, dims={}).formulas for _ in range(2))
    assert once == again and once["flops.forward"] == 6400


# Model FLOPs and hardware FLOPs


@pytest.mark.parametrize(("reentrant", "hardware"), [(False, 86_016), (True, 98_304)])
def test_checkpointing(reentrant, hardware):
    """BP-58: torch's early stop leaves out each block's last product; the reentrant variant repeats all."""
    model, x = Checkpointed(reentrant), randn(4, 16, grad=True)
    got = symacct.derive(model=model, inputs=x, dims={}).formulas
    assert (got["flops.step"], got["flops.hardware"]) == (73_728, hardware)


def test_fused_attention_recomputes_its_scores():
    """BP-59: one product more in backward, on hardware."""
    got = formulas("BP-59", "train")
    assert got["flops.hardware"] - got["flops.step"] == 2 * 2 * 4 * 16 * 16 * 8


# Symbols


def derive(model, inputs, mode="forward", **dims):
    return symacct.derive(model=model, inputs=inputs, dims=dims, mode=mode)


def test_fused_attention_step_in_symbols():
    """BP-23: https://github.com/Dao-AILab/flash-attention/issues/1525"""

    def inputs(B, h, T, d_h):
        return tuple(randn(B, h, T, d_h, grad=True) for _ in range(3))

    def model():
        return Call(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v))

    at = derive(model, inputs, mode="train", B=2, h=4, T=16, d_h=8).at(B=64, h=16, T=1024, d_h=64)
    assert at["flops.forward"] == 274_877_906_944
    assert (at["flops.step"], at["flops.hardware"]) == (824_633_720_832, 962_072_674_304)


def test_attention_term_has_both_products():
    """BP-28: https://github.com/pytorch/torchtitan/pull/4366: FLOPs of a token at length 4608, 24 heads of 128."""

    def inputs(T):
        return tuple(randn(1, 24, T, 128, grad=True) for _ in range(3))

    def model():
        return Call(lambda m, q, k, v: ((q @ k.mT).softmax(-1)) @ v)

    assert derive(model, inputs, mode="train", T=8).at(T=4608)["flops.step"] == 169_869_312 * 4608


def test_grouped_queries_shrink_keys_and_values():
    """BP-36: https://github.com/NVIDIA/Megatron-LM/pull/682"""

    def model(d, h, h_kv):
        narrow = d // h * h_kv
        return Call(
            lambda m, x: m.o(m.q(x)) + m.k(x).sum() + m.v(x).sum(),
            q=linear(d, d), k=linear(d, narrow), v=linear(d, narrow), o=linear(d, d),
        )  # fmt: skip

    ledger = derive(model, lambda d: randn(1, d), d=32, h=4, h_kv=2)
    assert ledger.at(d=4096, h=32, h_kv=8)["flops.forward"] == 83_886_080


def test_strided_convolution_in_symbols():
    """BP-54: https://github.com/TylerYep/torchinfo/issues/72"""
    ledger = derive(
        lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        lambda B, H, W: randn(B, 3, H, W),
        B=3, H=14, W=20,
    )  # fmt: skip
    for b, h, w in ((1, 7, 8), (2, 8, 8), (3, 9, 5)):
        expected = 216 * b * ((h - 1) // 2 + 1) * ((w - 1) // 2 + 1)
        assert ledger.at(B=b, H=h, W=w)["flops.forward"] == expected


def test_heads_of_fixed_width():
    """BP-90, BP-04: https://github.com/pytorch/pytorch/issues/126607"""
    ledger = derive(lambda: Attention(32, 4), lambda B, T: randn(B, T, 32), B=3, T=12)
    assert ledger.formulas["flops.forward"] == 8192 * B * T + 128 * B * T**2
    assert ledger.at(B=2, T=16)["flops.forward"] == ATTENTION
    assert [ledger.at(B=b, T=t)["flops.forward"] for b, t in ((1, 1), (3, 7))] == [8320, 190_848]


def test_positions_with_an_assert():
    """BP-91: https://github.com/pytorch/pytorch/issues/140011: the length stays a size."""

    def f(m, i):
        _, t = i.size()
        assert t <= 16
        return m.head(m.table(i) + m.places(torch.arange(t, device=i.device)))

    def model():
        return Call(f, table=nn.Embedding(32, 8), places=nn.Embedding(16, 8), head=nn.Linear(8, 32))

    ledger = derive(model, lambda B, T: torch.randint(0, 32, (B, T)), B=3, T=12)
    assert ledger.formulas["flops.forward"] == 512 * B * T
    assert [a.text for a in ledger.graph.assumptions] == ["T <= 16"]
    assert ledger.at(B=1, T=16)["flops.forward"] == 8192
    with pytest.raises(symacct.errors.SizeError, match="T = 17"):
        ledger.at(B=1, T=17)


@pytest.mark.parametrize("example", [1, 3])
def test_a_batch_of_one_stays_a_batch(example):
    """BP-92: https://github.com/pytorch/pytorch/issues/133653"""
    ledger = derive(lambda: nn.Linear(4, 4), lambda B: randn(B, 4), B=example)
    assert ledger.formulas["flops.forward"] == 32 * B


def test_windows_counted_by_a_float_division():
    """BP-95: https://github.com/pytorch/pytorch/pull/94365"""

    def f(m, x):
        b, H, W, C = x.shape
        s = 4
        w = x.view(b, H // s, s, W // s, s, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, C)
        w = m.inner(w)
        b2 = int(w.shape[0] / (H * W / s / s))
        back = w.view(b2, H // s, W // s, s, s, C).permute(0, 1, 3, 2, 4, 5)
        return back.reshape(b2, H, W, C)

    ledger = derive(lambda: Call(f, inner=nn.Linear(4, 4)), lambda B: randn(B, 8, 8, 4), B=3)
    assert ledger.formulas["flops.forward"] == 2048 * B


@pytest.mark.parametrize(("example", "expected"), [(12, 256 * B), (6, 32 * B * T)])
def test_a_branch_on_a_length(example, expected):
    """BP-96: https://github.com/pytorch/pytorch/issues/54602: the branch that was taken, said, and kept to."""

    def f(m, x):
        return m.inner(x[:, :8] if x.shape[1] > 8 else x)

    ledger = derive(lambda: Call(f, inner=nn.Linear(4, 4)), lambda B, T: randn(B, T, 4), B=3, T=example)
    assert ledger.formulas["flops.forward"] == expected
    inside, outside = (20, 8) if example == 12 else (8, 20)
    assert ledger.at(B=2, T=inside)["flops.forward"] == 2 * 32 * 8
    assert ledger.at(B=2, T=outside)["flops.forward"] == 2 * 32 * 8  # traced on the other side: 8 rows there too
    with pytest.raises(symacct.errors.SizeError, match=f"T = {outside}"):
        Ledger(loads(dumps(ledger.graph))).at(B=2, T=outside)


def test_rows_that_a_mask_picks_are_a_symbol():
    """BP-98: https://github.com/pytorch/pytorch/issues/180202"""

    def model():
        return Call(lambda m, x: m.inner(x[x[:, 0] > 0]), inner=nn.Linear(4, 4))

    ledger = derive(model, lambda B: randn(B, 4), B=5)
    forward = ledger.formulas["flops.forward"]
    (rows,) = forward.free_symbols
    assert forward == 32 * rows and rows.name not in ("B", "T")
    assert ledger.at(**{"B": 5, rows.name: 3})["flops.forward"] == 96
