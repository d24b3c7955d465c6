"""One block called L times, and two towers of unlike depth: what ranks send and hold, by hand and by torch."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from small_models import Projected
from torch import nn

from symacct.formula_reader import parse
from symacct.parallel import rank, read_degrees
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_parallel import parallel_checks


class Block(nn.Module):
    def __init__(self, d, h, f):
        super().__init__()
        self.attn = Projected(d, h)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Shared(nn.Module):
    """Lan et al. 2020 (ALBERT): every layer has the same weights."""

    def __init__(self, V, L, d, h, f):
        super().__init__()
        self.L = L
        self.tokens, self.block, self.head = nn.Embedding(V, d), Block(d, h, f), nn.Linear(d, V)

    def forward(self, idx):
        x = self.tokens(idx)
        for _ in range(self.L):
            x = self.block(x)
        return self.head(x)


@cache
def shared():
    made = model_source(
        "shared",
        dims={"B": 2, "T": 6, "V": 10, "L": 2, "d": 8, "h": 4, "f": 14},
        model=Shared,
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
    )
    return made, Builder(made, "train", "cuda").graph("shared")


def wrong(found):
    return [(c.quantity, c.observed, c.expected, c.where) for c in found.checks if not c.equal]


def sent(text, kind, phase, graph):
    rows = [x for x in rank(graph, read_degrees(text)).traffic if (x.kind, x.phase) == (kind, phase)]
    return sum(x.count for x in rows), sum(x.payload for x in rows)


def test_a_shared_block_sums_as_often_as_one_of_its_own():
    """Two sums a layer each way, table and head one each, as with weights of their own."""
    made, graph = shared()
    assert sent("tp=2", "all_reduce", "forward", graph) == (
        parse("2*L + 1"),
        parse("4*B*T*d*(2*L + 1)").expand(),
    )
    assert sent("tp=2", "all_reduce", "backward", graph) == (
        parse("2*L + 1"),
        parse("4*B*T*d*(2*L + 1)").expand(),
    )
    for text in "tp=2", "tp=2,sp":
        assert not wrong(parallel_checks(made, graph, read_degrees(text), 18))


def test_gradients_of_shared_weights_are_summed_once_a_step():
    """Under sequence parallelism: two norms of two parameters, and two biases behind the scatter."""
    rows = [x for x in rank(shared()[1], read_degrees("tp=2,sp")).traffic if x.once]
    assert sum(x.count for x in rows) == 6 and sum(x.payload for x in rows) == parse("24*d")


def test_a_shared_block_is_gathered_in_every_call_and_scattered_once():
    """A block of 4·d·d + 2·d·f weights, 9·d + f biases and gains, in float32; table and head are the root."""
    made, graph = shared()
    block, root = parse("4*(4*d**2 + 2*d*f + 9*d + f)"), parse("4*(2*V*d + V)")
    assert sent("dp=2,zero=3", "all_gather", "forward", graph) == (
        parse("L + 1"),
        (parse("L") * block + root).expand(),
    )
    assert sent("dp=2,zero=3", "all_gather", "backward", graph) == (parse("L"), (parse("L") * block).expand())
    assert sent("dp=2,zero=3", "reduce_scatter", "backward", graph) == (2, (block + root).expand())
    held = rank(graph, read_degrees("dp=2,zero=3")).shares[0].gathered
    assert held == (2 * block + 2 * root).expand()  # no other layer is gathered ahead of one that is itself
    for text in "dp=2,zero=3", "dp=2,zero=3,tp=2,sp":
        assert not wrong(parallel_checks(made, graph, read_degrees(text), 18))


class Layer(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Towers(nn.Module):
    """Radford et al. 2021 (CLIP): two towers of unlike depth and width; their outputs meet."""

    def __init__(self, V, L, M, d, f, e, g):
        super().__init__()
        self.words, self.patches = nn.Embedding(V, d), nn.Linear(4, e, bias=False)
        self.text = nn.ModuleList(Layer(d, f) for _ in range(L))
        self.image = nn.ModuleList(Layer(e, g) for _ in range(M))
        self.p, self.q = nn.Linear(d, d, bias=False), nn.Linear(e, d, bias=False)

    def forward(self, idx, image):
        x, y = self.words(idx), self.patches(image)
        for layer in self.text:
            x = layer(x)
        for layer in self.image:
            y = layer(y)
        return self.p(x.mean(1)) @ self.q(y.mean(1)).t()


@cache
def towers():
    made = model_source(
        "towers",
        dims={"B": 2, "T": 6, "S": 8, "V": 10, "L": 2, "M": 3, "d": 8, "f": 14, "e": 12, "g": 18},
        model=Towers,
        inputs=lambda B, T, S, V: (torch.randint(V, (B, T)), torch.randn(B, S, 4)),
    )
    return made, Builder(made, "train", "cuda").graph("towers")


def test_two_towers_are_gathered_layer_by_layer():
    """L + M layers and the root; at most three of the larger tower's layer, as of no sizes it is known which that is."""
    made, graph = towers()
    text, image = parse("4*(2*d*f + 3*d + f)"), parse("4*(2*e*g + 3*e + g)")
    root = parse("4*(V*d + 4*e + d**2 + d*e)")
    assert sent("dp=2,zero=3", "all_gather", "backward", graph) == (
        parse("L + M"),
        (parse("L") * text + parse("M") * image).expand(),
    )
    assert sent("dp=2,zero=3", "reduce_scatter", "backward", graph)[0] == parse("L + M + 1")
    held = rank(graph, read_degrees("dp=2,zero=3")).shares[0].gathered
    for widths in ({"d": 8, "f": 14, "e": 12, "g": 18}, {"d": 64, "f": 256, "e": 12, "g": 18}):
        numbers = {symbol(k): sp.Integer(v) for k, v in {**widths, "V": 10}.items()}
        at = lambda expr, numbers=numbers: int(expr.xreplace(numbers))  # noqa: E731
        assert at(held) == 3 * max(at(text), at(image)) + 2 * at(root)
    assert not wrong(parallel_checks(made, graph, read_degrees("dp=2,zero=3"), 18))


