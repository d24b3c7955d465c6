"""Models whose depth or length Python consumes, as functions of sizes: how many layers, of which kinds, how wide."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from bug_cases import Again, Scan
from small_models import Block, Call, LanguageModel, linear, randn
from torch import nn


class Stack(nn.Module):
    """Layers one after the other; `collect` says what becomes of all the states together."""

    def __init__(self, layers, collect=None):
        super().__init__()
        self.layers, self.collect = nn.ModuleList(layers), collect

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return self.collect(states) if self.collect else states[-1]


class DenseLists(nn.Module):
    """DenseNet's idea: layer i reads the input and what all layers before it made, d + i·g wide."""

    def __init__(self, L, d, g):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d + i * g, g) for i in range(L))
        self.head = nn.Linear(d + L * g, 3)

    def forward(self, x):
        parts = [x]
        for layer in self.layers:
            parts.append(F.relu(layer(torch.cat(parts, -1))))
        return self.head(torch.cat(parts, -1))


class Dense(DenseLists):
    """The same with one tensor that grows."""

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], -1)
        return self.head(x)


class Mamba(nn.Module):
    """Projection, selective scan, gate, projection."""

    def __init__(self, d, N):
        super().__init__()
        self.into, self.scan, self.out = linear(d, 2 * d), Scan(d, N), linear(d, d)

    def forward(self, x):
        x, gate = self.into(x).chunk(2, dim=-1)
        return self.out(self.scan(x) * F.silu(gate))


def mlp(d, f):
    return nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))


def alternating(L, d, f):
    return Stack([nn.Linear(d, d) if i % 2 == 0 else mlp(d, f) for i in range(L)])


def two_stacks(L, M, d, f):
    return nn.Sequential(Stack([mlp(d, f) for _ in range(L)]), Stack([nn.Linear(d, d) for _ in range(M)]))


def nested(L, M, d):
    return Stack([Stack([nn.Linear(d, d) for _ in range(M)]) for _ in range(L)])


def unequal_parts(L, d, f):
    """Each layer splits one product into parts of d and of f."""

    def layer():
        def call(m, x):
            a, b = m.both(x).split([d, f], -1)
            return a + m.back(F.relu(b))

        return Call(call, both=linear(d, d + f), back=linear(f, d))

    return Stack([layer() for _ in range(L)])


def frozen_below(L, d):
    """The first layer frozen, so that nothing flows into it."""
    stack = Stack([nn.Linear(d, d) for _ in range(L)])
    stack.layers[0].requires_grad_(False)
    return stack


def vectors(B, d):
    return randn(B, d)


def sequences(B, T, d):
    return randn(B, T, d)


def tokens(B, T, V):
    return torch.randint(V, (B, T))


# name: (model, inputs, example sizes, two points)
MODELS = {
    "alternating": (alternating, vectors, {"B": 3, "L": 4, "d": 8, "f": 12}, ({"L": 2}, {"L": 6, "d": 5})),
    "two stacks": (
        two_stacks, vectors, {"B": 3, "L": 2, "M": 3, "d": 8, "f": 12}, ({"L": 3, "M": 2}, {"L": 5, "M": 6, "f": 7}),
    ),
    "nested": (nested, vectors, {"B": 3, "L": 2, "M": 2, "d": 8}, ({"L": 2, "M": 3}, {"L": 5, "M": 4, "d": 6})),
    "growing widths": (Dense, vectors, {"B": 3, "L": 3, "d": 8, "g": 5}, ({"L": 2}, {"L": 6, "d": 9, "g": 4})),
    "all states stacked": (
        lambda L, d, f: Stack([mlp(d, f) for _ in range(L)], lambda states: torch.stack(states).mean(0)),
        vectors, {"B": 3, "L": 2, "d": 8, "f": 12}, ({"L": 3}, {"L": 6, "f": 5}),
    ),
    "all states returned": (
        lambda L, d: Stack([nn.Linear(d, d) for _ in range(L)], tuple),
        vectors, {"B": 3, "L": 2, "d": 8}, ({"L": 3}, {"L": 6, "d": 5}),
    ),
    "shared layer": (lambda L, d: Again(L, d), vectors, {"B": 3, "L": 3, "d": 8}, ({"L": 2}, {"L": 7, "d": 5})),
    "unequal parts": (unequal_parts, vectors, {"B": 3, "L": 2, "d": 8, "f": 12}, ({"L": 3}, {"L": 4, "d": 5})),
    "frozen below": (frozen_below, vectors, {"B": 3, "L": 3, "d": 8}, ({"L": 2}, {"L": 5, "d": 5})),
    "convolutions": (
        lambda L, c: Stack([nn.Conv2d(c, c, 3, padding=1) for _ in range(L)]),
        lambda B, c, H: randn(B, c, H, H), {"B": 2, "L": 2, "c": 4, "H": 6}, ({"L": 3}, {"L": 5, "c": 3}),
    ),
    "LSTM": (
        lambda d, f: nn.LSTM(d, f, batch_first=True),
        sequences, {"B": 2, "T": 4, "d": 6, "f": 5}, ({"T": 2}, {"T": 7, "d": 3, "f": 8}),
    ),
    "GRU both ways, two layers": (
        lambda d: nn.GRU(d, 5, 2, bidirectional=True, batch_first=True),
        sequences, {"B": 2, "T": 4, "d": 6}, ({"T": 3}, {"T": 6, "d": 4}),
    ),
    "scan": (Mamba, sequences, {"B": 2, "T": 4, "d": 6, "N": 3}, ({"T": 2}, {"T": 7, "d": 5, "N": 4})),
    "transformer": (
        LanguageModel, tokens, {"B": 2, "T": 6, "V": 20, "L": 2, "d": 16, "h": 4, "f": 24},
        ({"L": 3, "h": 1, "T": 1, "B": 1}, {"L": 5, "h": 8, "T": 9}),
    ),
    "transformer, fused": (
        lambda d, h, f, L: Stack([Block(d, h, f, "fused") for _ in range(L)]),
        sequences, {"B": 2, "T": 6, "L": 2, "d": 16, "h": 4, "f": 24}, ({"L": 3, "h": 2}, {"L": 4, "h": 8, "T": 9}),
    ),
}  # fmt: skip
PERIODS = {"alternating": {"L": 2}}
