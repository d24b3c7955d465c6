"""Peaks where regions repeat a few times, against storages that weak references watched in a real step."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from alive_storages import most_alive
from torch import nn

from symacct.account import Ledger
from symacct.devices import card
from symacct.errors import SizeError
from symacct.plan.planning import plan
from symacct.plan.question import Case, Question
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


def planned(sizes, solve=None, memory=90000, kind=Shared):
    ledger = derived(kind)
    case = Case(ledger, ledger.formulas, lambda expr: expr, sizes, ledger.graph.assumptions)
    return plan(case, Question(card(f"name=Tiny,fp32=1e12,memory={memory},bandwidth=1e11"), solve=solve), tried=False)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_plan_of_few_repetitions_needs_what_the_step_does(depth):
    sizes = {"B": 30, "d": 40, "f": 3, "L": depth}
    found = planned(sizes)
    assert found.fit.need == most_alive(Shared(40, 3, depth), torch.ones(30, 40)) and found.demand.exact
    assert found.solution is None and any("the largest B is not solved for" in note for note in found.notes)


def test_a_size_is_not_solved_for_where_no_form_tells_the_peak():
    with pytest.raises(SizeError, match="forms of the peak do not hold"):
        planned({"d": 40, "f": 3, "L": 2}, "B")
    deep = planned({"d": 40, "f": 3, "L": 5}, "B").solution.solved
    peaks = [most_alive(Shared(40, 3, 5), torch.ones(batch, 40)) for batch in (deep.number, deep.number + 1)]
    assert peaks[0] <= 90000 < peaks[1]


@pytest.mark.parametrize("kind", DEPTHS)
@pytest.mark.parametrize("spare", [-1, 0])
def test_the_deepest_model_that_fits_is_found_where_layers_hardly_repeat(kind, spare):
    sizes = {"B": 30, "d": 40, "f": 3}
    peaks = {depth: most_alive(kind(40, 3, depth), torch.ones(30, 40)) for depth in DEPTHS[kind]}
    for memory in list(peaks.values())[:4]:
        fitting = [depth for depth, peak in peaks.items() if peak <= memory + spare]
        found = planned(sizes, "L", memory + spare, kind).solution.solved
        assert found.number == max(fitting, default=None)
        if not fitting:
            assert found.short == 1 and found.smallest == min(peaks)
