"""Queries, keys and values in one product, rotated widths and gathered heads: sizes against real runs and hand counts."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from symacct.account import Ledger
from symacct.domain import Domain
from symacct.graph import Assumption
from symacct.lifting import lift
from symacct.oracles_memory import saved_bytes
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source

d, h, h_kv = map(symbol, ("d", "h", "h_kv"))


class Fused(nn.Module):
    """As in Phi-3: one product, then a rotation of the first 2·ceil(d_h/2) channels, which are all where d_h is even."""

    def __init__(self, d: int, h: int, h_kv: int) -> None:
        super().__init__()
        self.h, self.h_kv, self.width = h, h_kv, d // h
        self.qkv = nn.Linear(d, h * self.width + 2 * (h_kv * self.width), bias=False)

    def forward(self, x):
        q = self.qkv(x)[..., : self.h * self.width].unflatten(-1, (self.h, self.width))
        half = torch.arange(0, self.width, 2).float()
        angles = torch.cat((half, half))
        turned = angles.shape[0]
        first, rest = q[..., :turned], q[..., turned:]
        return torch.cat((first * angles, rest), dim=-1)


class Gathered(nn.Module):
    """As in Falcon: the keys and values of all queries are the last two heads, picked by lists."""

    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h, self.width = h, d // h
        self.qkv = nn.Linear(d, d + 2 * self.width, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.qkv(x).view(B, T, self.h + 2, self.width)
        return q[..., :-2, :] * q[..., [-2], :] + q[:, :, [-1]]


def rows(B: int, T: int, d: int) -> torch.Tensor:
    return torch.ones(B, T, d)


@cache
def ledger(kind: type[nn.Module], **sizes: int) -> Ledger:
    source = model_source("m", dims={"B": 3, "T": 5, **sizes}, model=kind, inputs=rows)
    return Ledger(Builder(source, "train", "cpu").graph("m"))


def fused() -> Ledger:
    return ledger(Fused, d=32, h=8, h_kv=2)


def gathered() -> Ledger:
    return ledger(Gathered, d=32, h=4)


CASES = [(Fused, fused, {"B": 2, "T": 3, "d": 48, "h": 6, "h_kv": 3}), (Gathered, gathered, {"B": 2, "T": 3, "d": 30, "h": 5})]


@pytest.mark.parametrize(("kind", "of", "sizes"), CASES)
def test_a_fused_projection_costs_what_a_real_run_says(kind, of, sizes):
    told = of().at(**sizes)
    model = kind(**{n: v for n, v in sizes.items() if n not in "BT"})
    x = rows(sizes["B"], sizes["T"], sizes["d"])
    with FlopCounterMode(display=False) as counted:
        model(x)
    kept, _, _ = saved_bytes(model, torch.Tensor.sum, model, x)
    assert told["params.total"] == sum(p.numel() for p in model.parameters())
    assert told["flops.forward"] == counted.get_total_flops()
    assert told["bytes.saved"] == kept


@pytest.mark.parametrize("of", [fused, gathered])
def test_no_size_is_pinned(of):
    assert not [remark for remark in of().graph.remarks if "pinned" in remark]
    assert not [a for a in of().graph.assumptions if a.kind == "equal"]


def test_a_rotated_width_holds_where_heads_are_even():
    assert [(a.left, a.right) for a in fused().graph.assumptions if a.left == d] == [(d, 2 * h)]


def test_positions_in_a_list_are_kept_for_backward():
    """The int64 position of each of two gathered heads."""
    constant = gathered().formulas["bytes.saved"].subs(dict.fromkeys(map(symbol, "BTdh"), 0))
    assert constant == 16


def test_a_size_over_heads_is_lifted():
    """Rows of a fused weight counted by hand: of queries d, of keys and of values h_kv heads of d/h channels each."""
    points = [(160, 4, 2), (60, 30, 10), (66, 33, 11), (72, 36, 4), (396, 99, 9), (252, 63, 7), (220, 55, 5), (70, 35, 7), (48, 6, 2)]
    found = lift([{d: a, h: b, h_kv: c} for a, b, c in points], [a + 2 * c * (a // b) for a, b, c in points], [d, h, h_kv])
    assert found is not None and sp.expand(found - d - 2 * d * h_kv / h) == 0


def test_sums_that_cancel_in_a_floor():
    """(d + 2·d/h)/(h + 2) is d/h: at d = 20, h = 5 it is 28/7 = 4."""
    domain = Domain(("d", "h"), (Assumption("divides", d, h, ""),))
    assert domain.rewrite(sp.floor((d + 2 * sp.floor(d / h)) / (h + 2))) == d / h
    assert domain.rewrite(sp.Mod(sp.floor((d + 2 * sp.floor(d / h)) / (h + 2)), sp.floor(d / h))) == 0
