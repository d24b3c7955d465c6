"""Sizes that Python turns into numbers are lifted from runs: right, or refused, never met by chance."""

from __future__ import annotations

import pytest
import sympy as sp
import torch
from torch import nn

import symacct
from symacct.errors import TraceError
from symacct.lifting import lift
from symacct.symbols import symbol

B, d, f, L = map(symbol, "B d f L".split())


def test_a_plane_through_three_points_is_none_though_other_sizes_differ_too():
    """2·(d // 2) at three pairs (d, f), each in runs of several batches and depths: 16, 10 and 8 lie in a plane."""
    sizes = [(16, 24), (11, 5), (9, 17)]
    rows = [{B: b, d: x, f: y, L: n} for b, n in ((2, 3), (3, 4), (5, 5)) for x, y in sizes]
    values = [2 * (row[d] // 2) for row in rows]
    assert lift(rows, values, [B, L, d, f]) is None


def test_a_plane_through_points_enough_is_taken():
    sizes = [(16, 24), (11, 5), (9, 17), (7, 30), (3, 4), (20, 9)]
    rows = [{d: x, f: y} for x, y in sizes]
    assert sp.expand(lift(rows, [3 * row[d] + 2 * row[f] + 7 for row in rows], [d, f]) - (3 * d + 2 * f + 7)) == 0


def even(d, f):
    """Layers of 2·(d // 2) columns, whose sizes Python made numbers of."""
    d, f = len(range(d)), len(range(f))
    return nn.Sequential(nn.Linear(8, d), nn.Tanh(), nn.Linear(d, d // 2 * 2), nn.Tanh(), nn.Linear(d // 2 * 2, f))


def test_a_number_that_was_rounded_before_is_refused():
    with pytest.raises(TraceError, match=r"is no exact expression in .*: runs gave 16 \(.*d = 16.*\), \d+ \("):
        symacct.derive(model=even, inputs=lambda B: torch.ones(B, 8), dims={"B": 2, "d": 16, "f": 24})


def test_numbers_that_were_not_rounded_are_lifted_from_runs():
    def plain(d, f):
        d, f = len(range(d)), len(range(f))
        return nn.Sequential(nn.Linear(8, d), nn.Linear(d, 2 * f + d))

    made = symacct.derive(model=plain, inputs=lambda B: torch.ones(B, 8), dims={"B": 2, "d": 16, "f": 24})
    for sizes in ({"d": 7, "f": 5}, {"d": 78, "f": 24}):
        assert made.at(B=3, **sizes)["params.total"] == sum(p.numel() for p in plain(**sizes).parameters())


def chunked(B, d):
    """A loss in chunks of 64, whose length Python compares with the batch."""

    class Chunked(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(d, 48)

        def forward(self, x):
            return sum(torch.logsumexp(self.head(part), -1).sum() for part in x.split(64))

    return Chunked()


@pytest.mark.parametrize(("split", "told"), [(True, True), (False, False)])
def test_a_run_far_from_the_examples_tells_what_comparisons_with_a_number_hide(split, told):
    """At B = 8 there is one chunk; at 31 times that, four, one of which is alive at a time."""
    model = (lambda B, d: chunked(B, d)) if split else (lambda B, d: nn.Linear(d, len(range(B))))
    made = symacct.derive(model=model, inputs=lambda B, d: torch.ones(B, d), dims={"B": 8, "d": 16}, device="cpu")
    assert any("hold near the sizes that were run (B = 8)" in remark for remark in made.graph.remarks) is told
    assert any("B was pinned" in remark for remark in made.graph.remarks)


def test_numbers_with_fractions_are_lifted_where_they_are_exact():
    """1/d at powers of two, and d/4 + f/2, are exact as floats; 1/√d is not at most, and no expression of sizes."""
    rows = [{d: x, f: y} for x, y in ((4, 6), (8, 10), (16, 2), (2, 12), (32, 22), (64, 8))]
    assert lift(rows, [1 / row[d] for row in rows], [d, f]) == 1 / d
    assert lift(rows, [row[d] / 2 + row[f] for row in rows], [d, f]) == d / 2 + f
    assert lift(rows, [row[d] ** -0.5 for row in rows], [d, f]) is None
