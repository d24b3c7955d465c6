"""Sizes found from their values at few points: the right expression, or more points, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from symacct.account import Ledger
from symacct.domain import Domain
from symacct.errors import TraceError
from symacct.expressions import parse
from symacct.graph import Assumption
from symacct.lifting import fitted, lift
from symacct.quantities import Quantities, Sought
from symacct.symbols import symbol
from symacct.tracing import build
from symacct.tracing.model_file import model_source
from symacct.tracing.sampling import Sampling

B, T, d, h, g = map(symbol, "BTdhg")
NAMES = sorted((B, T, d, h, g), key=str)
GROUPED = Domain(tuple("BTdhg"), (Assumption("divides", d, h, ""), Assumption("divides", h, g, "")))
EXAMPLE = {"B": 2, "T": 5, "d": 24, "h": 6, "g": 3}


def numbers(truth, sizes):
    return int(truth.xreplace({symbol(name): value for name, value in sizes.items()}))


def observed(truth, points):
    rows = [{symbol(name): value for name, value in point.items()} for point in points]
    return rows, [numbers(truth, point) for point in points], NAMES


# Observations alone

# Two query heads to each of keys, and batches of two: B, h/g and 2 are the same number.
COINCIDENT = [
    {"B": 2, "T": 5, "d": 24, "h": 6, "g": 3},
    {"B": 2, "T": 7, "d": 40, "h": 10, "g": 5},
    {"B": 2, "T": 3, "d": 56, "h": 8, "g": 4},
]


@pytest.mark.parametrize("truth", ["h/g", "d*g/h", "d/h", "2*d*g", "B*d/h", "d + d*g/h", "3*T*d*g/h"])
def test_what_coincides_is_left_open_until_a_point_tells(truth):
    truth = parse(truth)
    assert lift(*observed(truth, COINCIDENT)) is None
    apart = COINCIDENT + [point for point in islice(GROUPED.points(1), 12) if len(set(point.values())) == 5]
    found = lift(*observed(truth, apart))
    assert found is not None and (found - truth).expand() == 0


def test_rivals_are_named():
    fit = fitted(*observed(h / g, COINCIDENT))
    assert fit.found[0] == 2 and B in fit.found and not fit.settled


# Runs that are drawn until one expression is left


@dataclass
class Counted(Sampling):
    """Runs of no model: each is its sizes."""

    drawn: list = field(default_factory=list)
    refuse: bool = False

    def _located(self, point, reasons):
        if self.refuse:
            return None
        self.met.append(point)
        self.drawn.append(point)
        return run_at(point)


def run_at(sizes):
    return SimpleNamespace(trace=SimpleNamespace(sizes=sizes), at={(0,): [((), RECORD)]})


RECORD = SimpleNamespace(op="aten.view", module="attn", source="model.py:7")


def quantities(points, seed=0, refuse=False):
    runs = [run_at(point) for point in points]
    source = SimpleNamespace(dims=EXAMPLE, periods={}, name="gqa")
    further = Counted(source, GROUPED, (), {}, {}, None, False, seed, list(points), refuse=refuse)
    return Quantities(runs[0], None, runs, GROUPED, (), further, lambda run: None), further


def sought(truth):
    return Sought((0,), (), lambda run, _: numbers(truth, run.trace.sizes), "a size")


TRUTHS = (
    "B d h/g d*g/h d*g d/h d/g B*h/g 2*d*g/h B*T*d*g/h 3*h/g 3*T*d*g/h 4*T*d*g/h 2*g+2 B*d*g/h d+h B+T g+1 "
    "d+d*g/h B+d/h 2*d/h+h d+2*d*g/h d/g+g B*d/h+B d**2/h+2*d 2*d**2/h+h B*d/h+4*B"
).split()


@pytest.mark.parametrize("truth", TRUTHS)
def test_a_known_size_is_found_from_runs_that_are_few_and_coincide(truth):
    """Of three runs that tell little, and of six seeds for those beyond."""
    truth = parse(truth)
    for seed in range(6):
        first = [EXAMPLE, *islice(GROUPED.points(seed), 2)] if seed % 2 else COINCIDENT
        asked, further = quantities(first, seed + 100)
        assert (asked.find(sought(truth)) - truth).expand() == 0
        assert len(further.drawn) <= 13


def test_the_next_run_is_one_at_which_two_expressions_differ():
    asked, further = quantities(COINCIDENT)
    assert asked.find(sought(h / g)) == h / g
    assert further.drawn[0]["h"] != 2 * further.drawn[0]["g"]


def test_two_expressions_that_no_run_tells_apart_are_refused():
    first = [
        {"B": 2, "T": t, "d": 4 * h, "h": h, "g": h // 2}
        for t, h in ((3, 6), (5, 8), (7, 10), (9, 14), (4, 22))
    ]
    asked, further = quantities(first, refuse=True)
    further.many = lambda count: []
    with pytest.raises(
        TraceError, match=r"aten.view in attn \(model.py:7\) is left open: d and 8\*g both give what all"
    ):
        asked.find(sought(d))


def test_what_a_later_run_refutes_does_not_stand():
    asked, _ = quantities(islice(GROUPED.points(3), 9))
    lied = Sought((0,), (), lambda run, _: run.trace.sizes["d"] + ("late" in run.trace.sizes), "a size")
    assert asked.find(lied) == d and asked.stand()
    assert asked.find(lied) == d
    asked.concrete.append(run_at(EXAMPLE | {"late": 1}))
    assert not asked.stand()


def test_further_runs_differ_from_those_before_in_sizes_and_quotients():
    _, further = quantities(COINCIDENT)
    for _ in range(3):
        further.one()
    ratios = [point["h"] // point["g"] for point in further.drawn]
    assert 2 not in ratios and len(set(ratios)) == 3


# A model


class Grouped(nn.Module):
    """Attention of h query heads and g of keys and values."""

    def __init__(self, d, h, g):
        super().__init__()
        self.width = d // h
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = nn.Linear(d, d * g // h, bias=False), nn.Linear(d, d * g // h, bias=False)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


# At the first three runs of these seeds d·h is 144, or h/g is 2.
@pytest.mark.parametrize("seed", [1476, 68])
def test_a_model_of_grouped_heads_is_lifted_from_numbers_alone(seed, monkeypatch):
    monkeypatch.setattr(build, "_SEED", seed)
    source = model_source("gqa", dims=EXAMPLE, model=Grouped, inputs=lambda B, T, d: torch.randn(B, T, d))
    graph = build.Builder(source, "forward", "cpu", sampled_in=GROUPED).graph("gqa")
    told = Ledger(graph, allow_unknown=True).at(B=3, T=7, d=60, h=12, g=4)
    made = Grouped(60, 12, 4)
    with (
        FlopCounterMode(display=False) as counted,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        made(torch.randn(3, 7, 60))
    assert told["params.total"] == sum(p.numel() for p in made.parameters())
    assert told["flops.forward"] == counted.get_total_flops()
