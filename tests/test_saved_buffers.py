"""Buffers that backward refers to, against what autograd's own hooks are shown in a real forward pass.

The truth is counted here, by hooks that only note storages: those of buffers and plain tensors of the model are
one sum, parameters are left out, the rest is what is kept at a cost.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.symbols import symbol


class Convolved(nn.Module):
    def __init__(self, C: int, still: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.still = nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C), still

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.train(mode and not self.still)
        return self

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Block(nn.Module):
    """Attention with its own mask, rotary tables for more positions than are used, a table that is only added."""

    def __init__(self, T: int, d: int, how: str) -> None:
        super().__init__()
        self.project, self.how = nn.Linear(d, d), how
        self.register_buffer("mask", torch.ones(T, T, dtype=torch.bool).tril())
        self.register_buffer("table", torch.randn(2 * T, d), persistent=False)
        self.register_buffer("added", torch.randn(T, d))
        self.plain, self.idle = torch.ones(T, T), torch.ones(3, T)

    def attend(self, x):
        x = self.project(x)
        x = x * self.table[: x.shape[1]] + self.added
        scores = x @ x.transpose(1, 2)
        if self.how == "where":
            scores = torch.where(self.mask, scores, -1.0)
        elif self.how == "fill":
            scores = scores.masked_fill(~self.mask, -1.0)  # which keeps the inverse, made here
        else:
            scores = scores * self.plain
        return scores.softmax(-1) @ x

    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False) if self.how == "again" else self.attend(x)


class Stack(nn.Module):
    def __init__(self, L: int, T: int, d: int, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(T, d, how) for _ in range(L))
        self.places = nn.Embedding(T, d)
        self.register_buffer("ids", torch.arange(T))
        self.register_buffer("twice", torch.randn(d))

    def forward(self, x):
        x = (x + self.places(self.ids)) * self.twice
        for block in self.blocks:
            x = block(x)
        return x * self.twice


def hooked(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Bytes of the storages that autograd keeps: those of no parameter or buffer, and those of buffers."""
    seen: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        model.train()(x).sum()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in seen if t.numel()}
    params = {p.untyped_storage().data_ptr() for p in model.parameters()}
    plain = [v for m in model.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
    held = {t.untyped_storage().data_ptr() for t in [*model.buffers(), *plain]}
    return (
        sum(size for at, size in storages.items() if at not in params | held),
        sum(size for at, size in storages.items() if at in held),
    )


HOW = ("where", "fill", "plain")


@cache
def stacked(how: str) -> symacct.api.Ledger:
    return symacct.derive(
        model=lambda L, T, d: Stack(L, T, d, how),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        dims={"B": 3, "T": 6, "d": 8, "L": 3},
        device="cpu",
    )


def told(ledger: symacct.api.Ledger, **sizes: int) -> tuple[int, int]:
    at = {symbol(name): value for name, value in sizes.items()}
    found = (ledger.formulas.get(key, 0) for key in ("bytes.saved", "bytes.saved_buffers"))
    saved, buffers = (value.xreplace(at) if value else 0 for value in found)
    return int(saved), int(buffers)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("sizes", [{"B": 3, "T": 6, "d": 8, "L": 3}, {"B": 2, "T": 9, "d": 5, "L": 7}])
def test_buffers_of_layers_equal_what_hooks_see(how, sizes):
    model = Stack(sizes["L"], sizes["T"], sizes["d"], how)
    expected = hooked(model, torch.randn(sizes["B"], sizes["T"], sizes["d"]))
    assert told(stacked(how), **sizes) == expected


def test_buffers_have_a_formula_of_their_own():
    """By hand: per layer the mask (a byte each) and the whole table (float32); once the ids and what scales."""
    found = stacked("where").formulas["bytes.saved_buffers"]
    B, T, d, L = (symbol(name) for name in ("B", "T", "d", "L"))
    assert (found - (L * (T * T + 8 * T * d) + 8 * T + 4 * d)).expand() == 0
    assert B not in found.free_symbols


@pytest.mark.parametrize("still", [False, True])
def test_running_statistics_of_batch_norm(still):
    ledger = symacct.derive(
        model=lambda C: Convolved(C, still),
        inputs=lambda B, H: torch.randn(B, 3, H, H),
        dims={"B": 4, "C": 6, "H": 8},
        device="cpu",
    )
    for sizes in ({"B": 4, "C": 6, "H": 8}, {"B": 2, "C": 10, "H": 12}):
        expected = hooked(Convolved(sizes["C"], still), torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]))
        assert told(ledger, **sizes) == expected
        assert expected[1] == 2 * 4 * sizes["C"]  # running_mean and running_var


def test_a_recomputed_part_keeps_no_buffer():
    found = stacked("again")
    whole = stacked("plain")
    T, d = symbol("T"), symbol("d")
    assert found.formulas["bytes.saved_buffers"] == 8 * T + 4 * d  # the ids, and what scales outside
    assert whole.formulas["bytes.saved_buffers"] != found.formulas["bytes.saved_buffers"]


def test_verify_compares_buffers_too():
    checks = [c for c in stacked("where").verify(points=1).checks if c.quantity == "bytes.saved_buffers"]
    assert checks and all(c.equal and c.observed for c in checks)
    assert any("hooks" in c.oracle for c in checks)
