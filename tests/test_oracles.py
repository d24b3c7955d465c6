"""What the oracle measures besides FLOPs (parameters, bytes, op sequence), against counts done by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from symacct.errors import ModelFileError, SymacctError
from symacct.oracles import measure


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


# Parameters


def test_a_tied_table_counts_once():
    table, head = nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)
    head.weight = table.weight
    model = Call(lambda m, i: m.head(m.inner(m.table(i))), table=table, inner=nn.Linear(16, 16), head=head)
    run = measure(model, torch.randint(0, 100, (2, 7)))
    assert (run.params_total, run.params_embedding, run.params_bytes) == (1872, 1600, 4 * 1872)
    assert run.grads_bytes == 4 * 1872
    assert run.flops_forward == 2 * 14 * 16 * 16 + 2 * 14 * 16 * 100


def test_tables_that_nobody_reads_are_not_embedding_parameters():
    tables = {"bag": nn.EmbeddingBag(9, 4), "used": nn.Embedding(7, 4), "idle": nn.Embedding(5, 4)}
    model = Call(lambda m, i: m.bag(i) + m.used(i).sum(1), **tables)
    run = measure(model, torch.randint(0, 7, (2, 3)), mode="forward")
    assert (run.params_total, run.params_embedding) == ((9 + 7 + 5) * 4, (9 + 7) * 4)


def test_sparse_gradients_count_indices_and_values():
    table = nn.Embedding(100, 16, sparse=True)
    run = measure(table, torch.arange(6), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert run.grads_bytes == 6 * 8 + 6 * 16 * 4


@pytest.mark.parametrize(
    ("maker", "per_number", "per_parameter"),
    [
        (None, 8, 4),  # AdamW: two moments, and a float32 step count
        (lambda p: torch.optim.SGD(p, lr=0.1), 0, 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 4, 0),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 12, 4),
    ],
)
def test_optimizer_state_in_bytes(maker, per_number, per_parameter):
    run = measure(mlp(), randn(4, 16), optimizer=maker)
    assert run.optimizer_bytes == 808 * per_number + 4 * per_parameter
    assert run.flops_optimizer == 0


# Bytes kept for backward


@pytest.mark.parametrize(
    ("middle", "kept"),
    [
        (nn.ReLU(), 4 * 16 * 4 + 4 * 32 * 4),  # its output, which the next layer keeps as well
        (nn.LeakyReLU(), 4 * 16 * 4 + 2 * 4 * 32 * 4),  # its input too
        (nn.GELU(), 4 * 16 * 4 + 2 * 4 * 32 * 4),
        (nn.Dropout(0.5), 4 * 16 * 4 + 2 * 4 * 32 * 4),  # a float mask on CPU, and the next layer's input
    ],
)
def test_activations_keep_what_their_backward_reads(middle, kept):
    run = measure(mlp(middle), randn(4, 16))
    assert (run.saved_bytes, run.saved_input_bytes) == (kept, 4 * 16 * 4)


def test_layer_norm_keeps_its_input_and_two_numbers_a_row():
    run = measure(nn.LayerNorm(16), randn(4, 16, grad=True))
    assert run.saved_bytes == 4 * 16 * 4 + 2 * 4 * 4 == 288


def test_fused_attention_block_keeps_ten_sbh_and_a_statistic():
    run = measure(Attention().bfloat16(), randn(2, 16, 32, dtype=torch.bfloat16))
    # x, qkv and output in bf16; logsumexp in float32
    assert run.saved_bytes == 10 * (16 * 2 * 32) + 4 * 4 * 2 * 16 == 10752
    assert run.saved_input_bytes == 2 * 16 * 32 * 2


class Block(nn.Module):
    """A GPT block with unfused attention and dropout 0.1 in its three places."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        scores = (q * (d // self.heads) ** -0.5) @ k.transpose(-2, -1)
        mixed = (self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.down(F.gelu(self.up(self.norms[1](x)))))


@pytest.mark.parametrize(("s", "b", "h", "a"), [(16, 2, 32, 4), (24, 3, 40, 5)])
def test_unfused_block_keeps_its_published_bytes_with_two_byte_masks(s, b, h, a):
    """Korthikanti et al. 2022, equation 1: 34·sbh + 5·as²b with 1-byte masks and no statistics of the norms.

    CPU keeps masks in bf16 (one byte more for 2·sbh + as²b numbers) and the norms' statistics in bf16 (8·sb).
    """
    run = measure(Block(h, a).bfloat16(), randn(b, s, h, dtype=torch.bfloat16))
    assert run.saved_bytes == 36 * s * b * h + 6 * a * s**2 * b + 8 * s * b


