"""Steps that add to gradients of earlier micro-batches, divided among ranks: what is sent, and how often, by
hand.
"""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from torch import nn

import symacct
from symacct.formula_reader import parse
from symacct.parallel import rank, read_degrees

DIMS = {"B": 2, "T": 6, "V": 12, "d": 8, "f": 20}


class Model(nn.Module):
    """A table of tokens and one of positions, a norm, an MLP without biases, and a head."""

    def __init__(self, V, T, d, f):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, d), nn.Parameter(torch.zeros(T, d))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, idx):
        x = self.tokens(idx) + self.positions
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


@cache
def traced(recipe=None, accumulate=True):
    return symacct.derive(
        model=Model,
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        dims=DIMS,
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
        recipe=recipe,
        accumulate=accumulate,
    ).graph


def sent(share, axis, op):
    """How often, and how many bytes by ring."""
    rows = [x for x in share.traffic if (x.axis, x.kind) == (axis, op)]
    return sp.Add(*(x.count for x in rows)), sp.Add(*(x.ring for x in rows))


def same(found, expected):
    assert sp.cancel(found - parse(expected)) == 0, found


# Under sequence parallelism a rank sees T/t positions of the norm, whole on every rank: what it has of the
# gradients of its weight and bias are summands, summed once in a step. Of the positions' table it has T/t
# rows of the gradient in each micro-batch, gathered once. Three sums of a number for each token are the
# loss's, float32, in each micro-batch.
def test_gradients_of_whole_weights_are_brought_together_once_in_a_step():
    share = rank(traced(), read_degrees("tp=2,sp,m=3"))
    count, sums = sent(share, "tp", "all_reduce")
    same(count, "2 + 3*m")
    same(sums, "2*4*(2*d + 3*B*T*m)*(t - 1)/t")
    once = [x for x in share.traffic if x.axis == "tp" and x.once and x.kind == "all_gather"]
    assert [(x.count, x.payload) for x in once] == [(1, parse("4*T*d"))]


def test_gradients_added_to_are_held_as_their_weights():
    share = rank(traced(), read_degrees("tp=2,sp,m=3")).shares[0]
    for held in (share.states.grads, share.states.params):
        same(held, "4*(2*V*d + 2*d*f)/t + 4*(T*d + 2*d)")


@pytest.mark.parametrize("parallel", ["tp=2", "tp=2,sp"])
def test_a_step_of_several_is_divided_as_a_step_of_one(parallel):
    one, several = (rank(traced(accumulate=added), read_degrees(parallel)) for added in (False, True))
    assert several.plan == one.plan
    assert {(x.kind, x.phase, x.count, x.payload) for x in several.traffic} == {
        (x.kind, x.phase, x.count, x.payload) for x in one.traffic
    }


# Hugging Face, The Ultra-Scale Playbook: bf16 gradients beside float32 buffers to which they are added, 2 +
# 4 bytes; the buffers are summed. Megatron-LM: buffers of 4 bytes alone. ZeRO: gradients of 2 bytes.
@pytest.mark.parametrize(
    ("recipe", "held", "summed"), [("playbook", 6, 4), ("megatron", 4, 4), ("mixed", 2, 2)]
)
def test_gradients_of_a_recipe_are_all_held_and_summed_where_they_add_up(recipe, held, summed):
    N = "(2*V*d + T*d + 2*d + 2*d*f)"
    graph = traced(recipe, False)
    share = rank(graph, read_degrees("dp=2,zero=2"))
    same(share.shares[0].states.grads, f"{held}*{N}/dp")
    same(sent(share, "dp", "reduce_scatter")[1], f"{summed}*{N}*(dp - 1)/dp")
    norms = [x for x in rank(graph, read_degrees("tp=2,sp")).traffic if x.once and x.kind == "all_reduce"]
    same(sp.Add(*(x.payload for x in norms)), f"{summed}*2*d")
