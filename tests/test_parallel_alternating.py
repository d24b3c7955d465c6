"""Layers of two kinds in turn, whose parameters have one path: what ranks hold, counted on the model's own parameters."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from symacct.devices import card
from symacct.errors import Unsupported
from symacct.parallel import rank, read_degrees
from symacct.plan.search import search, ways
from symacct.plan.setting import Setting
from symacct.plan.shares import share
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_parallel import parallel_checks


class Wide(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.up, self.out = nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        return x + self.out(torch.tanh(self.up(x)))


class Narrow(nn.Module):
    """Its `out` has another shape than that of the wide kind."""

    def __init__(self, d, f):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, d, bias=False)

    def forward(self, x):
        return self.out(torch.sin(self.norm(x)))


class Sines(Wide):
    """Its parameters have the shapes of the wide kind's."""

    def forward(self, x):
        return self.out(torch.sin(self.up(x)))


class InTurn(nn.Module):
    def __init__(self, other, L, d, f):
        super().__init__()
        self.blocks = nn.ModuleList((other if k % 2 else Wide)(d, f) for k in range(L))
        self.head = nn.Linear(d, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


SIZES = {"B": 2, "T": 6, "L": 4, "d": 8, "f": 20}


@cache
def traced(other):
    made = model_source(
        other.__name__,
        dims={"B": 3, "T": 5, "L": 4, "d": 8, "f": 20},
        model=lambda L, d, f: InTurn(other, L, d, f),
        inputs=lambda B, T, d: torch.randn(B, T, d),
    )
    return made, Builder(made, "train", "cpu").graph(other.__name__)


def held(graph, text, **sizes):
    """Bytes of weights, of gradients, of each kind of stage."""
    mine = rank(graph, read_degrees(text))
    at = {symbol(name): value for name, value in {**SIZES, **mine.numbers, **sizes}.items()}
    return [(int(s.states.params.xreplace(at)), int(s.states.grads.xreplace(at))) for s in mine.shares]


def weighs(*parts):
    return 4 * sum(p.numel() for part in parts for p in part.parameters())


@pytest.mark.parametrize("other", [Narrow, Sines])
def test_each_rank_holds_a_gradient_for_each_weight(other):
    graph, real = traced(other)[1], InTurn(other, 4, 8, 20)
    whole, ends = weighs(real), [weighs(*real.blocks[:2]), weighs(*real.blocks[2:], real.head)]
    assert held(graph, "dp=2,zero=0") == [(whole, whole)]
    assert held(graph, "dp=2,zero=3") == [(whole // 2, whole // 2)]
    assert held(graph, "pp=2") == [(end, end) for end in ends]
    assert held(graph, "tp=2")[0][0] == held(graph, "tp=2")[0][1] < whole


@pytest.mark.parametrize(("other", "text"), [
    (Narrow, "pp=2,m=2"), (Narrow, "dp=2,zero=3"), (Sines, "pp=2,m=2"), (Sines, "dp=2,zero=3"), (Sines, "tp=2"),
])  # fmt: skip
def test_torch_divides_them_so(other, text):
    made, graph = traced(other)
    found = parallel_checks(made, graph, read_degrees(text), 5)
    assert found.checks and [c.quantity for c in found.checks if not c.equal] == []


def test_weights_of_one_name_and_several_shapes_are_not_compared_where_a_part_is_needed():
    made, graph = traced(Narrow)
    with pytest.raises(Unsupported, match="names weights of layers of several kinds"):
        parallel_checks(made, graph, read_degrees("tp=2"), 5)


def test_stages_that_cut_a_pair_are_refused():
    """Of six layers two stages would hold a wide, a narrow and a wide one, and a narrow, a wide and a narrow one."""
    conditions = rank(traced(Narrow)[1], read_degrees("pp=2")).conditions
    numbers = {symbol("p"): 2}
    assert all(a.holds({symbol("L"): 4, **numbers}) for a in conditions if a.left == symbol("L"))
    assert not all(a.holds({symbol("L"): 6, **numbers}) for a in conditions if a.left == symbol("L"))


def test_a_search_leaves_out_stages_that_cut_a_pair():
    graph = traced(Narrow)[1]
    small = card("peak=1e12,memory=3e6,bandwidth=1e11,link=2e10")
    setting = Setting(cards=4, batch=32, card=small, precision="fp32", efficiency=0.5, node=4, network=10**9)
    sizes = {name: value for name, value in SIZES.items() if name != "B"}
    found = search([share(graph, way, {**sizes, "B": 1}, "B") for way in ways((1,), [("none", None)], False)], setting, sizes)
    reasons = {int(p): found.reasons[r] for p, r in zip(found.columns["p"], found.reason, strict=True) if "groups of layers" in found.reasons[r]}
    assert set(reasons) == {4} and reasons[4] == "the stages do not divide 2 groups of layers"
