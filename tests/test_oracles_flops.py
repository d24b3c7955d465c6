"""FLOPs that the oracle measures against counts done by hand. A multiply-add is 2 FLOPs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from symacct.oracles import PHASES, measure


class Call(nn.Module):
    """A module that calls `function(self, *inputs)`, with the given children and parameters."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def randn(*shape, grad=False, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def mlp(middle=None):
    return nn.Sequential(nn.Linear(16, 32), middle or nn.ReLU(), nn.Linear(32, 8))


class Attention(nn.Module):
    """Width 32, four heads, one fused product q·kᵀ·v."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


# FLOPs that torch's counter does not see


def test_fused_attention_is_two_products_forward_four_backward_five_in_hardware():
    inputs = tuple(randn(2, 4, 16, 8, grad=True) for _ in range(3))
    run = measure(Call(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v)), inputs)
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert run.flops_forward == 2 * product == 65536
    assert run.flops_backward == 4 * product
    assert run.flops_hardware_backward == 5 * product
    assert [note.split(":")[0] for note in run.notes] == ["scaled_dot_product_attention"]


@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.5}, {"scale": 1.0}])
def test_attention_counts_the_full_square_whatever_its_options(options):
    inputs = tuple(randn(2, 4, 16, 8) for _ in range(3))
    attention = Call(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, **options))
    run = measure(attention, inputs, mode="forward")
    assert run.flops_forward == 65536


def test_query_heads_set_the_count_of_grouped_attention():
    def grouped(_, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    run = measure(Call(grouped), (randn(2, 8, 16, 8), randn(2, 2, 16, 8, grad=True), randn(2, 2, 16, 8)))
    assert run.flops_forward == 4 * 2 * 8 * 16 * 16 * 8


def test_attention_block_has_its_hand_count_in_training():
    run = measure(Attention(), randn(2, 16, 32))
    projections, attention = (2 * 32 * 32 * 96, 2 * 32 * 32 * 32), 4 * 2 * 4 * 16 * 16 * 8
    assert run.flops_forward == sum(projections) + attention == 327680
    # the weights of qkv, both gradients of out, four products of attention; x needs none
    assert run.flops_backward == projections[0] + 2 * projections[1] + 2 * attention == 786432 - 327680
    assert run.flops_hardware_backward == run.flops_backward + attention // 2


def test_multihead_attention_counts_in_eval_although_frozen():
    attention = nn.MultiheadAttention(32, 4, batch_first=True).requires_grad_(False)
    model = Call(lambda m, x: m.attention(x, x, x)[0], attention=attention)
    run = measure(model, randn(2, 10, 32), mode="forward")
    assert run.flops_forward == 2 * 20 * 32 * 96 + 4 * 2 * 10 * 10 * 32 + 2 * 20 * 32 * 32 == 189440
    assert run.params_total == 4224
    assert run.params_trainable == 0
    assert any(note.startswith("nn.MultiheadAttention") for note in run.notes)


def test_lstm_counts_four_gates_a_step():
    run = measure(nn.LSTM(10, 20), randn(5, 3, 10))
    assert run.flops_forward == 2 * 4 * 20 * (10 + 20) * 5 * 3 == 72000
    # each product's weight gradient, and the gradient of every hidden state: the given first one needs none
    assert run.flops_backward == 72000 + 2 * 4 * 20 * 20 * 4 * 3
    assert any(note.startswith("nn.LSTM") for note in run.notes)


@pytest.mark.parametrize(("groups", "step"), [(8, 86400), (4, 172800), (1, 691200)])
def test_grouped_convolution_backward_is_twice_forward(groups, step):
    model = nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    run = measure(model, randn(2, 8, 10, 10, grad=True))
    assert run.flops_forward == 2 * (2 * 10 * 10) * 8 * (8 // groups) * (3 * 3) == step // 3
    assert run.flops_backward == 2 * run.flops_forward
    assert bool(run.notes) == (groups > 1)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_counts_input_positions(groups):
    model = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=groups, bias=False)
    run = measure(model, randn(2, 4, 5, 5))
    assert run.flops_forward == 2 * (2 * 5 * 5) * 4 * (6 // groups) * (2 * 2) == 9600 // groups
    assert run.flops_backward == 9600 // groups
    assert measure(model, randn(2, 4, 5, 5, grad=True)).flops_backward == 2 * 9600 // groups


def test_strided_dilated_convolution_gradients_each_cost_a_forward():
    run = measure(nn.Conv1d(3, 5, 3, stride=2, dilation=2, padding=1), randn(2, 3, 11, grad=True))
    assert run.flops_forward == 2 * 2 * 5 * 5 * 3 * 3  # floor((11 + 2 - 4 - 1) / 2) + 1 = 5 positions
    assert run.flops_backward == 2 * run.flops_forward


def test_vector_and_added_products_count():
    def family(_, c, a, b, d, e, m, v):
        return torch.baddbmm(c, a, b).sum() + torch.addbmm(d, a, b).sum() + torch.addmv(e, m, v).sum()

    shapes = (2, 3, 5), (2, 3, 4), (2, 4, 5), (3, 5), (4,), (4, 8), (8,)
    run = measure(Call(family), tuple(randn(*shape) for shape in shapes), mode="forward")
    assert run.flops_forward == 2 * 2 * 3 * 4 * 5 + 2 * 2 * 3 * 4 * 5 + 2 * 4 * 8 == 544


def test_matmul_counts_at_every_rank():
    def family(_, a, b, m, x, y):
        return (a @ b) + (m @ b).sum() + (x @ y).sum() + torch.vdot(a, b)

    shapes = (8,), (8,), (4, 8), (2, 1, 4, 8), (3, 8, 5)
    run = measure(Call(family), tuple(randn(*shape) for shape in shapes), mode="forward")
    assert run.flops_forward == 2 * 8 + 2 * 4 * 8 + 2 * (2 * 3) * 4 * 8 * 5 + 2 * 8


def test_gradient_of_a_matrix_times_a_vector():
    run = measure(Call(lambda _, m, v: m @ v), (randn(4, 8, grad=True), randn(8, grad=True)))
    assert run.flops_forward == 2 * 4 * 8
    assert run.flops_backward == 2 * 4 * 8  # of the vector; the matrix's is an elementwise outer product


@pytest.mark.parametrize(
    ("left", "right", "offsets", "flops"),
    [
        ((16, 32), (4, 32, 64), (4, 8, 12, 16), 2 * 16 * 32 * 64),  # rows in four groups
        ((4, 16, 32), (32, 64), (16, 32, 48, 64), 2 * 16 * 32 * 64),  # columns in four groups
        ((16, 32), (32, 64), (8, 16, 24, 32), 2 * 16 * 32 * 64),  # the inner dimension in four groups
        ((4, 16, 32), (4, 32, 64), None, 4 * 2 * 16 * 32 * 64),  # a plain batch
    ],
)
def test_grouped_products_count_each_row_once(left, right, offsets, flops):
    ends = None if offsets is None else torch.tensor(offsets, dtype=torch.int32)
    inputs = randn(*left, dtype=torch.bfloat16), randn(*right, dtype=torch.bfloat16)
    run = measure(Call(lambda _, a, b: F.grouped_mm(a, b, offs=ends)), inputs, mode="forward")
    assert run.flops_forward == flops


def test_grouped_product_backward_is_twice_forward():
    ends = torch.tensor([4, 8, 12, 16], dtype=torch.int32)
    inputs = randn(16, 32, dtype=torch.bfloat16, grad=True), randn(4, 32, 64, dtype=torch.bfloat16, grad=True)
    run = measure(Call(lambda _, a, b: F.grouped_mm(a, b, offs=ends)), inputs, loss=lambda y: (y * y).sum())
    assert (run.flops_forward, run.flops_backward) == (65536, 2 * 65536)


def test_integer_product_counts():
    inputs = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 32, dtype=torch.int8)
    run = measure(Call(lambda _, a, b: torch._int_mm(a, b)), inputs, mode="forward")
    assert run.flops_forward == 2 * 32 * 16 * 32


def test_bilinear_contracts_one_input_after_the_other():
    run = measure(nn.Bilinear(4, 5, 6, bias=False), (randn(3, 4, grad=True), randn(3, 5, grad=True)))
    full = 2 * 3 * 6 * 4 * 5  # batch, out, first, second
    assert run.flops_forward == full + 2 * 3 * 6 * 5  # over the first input, then over the second
    assert run.flops_backward == full + (full + 2 * 3 * 4 * 5) + (full + 2 * 3 * 6 * 5)


def test_convolution_with_time_first_counts_through_its_in_place_products():
    inputs = randn(7, 2, 3, grad=True), randn(3, 3, 4), randn(4)
    run = measure(Call(lambda _, x, w, b: torch.conv_tbc(x, w, b)), inputs)
    assert run.flops_forward == 2 * (5 * 2) * 3 * 3 * 4
    assert run.flops_backward == 2 * run.flops_forward  # its kernel makes both gradients, asked or not


def test_an_op_that_nothing_counts_is_named():
    run = measure(Call(lambda _, a: torch.linalg.inv(a)), torch.eye(4), mode="forward")
    assert run.notes == ("aten.linalg_inv_ex: may hold products; nothing counts them",)


# Backward, recomputation, loss, optimizer


class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        segments = (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3))
        self.layers = nn.ModuleList(segments)
        self.options = options

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, **self.options)
        return x


@pytest.mark.parametrize(
    ("reentrant", "recomputed"),
    # without re-entering, each segment stops before its last product
    [(False, 3 * 2 * 4 * 16 * 32), (True, 3 * 4 * 4 * 16 * 32)],
)
def test_recomputation_counts_in_hardware_only(reentrant, recomputed):
    run = measure(Checkpointed(use_reentrant=reentrant), randn(4, 16, grad=True))
    assert run.flops_forward == 3 * (2 * 4 * 16 * 32 + 2 * 4 * 32 * 16) == 24576
    assert run.flops_forward + run.flops_backward == 73728
    assert run.flops_hardware_backward - run.flops_backward == recomputed
    if not reentrant:
        assert run.flops_forward + run.flops_hardware_backward == 86016
    assert {op[1] for op in run.op_sequence} == {*PHASES}
    assert (run.saved_bytes, run.saved_input_bytes) == (3 * 4 * 16 * 4, 4 * 16 * 4)  # each segment's input


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the inner one, first time
def test_nested_recomputation_counts_each_rerun():
    def segment(m, x):
        y = checkpoint(lambda t: m.inner(t).relu(), m.outer(x), use_reentrant=True)
        return y * 2

    parts = {"inner": nn.Linear(8, 8, bias=False), "outer": nn.Linear(8, 8, bias=False)}
    model = Call(lambda m, x: checkpoint(lambda t: segment(m, t), x, use_reentrant=True), **parts)
    run = measure(model, randn(4, 8, grad=True))
    product = 2 * 4 * 8 * 8
    assert run.flops_forward == 2 * product
    assert run.flops_backward == 4 * product
    assert run.flops_hardware_backward == (4 + 2 + 1) * product  # both again, then the inner one once more


def test_selective_checkpointing_keeps_what_its_policy_keeps():
    def keep_products(ctx, op, *args, **kwargs):
        keep = op == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    run = measure(Checkpointed(use_reentrant=False, context_fn=contexts), randn(4, 16, grad=True))
    assert run.flops_hardware_backward == run.flops_backward == 2 * 24576
    # inputs of three segments, and the products inside: widths 32 and 16, the last segment's input shared
    assert run.saved_bytes == 4 * 4 * (16 + 3 * (32 + 16))


def test_first_layer_needs_no_input_gradient():
    assert measure(mlp(), randn(4, 16)).flops_backward == 14336 - 6144
    assert measure(mlp(), randn(4, 16, grad=True)).flops_backward == 18432 - 6144


@pytest.mark.parametrize(("frozen", "step"), [(0, 6144 + 2048), (2, 6144 + 2048 + 4096)])
def test_frozen_layers_cost_no_weight_gradient(frozen, step):
    model = mlp()
    model[frozen].requires_grad_(False)
    run = measure(model, randn(4, 16))
    assert run.flops_forward + run.flops_backward == step
    kept = [p for p in model.parameters() if p.requires_grad]
    assert run.grads_bytes == 4 * run.params_trainable == 4 * sum(p.numel() for p in kept)
    assert run.optimizer_bytes == 2 * run.grads_bytes + 4 * len(kept)


def test_everything_frozen_has_no_backward():
    run = measure(mlp().requires_grad_(False), randn(4, 16))
    assert run.flops_forward == 6144
    assert not (run.flops_backward or run.grads_bytes or run.optimizer_bytes or run.saved_bytes)


def test_forward_includes_the_loss():
    run = measure(mlp(), randn(4, 16), loss=lambda y: (y @ y.t()).sum())
    assert run.flops_forward == 6144 + 2 * 4 * 8 * 4
    assert [op[0] for op in run.op_sequence if op[1] == "loss"] == ["aten.t", "aten.mm", "aten.sum"]


def test_products_of_the_optimizer_are_its_own():
    class Muonlike(torch.optim.SGD):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                if p.grad.ndim == 2:
                    p.grad @ p.grad.T
            return super().step(closure)

    run = measure(mlp(), randn(4, 16), optimizer=lambda p: Muonlike(p, lr=0.1))
    assert run.flops_optimizer == 2 * 32 * 16 * 32 + 2 * 8 * 32 * 8
    assert (run.flops_forward, run.flops_backward) == (6144, 8192)
