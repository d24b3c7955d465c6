"""Functions of tensors as models, and ledgers of the stored graphs, for tests of kernels and rooflines."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import symacct
from symacct.account import Ledger
from symacct.plan.fusion import kernels
from symacct.targets import graph_of

STORED = "gpt2 llama mixtral deepseek-mla bert t5 vit resnet50 unet mamba lstm mlp".split()


class Apply(nn.Module):
    """A function as a module, with a weight or two."""

    def __init__(self, function, **weights):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(*shape)) for name, shape in weights.items()}
        )

    def forward(self, *inputs):
        return self.function(*inputs, **self.weights)


def forward(function, inputs, dims, dtype="bf16", **weights):
    """The ledger of a function's forward pass; `inputs` and `weights` are shapes of given sizes."""

    def model(**sizes):
        return Apply(function, **{name: shape(sizes) for name, shape in weights.items()})

    def data(**sizes):
        return tuple(torch.randn(*shape) for shape in inputs(sizes))

    names = list(dims)
    return symacct.derive(
        model=named(model, names), inputs=named(data, names), dims=dims, mode="forward", dtype=dtype
    )


def named(function, names):
    """The function with these parameter names, as a model file would write it."""
    scope = {"function": function}
    exec(f"def call({', '.join(names)}): return function({', '.join(f'{n}={n}' for n in names)})", scope)
    return scope["call"]


@cache
def stored(name):
    return Ledger(graph_of(name))


@cache
def both(name):
    return kernels(stored(name)), kernels(stored(name), fused=True)
