"""The order in memory of results of transposed operands, against torch's real kernels."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import symacct
from symacct.symbols import symbol
from symacct.tracing.layouts import ORDERS

aten = torch.ops.aten
LAYOUTS = {
    "plain": lambda: torch.rand(3, 4, 5),
    "first two swapped": lambda: torch.rand(4, 3, 5).transpose(0, 1),
    "last two swapped": lambda: torch.rand(3, 5, 4).transpose(1, 2),
    "expanded": lambda: torch.rand(3, 1, 5).expand(3, 4, 5),
    "part of rows": lambda: torch.rand(3, 4, 10)[..., ::2],
}
CALLS = {
    aten.elu_backward: lambda g, x: (g, 1.0, 1.0, 1.0, True, x),
    aten.hardswish_backward: lambda g, x: (g, x),
    aten.hardsigmoid_backward: lambda g, x: (g, x),
    aten.hardtanh_backward: lambda g, x: (g, x, -1.0, 1.0),
    aten.leaky_relu_backward: lambda g, x: (g, x, 0.1, False),
    aten.logit_backward: lambda g, x: (g, x, 1e-3),
    aten.native_dropout_backward: lambda g, x: (g, x > 0.5, 2.0),
    aten.softplus_backward: lambda g, x: (g, x, 1.0, 20.0),
    aten.threshold_backward: lambda g, x: (g, x, 0.0),
    aten._log_softmax_backward_data: lambda g, x: (g, x, -1, torch.float32),
    aten.mse_loss_backward: lambda g, x: (g, x, x, 0),
    aten.smooth_l1_loss_backward: lambda g, x: (g, x, x, 0, 1.0),
    aten.huber_loss_backward: lambda g, x: (g, x, x, 0, 1.0),
}


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_results_lie_as_the_kernels_write_them(op):
    for of_grad, of_input in product(LAYOUTS, repeat=2):
        real = op(*CALLS[op](LAYOUTS[of_grad](), LAYOUTS[of_input]()))
        with FakeTensorMode():
            said = ORDERS[str(op)](CALLS[op](LAYOUTS[of_grad](), LAYOUTS[of_input]()), {})
        seen = (said.shape, said.stride(), said.dtype)
        assert seen == (real.shape, real.stride(), real.dtype), (of_grad, of_input)


def test_log_softmax_s_gradient_has_the_type_it_is_asked_for():
    with FakeTensorMode():
        wide = torch.rand(2, 3)
        said = ORDERS["aten._log_softmax_backward_data"]((wide, wide, -1, torch.float16), {})
    assert said.dtype == torch.float16  # CUDA's log-softmax of half-precision scores in float32


def test_every_order_is_compared():
    assert {str(op) for op in CALLS} == set(ORDERS)


class Swapped(nn.Module):
    """An activation of a transposed view, between two layers."""

    def __init__(self, d, act):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(d, d), act(), nn.Linear(d, d)

    def forward(self, x):
        return self.second(self.act(self.first(x).transpose(0, 1)))


class Copies(TorchDispatchMode):
    """Bytes of the copies that a run makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is aten.clone.default:
            self.bytes += out.untyped_storage().nbytes()
        return out


@pytest.mark.parametrize("act", [nn.ELU, nn.Hardswish, nn.ReLU6, nn.LeakyReLU])
def test_a_gradient_of_transposed_activations_is_copied_where_it_really_is(act):
    sizes = {"B": 3, "T": 5, "d": 7}
    ledger = symacct.derive(
        model=lambda d: Swapped(d, act), inputs=lambda B, T, d: torch.randn(B, T, d), dims=sizes, device="cpu"
    )
    places = [p for p in ledger.graph.ops if p.node.op == "aten.clone"]
    said = sum(ledger.graph.storages[out.value] for p in places for out in p.node.outputs)
    with Copies() as copies:
        Swapped(7, act)(torch.randn(3, 5, 7)).sum().backward()
    assert int(said.subs({symbol(n): v for n, v in sizes.items()})) == copies.bytes > 0