def test_views_of_one_storage_count_it_once_and_whole():
    run = measure(Call(lambda _, x: x[0] * x[1]), randn(2, 8, grad=True))
    assert run.saved_bytes == run.saved_input_bytes == 2 * 8 * 4


def test_what_a_custom_function_hides_in_its_context_counts():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.doubled = 2 * x
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return ctx.doubled * grad

    run = measure(Call(lambda _, x: Square.apply(x)), randn(4, 8, grad=True))
    assert (run.saved_bytes, run.saved_input_bytes) == (4 * 8 * 4, 0)


def test_constants_and_caches_of_the_model_are_not_kept_for_backward():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain, self.cache = torch.ones(8), None
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x):
            self.cache = x.detach() + 1
            return x * self.scale * self.plain

    assert measure(Scaled(), randn(4, 8, grad=True)).saved_bytes == 0


def test_labels_that_the_loss_keeps_are_inputs():
    labels = torch.randint(0, 8, (4,))
    model = Call(lambda m, x, y: F.cross_entropy(m.net(x), y), net=mlp())
    run = measure(model, (randn(4, 16), labels))
    log_probabilities, weight = 4 * 8 * 4, 4
    assert run.saved_input_bytes == 4 * 16 * 4 + 4 * 8
    assert run.saved_bytes == run.saved_input_bytes + 4 * 32 * 4 + log_probabilities + weight
    outside = measure(mlp(), randn(4, 16), loss=lambda y: F.cross_entropy(y, labels))
    assert outside.saved_input_bytes == 4 * 16 * 4


# Losses, modes, repeatability


@dataclass
class Output:
    states: tuple
    extra: dict


def test_default_loss_is_the_sum_of_all_floating_tensors():
    def nested(m, x):
        y = m.net(x)
        return Output(states=(y, [y * 2]), extra={"ids": torch.arange(3), "last": y.double()})

    model = Call(nested, net=mlp())
    assert measure(model, randn(4, 16)).op_sequence.count(("aten.sum", "loss", ((),))) == 3


def test_own_loss_of_the_output_wins():
    model = Call(lambda m, x: {"loss": m.net(x).mean(), "logits": m.net(x)}, net=mlp())
    assert [op for op in measure(model, randn(4, 16)).op_sequence if op[1] == "loss"] == []


@pytest.mark.parametrize(
    ("model", "loss", "mode", "message"),
    [
        (Call(lambda _, x: x.argmax()), None, "train", "holds no floating tensor"),
        (mlp(), lambda y: y, "train", r"one number, not a tensor of shape \(4, 8\)"),
        (mlp(), None, "decode", "cannot be measured"),
    ],
)
def test_what_cannot_be_measured_is_said(model, loss, mode, message):
    with pytest.raises(ModelFileError, match=message) as caught:
        measure(model, randn(4, 16), loss=loss, mode=mode)
    assert isinstance(caught.value, SymacctError)


def test_forward_mode_has_no_backward_and_keeps_nothing():
    run = measure(nn.Sequential(mlp(), nn.Dropout(0.5)), {"input": randn(4, 16)}, mode="forward")
    assert run.flops_forward == 6144
    assert {op[1] for op in run.op_sequence} == {"forward"}
    assert "aten.bernoulli_" not in {op[0] for op in run.op_sequence}
    assert not (run.flops_backward or run.saved_bytes or run.grads_bytes or run.optimizer_bytes)


def test_measuring_leaves_no_trace():
    model, x = nn.Sequential(mlp(), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval(), randn(4, 16, grad=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    marked = model[0][0].weight
    marked.grad = torch.ones_like(marked)
    state = torch.get_rng_state()
    runs = [measure(model, x) for _ in range(2)]
    assert runs[0] == runs[1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(marked.grad, torch.ones_like(marked))
    assert x.grad is None
    assert not any(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch._C._get_mkldnn_enabled()


def test_op_sequence_is_that_of_an_unwatched_step():
    names = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "aten":
                names.append(str(op.overloadpacket))
            return op(*args, **(kwargs or {}))

    model, x = Attention(), randn(2, 16, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    with Names():
        model(x).sum().backward()
        optimizer.step()
    model.zero_grad()
    run = measure(model, x)
    assert [op[0] for op in run.op_sequence] == names
    order = [phase for phase, _ in groupby(phase for _, phase, _ in run.op_sequence)]
    assert order == ["forward", "loss", "backward", "optimizer"]
