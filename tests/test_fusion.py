"""Kernels, op by op and merged: bytes and launches counted by hand, and laws of every stored graph."""

from __future__ import annotations

import networkx as nx
import pytest
import sympy as sp
import torch
from function_models import STORED, Apply, both, forward, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import symacct
from symacct.account import add
from symacct.evaluation import evaluate
from symacct.plan.fusion import kernels, launches
from symacct.symbols import symbol

B, D = symbol("B"), symbol("d")


def chain(x):
    return torch.exp(torch.neg(torch.relu(x)))


def used_twice(x):
    return torch.relu(x) * torch.sigmoid(torch.relu(x))


def waits(x):
    y = torch.relu(x)
    return y + y.sum()


def in_place(x):
    y = torch.relu(x)
    y.add_(1)
    return torch.exp(y)


def through_views(x):
    return torch.exp(torch.relu(x).view(-1).view(x.shape))


def halves(x):
    y = torch.relu(x)
    return y[:, : y.shape[1] // 2] * y[:, y.shape[1] // 2 :]


def casts(x):
    return torch.relu(x).to(torch.float64).exp()


# n elements of 4 bytes: bytes op by op, bytes merged, launches of both, counted by hand
MERGED = [
    (chain, (3 * 8, 8, 3, 1)),
    (used_twice, (4 * 8 + 4, 8, 4, 1)),  # relu, relu, sigmoid, and a product that reads two
    (
        waits,
        (8 + 4 + 8, 8 + 4 + 8, 3, 3),
    ),  # the sum stands between: relu must be written for it, and read again
    (in_place, (24, 24, 3, 3)),
    (through_views, (16, 8, 2, 1)),
    (halves, (8 + 6, 8 + 6, 2, 2)),  # a half is not the element that relu has just made
    (casts, (8 + 12 + 16, 4 + 8, 3, 1)),
]


@pytest.mark.parametrize(("function", "expected"), MERGED, ids=lambda p: getattr(p, "__name__", ""))
def test_merging_counts_as_by_hand(function, expected):
    ledger = forward(function, lambda s: [(s["B"], 2 * s["d"])], {"B": 4, "d": 24}, None)
    plain, merged = kernels(ledger), kernels(ledger, fused=True)
    leading = [sp.expand(sum(k.bytes for k in found)).coeff(B * D) for found in (plain, merged)]
    assert leading == [2 * expected[0], 2 * expected[1]]
    assert (launches(plain), launches(merged)) == expected[2:]


def test_a_tensor_that_backward_reads_is_written_but_not_read_back():
    """y = exp(x), z = sigmoid(y), both kept: merged, forward reads x and writes y and z, 12 bytes of 16."""
    ledger = symacct.derive(
        model=lambda: Apply(lambda x: torch.sigmoid(torch.exp(x))),
        inputs=lambda B, d: torch.randn(B, d, requires_grad=True),
        dims={"B": 4, "d": 24},
    )
    first = [[k for k in kernels(ledger, fused) if k.last.phase == "forward"] for fused in (False, True)]
    assert [sum(k.bytes for k in found) for found in first] == [16 * B * D, 12 * B * D]


@pytest.mark.parametrize("name", STORED)
def test_merging_keeps_every_op_and_makes_no_circle(name):
    ledger = stored(name)
    plain, merged = both(name)
    names = [e.place.node.name for k in merged for e in k.entries]
    assert sorted(names) == sorted(k.last.place.node.name for k in plain)
    at = {e.place.node.name: i for i, k in enumerate(merged) for e in k.entries}
    waits = nx.DiGraph()
    order = {p.node.name: i for i, p in enumerate(ledger.graph.placed())}
    view = ledger.graph.to_networkx()
    for place in ledger.graph.ops:  # a view stands in the kernel whose result it shows
        made = [one for one, _, data in view.in_edges(place.node.name, data=True) if not data["back"]]
        if len(made) == 1 and place.node.name not in at:
            at[place.node.name] = at.get(made[0], made[0])
    for one, other, data in view.edges(data=True):
        if (
            not data["back"] and order[one] < order[other]
        ):  # what is made later comes from the iteration before
            waits.add_edge(at.get(one, one), at.get(other, other))
    waits.remove_edges_from(nx.selfloop_edges(waits))
    assert nx.is_directed_acyclic_graph(waits)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STORED), st.integers(1, 40), st.integers(2, 6))
def test_merging_moves_no_more(name, factor, depth):
    sizes = {n: info.traced_at * factor for n, info in stored(name).graph.symbols.items()} | {"L": depth}
    for one in both(name)[1]:
        if len(one.entries) > 1:
            for kind in ("read", "written"):
                merged, apart = (
                    evaluate(getattr(one, kind), sizes),
                    sum(evaluate(getattr(e, kind), sizes) for e in one.entries),
                )
                assert 0 <= merged <= apart, (one.last.place.node.name, kind)


@pytest.mark.parametrize("name", STORED)
def test_merging_computes_the_same(name):
    plain, merged = (add(k.product for k in found) + add(k.other for k in found) for found in both(name))
    assert plain == merged


def test_launches_are_a_formula_of_depth():
    """Each layer a product and a relu."""
    ledger = symacct.derive(
        model=lambda L, d: nn.Sequential(
            *(nn.Sequential(nn.Linear(d, d, bias=False), nn.ReLU()) for _ in range(L))
        ),
        inputs=lambda B, d: torch.randn(B, d),
        dims={"B": 4, "d": 24, "L": 3},
        mode="forward",
    )
    assert launches(kernels(ledger)) == 2 * symbol("L")