class Apart(nn.Module):
    """Layers whose parts stand in lists of their own."""

    def __init__(self, V, L, d, f):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(L))
        self.ups, self.downs = (nn.ModuleList(nn.Linear(*w) for _ in range(L)) for w in ((d, f), (f, d)))

    def forward(self, idx):
        x = self.embed(idx)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


def test_parts_of_a_layer_in_lists_of_their_own_are_one_unit():
    made = model_source(
        "apart",
        dims={"B": 2, "T": 6, "V": 10, "L": 2, "d": 8, "f": 14},
        model=Apart,
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
    )
    graph = Builder(made, "train", "cuda").graph("apart")
    assert sent("dp=2,zero=3", "all_gather", "backward", graph)[0] == parse("L")
    assert not wrong(parallel_checks(made, graph, read_degrees("dp=2,zero=3"), 18))


class Grouped(nn.Module):
    """Shazeer 2019: g heads of keys and values for h of queries; scores and weights as products of their own."""

    def __init__(self, V, d, h, g, repeated):
        super().__init__()
        self.h, self.g, self.repeated = h, g, repeated
        self.tokens, self.head = nn.Embedding(V, d), nn.Linear(d, V, bias=False)
        self.q, self.o = (nn.Linear(d, d, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(d, d // h * g, bias=False) for _ in range(2))

    def attention(self, x):
        q = self.q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k, v = (p(x).unflatten(-1, (self.g, -1)).transpose(1, 2) for p in (self.k, self.v))
        if self.repeated:
            k, v = (y.repeat_interleave(self.h // self.g, 1) for y in (k, v))
        return self.o(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, idx):
        x = self.tokens(idx)
        return self.head(x + self.attention(x))


def grouped(repeated, **groups):
    given = {"B": 2, "T": 6, "V": 10, "d": 16, "h": 8, **groups}
    make = (
        (lambda V, d, h, g: Grouped(V, d, h, g, repeated))
        if groups
        else (lambda V, d, h: Grouped(V, d, h, 1, repeated))
    )
    inputs = lambda B, T, V: torch.randint(V, (B, T))  # noqa: E731
    made = model_source("grouped", dims=given, model=make, inputs=inputs)
    return made, Builder(made, "train", "cuda").graph("grouped")


@pytest.mark.parametrize("repeated", [False, True])
def test_one_head_of_keys_is_gathered_before_it_is_repeated(repeated):
    """B·T·d/h numbers each of keys and values, forward and, gathered again, backward; as many scattered."""
    made, graph = grouped(repeated)
    rows = [
        (x.kind, x.phase, x.count, x.payload)
        for x in rank(graph, read_degrees("tp=2,sp")).traffic
        if not x.once and str(x.payload) in ("4*B*T*d/h", "8*B*T*d/h")
    ]
    total = {kind: sum(row[3] for row in rows if row[:2] == kind) for kind in {row[:2] for row in rows}}
    assert total == dict.fromkeys(
        (("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")),
        parse("8*B*T*d/h"),
    )
    assert sent("tp=2,sp", "all_gather", "forward", graph) == (3, parse("4*B*T*d + 8*B*T*d/h"))
    found = parallel_checks(made, graph, read_degrees("tp=2"), 18)
    assert found.checks and not wrong(found) and {point["B"] for point in found.points} == {1}


def test_fewer_heads_of_keys_than_ranks_are_gathered_before_they_are_repeated():
    """Two heads of keys, of 2 numbers each, on four ranks: 4·B·T·2·2 bytes, not the 4·B·T·16 of the repeated ones."""
    graph = grouped(True, g=2)[1]
    sizes = {"B": 2, "T": 8, "V": 16, "d": 16, "h": 8, "g": 2}
    held = rank(graph, read_degrees("tp=4,sp"), sizes)
    assert {"k.weight", "v.weight"} <= set(held.whole)
    numbers = {symbol(k): sp.Integer(v) for k, v in sizes.items()}
    gathers = [x for x in held.traffic if x.kind == "all_gather" and x.phase == "forward"]
    assert sum(x.payload for x in gathers).xreplace(numbers) == 4 * 2 * 8 * (2 * 4)  # k and v
