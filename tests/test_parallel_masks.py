"""Backward ops that leave out gradients nobody needs: of a step's input, of frozen weights. Their shares by hand, and by
what torch's own ranks do.
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
from symacct.parallel.degrees import Degrees
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_parallel import parallel_checks

DIMS = {"B": 2, "T": 8, "d": 8, "f": 16}
WAYS = ("tp=2", "tp=2,sp", "cp=2")


class First(nn.Module):
    """A layer that reads the step's input, and an MLP beside it."""

    def __init__(self, d, f, made):
        super().__init__()
        self.n, self.u, self.w = made(d), nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        return x + self.w(torch.relu(self.u(self.n(x))))


class Channels(nn.Module):
    """A layer whose channels come before the sequence."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


def frozen(layer, name):
    getattr(layer, name).requires_grad_(False)
    return layer


@cache
def first(name, wanted=False):
    made = LAYERS[name]
    return symacct.derive(
        model=lambda d, f: First(d, f, made), inputs=lambda B, T, d: torch.randn(B, T, d, requires_grad=wanted), dims=DIMS
    ).graph


def share(graph, text):
    return rank(graph, read_degrees(text))


# By hand, float32: the norm's input and its output, which are of T/t positions where the sequence is divided, two
# statistics of each position, and what relu leaves, whose f/t columns are of all positions.
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("tp=2", "8*B*T*d + 8*B*T + 4*B*T*f/t"),
        ("tp=2,sp", "8*B*T*d/t + 8*B*T/t + 4*B*T*f/t"),
        ("cp=2", "8*B*T*d/c + 8*B*T/c + 4*B*T*f/c"),
    ],
)
@pytest.mark.parametrize("wanted", [False, True])
def test_a_norm_of_the_input_keeps_its_part(text, kept, wanted):
    found = share(first("norm", wanted), text)
    assert sp.expand(found.shares[0].kept - parse(kept)) == 0


def test_gradients_of_a_norm_of_the_input_are_summed():
    """The gain and the shift of d numbers each, and w's bias; those of u are its own columns'."""
    sent = [x for x in share(first("norm"), "tp=2,sp").traffic if x.kind == "all_reduce"]
    assert sp.expand(sum(x.payload for x in sent) - parse("4*3*d")) == 0


def test_torch_divides_a_norm_of_the_input_alike():
    made = model_source(
        "first", dims=DIMS, model=lambda d, f: First(d, f, nn.LayerNorm), inputs=lambda B, T, d: torch.randn(B, T, d)
    )
    found = parallel_checks(made, Builder(made, "train", "cuda").graph("first"), Degrees(tensor=2, sequence=True), 18)
    assert [c for c in found.checks if not c.equal] == []
    seen = {c.quantity: c.observed for c in found.checks}
    B, T, d, f, t = (found.points[0][name] for name in "BTdft")
    part = B * (T // t)  # positions of which a rank keeps the norm's input and statistics; torch keeps what it gathers
    assert seen["bytes.saved"] == 4 * (part * (d + 2) + B * T * d + B * T * f // t)


LAYERS = {
    "norm": nn.LayerNorm,
    "norm without shift": lambda d: nn.LayerNorm(d, bias=False),
    "norm without gain": lambda d: frozen(nn.LayerNorm(d), "weight"),
    "norm with neither": lambda d: nn.LayerNorm(d, elementwise_affine=False),
    "root mean square": nn.RMSNorm,
    "batch norm": lambda d: Channels(nn.BatchNorm1d(d)),
    "group norm": lambda d: Channels(nn.GroupNorm(1, d)),
    "instance norm": lambda d: Channels(nn.InstanceNorm1d(d, affine=True)),
    "convolution": lambda d: Channels(nn.Conv1d(d, d, 3, padding=1)),
    "convolution without bias": lambda d: Channels(nn.Conv1d(d, d, 3, padding=1, bias=False)),
    "convolution, bias alone": lambda d: Channels(frozen(nn.Conv1d(d, d, 3, padding=1), "weight")),
    "transposed convolution": lambda d: Channels(nn.ConvTranspose1d(d, d, 3, padding=1)),
}


@pytest.mark.parametrize("text", WAYS)
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_gradients_are_as_large_as_what_they_are_of(name, text):
    """Whichever of them a mask leaves out. Under tp u's two and w's weight are 1/t of theirs."""
    for wanted in (False, True):
        graph = first(name, wanted)
        found = share(graph, text)
        trained = [p.node for p in found.graph.sources("parameter") if "trainable" in p.node.notes]
        assert sp.expand(found.shares[0].states.grads - sum(node.outputs[0].bytes for node in trained)) == 0


class Biased(nn.Module):
    """Attention with a learned bias of scores; what no projection makes of the input is the input."""

    def __init__(self, d, h, T, projected, heads, trained):
        super().__init__()
        self.h, self.o = h, nn.Linear(d, d, bias=False)
        self.made = nn.ModuleDict({name: nn.Linear(d, d, bias=False) for name in projected})
        self.bias = nn.Parameter(torch.randn(1, h if heads else 1, T, T), requires_grad=trained)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = ((self.made[n](x) if n in self.made else x).view(B, T, self.h, -1).transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.expand(B, self.h, T, T))
        return self.o(y.transpose(1, 2).reshape(B, T, d))


# Each rank has the gradients of its heads of queries, keys, values and of the bias's scores; context ranks those of
# their rows of queries and scores, and summands of keys and values.
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("projected", ["qkv", "kv", "v"])
def test_gradients_of_attention_are_divided_as_what_they_are_of(projected, heads, trained):
    graph = symacct.derive(
        model=lambda d, h, T: Biased(d, h, T, projected, heads, trained),
        inputs=lambda B, T, d: torch.randn(B, T, d), dims={"B": 2, "T": 8, "d": 64, "h": 8},
    ).graph
    by_heads = {"q": "B, h/t, T, d/h", "k": "B, h/t, T, d/h", "v": "B, h/t, T, d/h", "bias": "B, h/t, T, T"}
    by_rows = {"q": "B, h, T/c, d/h", "k": "B, h, T, d/h", "v": "B, h, T, d/h", "bias": "B, h, T/c, T"}
    for text, shapes in (("tp=2", by_heads), ("tp=2,sp", by_heads), ("cp=2", by_rows)):
        found = share(graph, text)
        (node,) = (p.node for p in found.graph.ops if "attention" in p.node.op and p.node.op.endswith("_backward"))
        expected = [shapes[name] for name in (*projected, *(["bias"] if trained else []))]
        assert [", ".join(map(str, out.shape)) for out in node.outputs] == expected
