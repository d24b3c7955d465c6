"""Parameters that work on one token, counted by hand, in models that pick k of E experts and in ones that do not."""

from __future__ import annotations

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from torch import nn

import symacct
from symacct.formula_reader import parse

DIMS = {"B": 2, "T": 10, "d": 16, "f": 24, "E": 4, "k": 2}


class Mixture(nn.Module):
    """All experts work on all tokens, with weight 0 for all but the k picked ones where they are masked."""

    def __init__(self, d, f, E, k, masked):
        super().__init__()
        self.k, self.router = k if masked else None, nn.Linear(d, E, bias=False)
        self.up, self.down = nn.Parameter(torch.ones(E, d, f)), nn.Parameter(torch.ones(E, f, d))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        if self.k is not None:
            most, which = torch.topk(weights, self.k, -1)
            weights = torch.zeros_like(weights).scatter(-1, which, most)
        hidden = torch.einsum("btd,edf->btef", x, self.up)
        return (torch.einsum("btef,efd->bted", F.gelu(hidden), self.down) * weights[..., None]).sum(2)


class Lookup(nn.Module):
    """E rows of a table, k of them looked up for each of B: no experts."""

    def __init__(self, E, d):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.ones(E, d)), nn.Linear(d, d)

    def forward(self, which):
        return self.out(self.table[which])


def derived(model, inputs, dims):
    return symacct.derive(model=model, inputs=inputs, dims=dims, mode="forward").formulas


@pytest.mark.parametrize(("masked", "active"), [(True, "E*d + 2*d*f*k"), (False, None)])
def test_experts_of_which_a_mask_leaves_k(masked, active):
    found = derived(lambda d, f, E, k: Mixture(d, f, E, k, masked), lambda B, T, d: torch.ones(B, T, d), DIMS)
    assert found.get("params.active") == (None if active is None else parse(active))
    assert sp.expand(found["params.total"] - parse("E*d + 2*E*d*f")) == 0


def test_sizes_that_are_named_E_and_k_make_no_experts():
    found = derived(Lookup, lambda B, E, k: torch.randint(E, (B, k)), {"B": 3, "E": 50, "k": 5, "d": 16})
    assert "params.active" not in found


class Batched(nn.Module):
    """One matrix and one bias for each expert, in one batched product."""

    def __init__(self, d, f, E, k):
        super().__init__()
        self.k, self.router = k, nn.Linear(d, E)
        self.up, self.bias = nn.Parameter(torch.ones(E, d, f)), nn.Parameter(torch.ones(E, 1, f))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        most, which = torch.topk(scores, self.k, -1)
        weights = torch.zeros_like(scores).scatter(-1, which, most)
        made = torch.baddbmm(self.bias, x.expand(len(self.up), *x.shape), self.up)
        return (made * weights.T[..., None]).sum(0)


@pytest.mark.parametrize("recipe", [None, "autocast"])
def test_a_cast_of_experts_is_the_experts(recipe):
    """d·f and a bias of f for each of the k picked ones; the router's E·d + E is for all tokens."""
    found = symacct.derive(
        model=Batched, inputs=lambda B, d: torch.ones(B, d), dims={"B": 3, "d": 8, "f": 6, "E": 4, "k": 2}, recipe=recipe
    ).formulas
    assert sp.expand(found["params.active"] - parse("E*d + E + k*(d*f + f)")) == 0
