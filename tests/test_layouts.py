"""The order in memory of results of transposed operands, against torch's real kernels."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import symacct
from symacct.symbols import symbol
from symacct.tracing.layouts import ON_CPU, ORDERS
from symacct.tracing.results import ROOMS, rooms
from symacct.tracing.shape_functions import result_of

aten = torch.ops.aten
LAYOUTS = {
    "plain": lambda: torch.rand(3, 4, 5),
    "first two swapped": lambda: torch.rand(4, 3, 5).transpose(0, 1),
    "last two swapped": lambda: torch.rand(3, 5, 4).transpose(1, 2),
    "expanded": lambda: torch.rand(3, 1, 5).expand(3, 4, 5),
    "part of rows": lambda: torch.rand(3, 4, 10)[..., ::2],
}
IMAGES = {
    "plain": lambda: torch.rand(2, 4, 3, 5),
    "channels last": lambda: torch.rand(2, 3, 5, 4).permute(0, 3, 1, 2),
    "first two swapped": lambda: torch.rand(4, 2, 3, 5).transpose(0, 1),
    "last two swapped": lambda: torch.rand(2, 4, 5, 3).transpose(2, 3),
}
PER_ROW, PER_CHANNEL = torch.rand(3, 4, 1), torch.rand(4)
STATISTICS = (PER_CHANNEL, PER_CHANNEL)
PAIRS = """
    complex polar copysign floor_divide heaviside logaddexp logaddexp2 logical_and logical_or logical_xor
    special_xlog1py xlogy ldexp hardswish_backward hardsigmoid_backward isin normal pow
