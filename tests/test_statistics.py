"""A norm's mean and deviation: their dtype where activations are narrower than float32, by device and weights."""

from __future__ import annotations

import pytest
import torch
from alive_storages import most_alive
from small_models import Call
from torch import nn

import symacct
from symacct.oracles import measure

NORMS = {"layer": lambda: nn.LayerNorm(6), "group": lambda: nn.GroupNorm(2, 6), "batch": lambda: nn.BatchNorm1d(6)}
PLACES = {"layer": lambda B: 2 * B * 2, "group": lambda B: 2 * B * 2, "batch": lambda B: 2 * 6}  # means and deviations, for 2 tokens


def normed(m, x):
    return m.norm((x * 2).bfloat16()).float() * 3


def built(name, narrow):
    norm = NORMS[name]()
    return Call(normed, norm=norm.bfloat16() if narrow else norm)


def inputs(name):
    shape = (2, 6) if name == "layer" else (6, 2)
    return lambda B: torch.ones(B, *shape, requires_grad=True)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_as_wide_as_the_kernel_of_the_device_makes_them(name, narrow):
    """CPU: what a real run keeps. CUDA: 2 bytes more for each mean and deviation where the CPU keeps them in bfloat16,
    for `batch_norm_cuda`, `layer_norm_cuda` and `group_norm` there allocate them in the accumulation type.
    """
    found = {
        device: symacct.derive(model=lambda: built(name, narrow), inputs=inputs(name), dims={"B": 5}, device=device).at(B=7)["bytes.saved"]
        for device in ("cpu", "cuda")
    }
    assert found["cpu"] == measure(built(name, narrow), inputs(name)(7)).saved_bytes
    assert found["cuda"] - found["cpu"] == (2 * PLACES[name](7) if narrow else 0)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_the_peak_with_such_a_norm_is_that_of_a_real_step(name, narrow):
    """Gradients of float32 weights are float32, whatever they norm: storages of a real step, watched by weak references."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = NORMS[name]().bfloat16() if narrow else NORMS[name]()

        def forward(self, x):
            return self.norm((x * 2).bfloat16()).float() * 3

    shape = (2, 6) if name == "layer" else (6, 2)
    made = symacct.derive(model=Net, inputs=lambda B: torch.ones(B, *shape), dims={"B": 5}, device="cpu")
    for B in (3, 40):
        assert made.at(B=B)["bytes.peak"] == most_alive(Net(), torch.ones(B, *shape))
