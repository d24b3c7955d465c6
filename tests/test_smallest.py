"""Peaks where regions repeat a few times, against storages that weak references watched in a real step."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from alive_storages import most_alive
from torch import nn

from symacct.account import Ledger
from symacct.smallest import conditions_of
from symacct.storage import dumps, loads
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source


class Shared(nn.Module):
    """The same two layers L times."""

    def __init__(self, d, f, L):
        super().__init__()
        self.L = L
        self.first, self.up, self.down = nn.Linear(d, d), nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.L):
            x = x + self.down(torch.tanh(self.up(x)))
        return x


class Thirds(nn.Module):
    """Every third layer is wide: what lies between two of them repeats L/3 - 1 times."""

    def __init__(self, d, f, L):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(d, n := f if k % 3 == 0 else d), nn.Tanh(), nn.Linear(n, d)) for k in range(L))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


DEPTHS = {Shared: (1, 2, 3, 4, 5), Thirds: (3, 6, 9, 12, 15)}
WIDTHS = [{"B": 30, "d": 40, "f": 3}, {"B": 90, "d": 3, "f": 2}, {"B": 3, "d": 5, "f": 70}]


@cache
def derived(kind):
    sizes = {"B": 2, "d": 8, "f": 12, "L": DEPTHS[kind][2]}
    source = model_source(kind.__name__, dims=sizes, model=kind, inputs=lambda B, d: torch.ones(B, d))
    object.__setattr__(source, "periods", {"L": DEPTHS[kind][0]})
    return Ledger(Builder(source, "train", "cpu").graph(kind.__name__))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", DEPTHS)
def test_the_peak_of_few_repetitions_is_that_of_the_step(kind, widths):
    stored = Ledger(loads(dumps(derived(kind).graph)))
    for depth in DEPTHS[kind]:
        real = most_alive(kind(widths["d"], widths["f"], depth), torch.ones(widths["B"], widths["d"]))
        assert derived(kind).at(L=depth, **widths)["bytes.peak"] == real
        if depth > 2:  # of one or two without a model at hand nothing need be told
            assert stored.at(L=depth, **widths)["bytes.peak"] == real


def test_forms_that_three_repetitions_do_not_reach_are_told_so():
    """Of three the second is the last but one: the form of neither is reached, so the largest form is too much there."""
    graph = derived(Shared).graph
    assert [a.text for a in conditions_of(graph, ["L"])] == ["L > 3"]
    sizes = {"B": 30, "d": 40, "f": 3, "L": 3}
    numbers = {symbol: sizes[symbol.name] for symbol in derived(Shared).formulas["bytes.peak"].free_symbols}
    assert derived(Shared).formulas["bytes.peak"].xreplace(numbers).doit() > most_alive(Shared(40, 3, 3), torch.ones(30, 40))