"""
CALLS = {
    **{name: lambda x, y: (x, y) for name in PAIRS.split()},
    "div": lambda x, y: (x, y, {"rounding_mode": "floor"}),
    "clamp": lambda x, y: (x, x, y),
    "elu_backward": lambda g, x: (g, 1.0, 1.0, 1.0, True, x),
    "hardtanh_backward": lambda g, x: (g, x, -1.0, 1.0),
    "leaky_relu_backward": lambda g, x: (g, x, 0.1, False),
    "logit_backward": lambda g, x: (g, x, 1e-3),
    "native_dropout_backward": lambda g, x: (g, x > 0.5, 2.0),
    "softplus_backward": lambda g, x: (g, x, 1.0, 20.0),
    "threshold_backward": lambda g, x: (g, x, 0.0),
    "rrelu_with_noise": lambda x, _: (x, torch.rand(3, 4, 5), 0.1, 0.3, True),
    "rrelu_with_noise_backward": lambda g, x: (g, x, torch.rand(3, 4, 5), 0.1, 0.3, False, False),
    "rrelu_with_noise_backward, in training": lambda g, x: (g, torch.rand(3, 4, 5), x, 0.1, 0.3, True, False),
    "_prelu_kernel_backward": lambda g, x: (g, x, torch.rand(4, 1)),
    "log_sigmoid_forward": lambda x, _: (x,),
    "log_sigmoid_backward": lambda g, x: (g, x, torch.rand(3, 4, 5)),
    "binary_cross_entropy": lambda x, y: (x, y, None, 0),
    "binary_cross_entropy, weighted": lambda x, y: (x, torch.rand(3, 4, 5), y, 0),
    "binary_cross_entropy, summed": lambda x, y: (x, y),
    "binary_cross_entropy_backward": lambda g, x: (g, x, torch.rand(3, 4, 5), None, 0),
    "huber_loss": lambda x, y: (x, y, 0),
    "_log_softmax_backward_data": lambda g, x: (g, x, -1, torch.float32),
    "mse_loss_backward": lambda g, x: (g, x, x, 0),
    "smooth_l1_loss_backward": lambda g, x: (g, x, x, 0, 1.0),
    "huber_loss_backward": lambda g, x: (g, x, x, 0, 1.0),
    "poisson": lambda x, _: (x,),
    "uniform": lambda x, _: (x,),
    "pow, of a number": lambda x, _: (2, x),
    "nll_loss2d_forward": lambda x, y: (x.unsqueeze(1), (0 * y).long(), None, 0, -100),
    "native_layer_norm_backward": lambda g, x: (g, x, [5], PER_ROW, PER_ROW, x[0, 0], x[0, 0], [True] * 3),
    "_weight_norm_interface": lambda x, _: (x, torch.rand(3, 1, 1)),
    "native_batch_norm": lambda x, _: (x, *STATISTICS, *STATISTICS, True, 0.1, 1e-5),
    "_native_batch_norm_legit": lambda x, _: (x, *STATISTICS, *STATISTICS, True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training": lambda x, _: (x, *STATISTICS, *STATISTICS, 0.1, 1e-5),
    "_batch_norm_no_update": lambda x, _: (x, *STATISTICS, *STATISTICS, 0.1, 1e-5),
    "_batch_norm_with_update": lambda x, _: (x, *STATISTICS, *STATISTICS, 0.1, 1e-5),
    "native_batch_norm_backward": lambda g, x: (g, x, PER_CHANNEL, *STATISTICS * 2, True, 1e-5, [True] * 3),
    "batch_norm_backward": lambda g, x: (
        g, x, PER_CHANNEL, *STATISTICS * 2, True, 1e-5, [True] * 3, torch.empty(0, dtype=torch.uint8)
    ),
    "native_group_norm_backward": lambda g, x: (
        g, x, torch.rand(2, 2), torch.rand(2, 2), PER_CHANNEL, 2, 4, 15, 2, [True] * 3
    ),
}


def layouts_of(name):
    """Pairs of makers of operands that an op takes, with their names."""
    made = IMAGES if any(part in name for part in ("batch_norm", "group_norm")) else LAYOUTS
    return product(made.items(), repeat=2)


def outputs(result):
    return [out for out in tree_leaves(result) if isinstance(out, torch.Tensor)]


def described(out):
    """Shape, strides of what is longer than one, and type."""
    return out.shape, [s for n, s in zip(out.shape, out.stride(), strict=True) if n > 1], out.dtype


@pytest.mark.parametrize("name", CALLS)
def test_results_lie_as_the_kernels_write_them(name):
    op = name.split(",")[0]
    func, options = getattr(aten, op), {}
    for (first, one), (second, other) in layouts_of(name):
        args = CALLS[name](one(), other())
        if isinstance(args[-1], dict):
            *args, options = args
        real = func(*args, **options)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, tuple(args))
        with mode:
            said = result_of(f"aten.{op}", func, fakes, options, "cpu")
        assert [*map(described, outputs(said))] == [*map(described, outputs(real))], (first, second)


def test_log_softmax_s_gradient_has_the_type_it_is_asked_for():
    with FakeTensorMode():
        wide, op = torch.rand(2, 3, device="meta"), "aten._log_softmax_backward_data"
        said = result_of(op, aten._log_softmax_backward_data, (wide, wide, -1, torch.float16), {}, "cuda")
    assert said.dtype == torch.float16  # CUDA's log-softmax of half-precision scores in float32


def test_every_order_is_compared():
    assert {f"aten.{name.split(',')[0]}" for name in CALLS} == {*ORDERS, *ON_CPU}


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


@pytest.mark.parametrize("act", [nn.ELU, nn.Hardswish, nn.LogSigmoid, nn.RReLU])
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


ROOMY = {
    **{name: lambda: (torch.rand(3, 4), torch.rand(3, 4)) for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")},
    "mse_loss, unreduced": lambda: (torch.rand(3, 4), torch.rand(3, 4), 0),
    "binary_cross_entropy, summed": lambda: (torch.rand(3, 4), torch.rand(3, 4), torch.rand(4), 2),
    "col2im": lambda: (torch.rand(2, 8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "col2im, apart": lambda: (torch.rand(2, 8, 4), [7, 7], [2, 2], [1, 1], [0, 0], [4, 4]),
    "im2col": lambda: (torch.rand(2, 3, 5, 5), [2, 2], [1, 1], [0, 0], [1, 1]),
    "im2col, apart": lambda: (torch.rand(2, 3, 9, 9), [2, 2], [1, 1], [0, 0], [4, 4]),
    **{f"_embedding_bag, {mode} {last}": lambda mode=mode, last=last: (torch.rand(9, 4), torch.arange(6), torch.tensor([0, 2, 6]), False, mode, False, None, last) for mode in range(3) for last in (False, True)},
    "_embedding_bag_forward_only": lambda: (torch.rand(9, 4), torch.arange(6), torch.tensor([0, 2, 6]), False, 1),
    "huber_loss": lambda: (torch.rand(3, 4), torch.rand(3, 4)),
}


@pytest.mark.parametrize("name", ROOMY)
def test_storages_are_as_large_as_kernels_make_them(name):
    """What is written whole and then shrunk keeps its room: 12 numbers for a mean of 12."""
    func, args = getattr(aten, name.split(",")[0]), ROOMY[name]()
    real = outputs(func(*args))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, args)
        said = func(*fakes)
    named = dict(zip((a.name for a in func.default._schema.arguments), fakes, strict=False))
    room = {id(t): int(size) for t, size in rooms(f"aten.{name.split(',')[0]}", named, said, "cpu")}
    told = [room.get(id(t), t.numel() * t.element_size()) for t in outputs(said)]
    assert told == [t.untyped_storage().nbytes() for t in real]


def test_every_room_is_compared():
    assert {f"aten.{name.split(',')[0]}" for name in ROOMY} - {"aten.huber_loss"} == {*ROOMS}
