"""Layers at the ends of a list that are of other widths than the rest, against runs of the model itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import symacct
from symacct.errors import SizeError
from symacct.outliers import ends_of
from symacct.records import Record, Trace, Value
from symacct.symbols import symbol
from symacct.tracing.run import trace_real
from symacct.verify_memory import live_peak


class Block(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """`where(i, L)` says which layers are g wide, not f."""

    def __init__(self, L: int, d: int, f: int, g: int, where) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(d, g if where(i, L) else f) for i in range(L))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


PLACES = {
    "first two": (lambda i, L: i < 2, 2),  # as first_k_dense_replace of DeepSeek's
    "both ends": (lambda i, L: i in (0, L - 1), 2),
}


@pytest.mark.parametrize("name", PLACES)
def test_layers_of_another_width_stand_apart(name):
    """By hand: a product of a layer is 2·B·d·width both ways, and its weights are 2·d·width + d + width."""
    where, count = PLACES[name]
    ledger = symacct.derive(
        model=lambda L, d, f, g: Stack(L, d, f, g, where),
        inputs=lambda B, d: torch.randn(B, d),
        dims={"B": 4, "L": 4, "d": 8, "f": 16, "g": 24},
        device="cpu",
    )
    B, L, d, f, g = (symbol(size) for size in "BLdfg")
    found = ledger.formulas
    widths = (L - count) * f + count * g
    assert (found["params.total"] - (2 * d + 1) * widths - L * d).expand() == 0
    assert (found["flops.forward"] - 4 * B * d * widths).expand() == 0
    assert (found["bytes.saved"] - 4 * B * (L * d + widths)).expand() == 0  # each layer's input, and its relu's output
    assert "bytes.peak" in found
    if name == "first two":  # at depth 1 there is one of them, and no layer less
        assert ledger.at(B=2, L=2, d=4, f=8, g=12)["params.total"] == 2 * (9 * 12 + 4)
        with pytest.raises(SizeError, match="L > 1"):
            ledger.at(B=2, L=1, d=4, f=8, g=12)
    sizes = {"B": 9, "L": 6, "d": 7, "f": 5, "g": 11}
    assert ledger.origin is not None
    assert ledger.at(**sizes)["bytes.peak"] == live_peak(trace_real(ledger.origin[0], "train", sizes))


def trace(widths: list[int]) -> Trace:
    made = Trace({"L": len(widths)})
    made.records = [
        Record("aten.mm", (), (Value(i, (width,), "float32", i),), "forward", f"layers.{i}.up", "")
        for i, width in enumerate(widths)
    ]
    return made


@pytest.mark.parametrize(
    ("widths", "ends"),
    [
        ([8, 4, 4, 4], {"layers": (1, 0)}),
        ([8, 6, 4, 4, 9], {"layers": (2, 1)}),
        ([4, 4, 4, 4], {}),
        ([4, 8, 12, 16], {}),  # that grow: a rule in the index, no outliers
        ([4, 8, 4, 8, 4, 8], {}),  # that alternate
        ([8, 4], {}),  # too few to tell which is the rule
    ],
)
def test_outliers_are_told_by_what_lies_between(widths, ends):
    assert ends_of(trace(widths)) == ends
