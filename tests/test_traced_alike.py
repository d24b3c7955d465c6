"""Code that once took another way with symbols than with numbers, or lost its symbols."""

from __future__ import annotations

import pytest
import torch
from small_models import Call, linear, randn
from test_memory import real_peak
from torch import nn

import symacct
from symacct.expressions import parse
from symacct.oracles import measure
from symacct.tracing.model_file import model_source
from symacct.tracing.run import trace_concrete, trace_symbolic


def filled(m, x):
    """Results written into a tensor step by step, as transformers' RWKV does, and by slices."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        y[:, t] = m.w(x[:, t])
    y[:, 1:, :] = 2.0
    y[..., None, 1:] = x[:, :, None, 1:]
    y[:, :] = y + 1
    return y


def test_assignment_to_a_part_runs_the_same_ops_with_symbols_and_with_numbers():
    source = model_source(
        "filled",
        dims={"B": 2, "T": 4, "d": 6},
        model=lambda d: Call(filled, w=linear(d, d)),
        inputs=lambda B, T, d: randn(B, T, d),
    )
    symbolic = trace_symbolic(source, "train", "cuda", {"T": 4})
    concrete = trace_concrete(source, "train", "cuda", source.dims)
    assert [record.key for record in symbolic.records] == [record.key for record in concrete.records]
    assert not symbolic.pins


def test_complex_numbers_keep_their_symbolic_sizes():
    """Angles as transformers' DeepSeek-V2 makes them: (B, T, d/2) complex numbers, turned."""

    def turn(m, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        angles = torch.arange(x.shape[1])[:, None] * torch.ones(x.shape[-1] // 2)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    ledger = symacct.derive(
        model=lambda: Call(turn),
        inputs=lambda B, T, d: randn(B, T, 2 * d),
        dims={"B": 2, "T": 4, "d": 6},
        mode="forward",
    )
    assert not any("pinned" in remark for remark in ledger.graph.remarks)
    polar = next(place.node for place in ledger.graph.ops if place.node.op == "aten.polar")
    assert polar.outputs[0].shape == (parse("T"), parse("d"))
    assert polar.outputs[0].dtype == "complex64"


class Stage(nn.Sequential):
    """A first block with one product more, then blocks that add to what they read."""

    def __init__(self, i, o, count):
        first = Call(lambda m, x: torch.relu(m.a(x)) + m.b(x), a=linear(i, o), b=linear(i, o))
        rest = [Call(lambda m, x: torch.relu(m.a(x)) + x, a=linear(o, o)) for _ in range(count - 1)]
        super().__init__(first, *rest)


@pytest.mark.parametrize("point", [{"B": 1, "a": 3, "b": 2, "d": 5}, {"B": 4, "a": 2, "b": 6, "d": 3}])
def test_a_stage_ends_where_the_next_one_begins_with_the_same_ops(point):
    """The product that opens the second stage is as wide as none of the first's."""

    def model(d, a, b):
        return nn.Sequential(Stage(d, 2 * d, a), Stage(2 * d, 3 * d, b))

    ledger = symacct.derive(
        model=model, inputs=lambda B, d: randn(B, d), dims={"B": 3, "d": 4, "a": 2, "b": 3}
    )
    blocks = parse("4*d**2 + 4*(a - 1)*d**2 + 12*d**2 + 9*(b - 1)*d**2")
    assert ledger.formulas["params.total"] == blocks.expand()
    now, at = (
        measure(model(point["d"], point["a"], point["b"]), randn(point["B"], point["d"])),
        ledger.at(**point),
    )
    assert (at["flops.forward"], at["flops.backward"]) == (now.flops_forward, now.flops_backward)
    assert at["bytes.saved"] == now.saved_bytes


def test_a_product_with_a_number_before_a_region_is_none_of_its_products_of_tensors():
    """L rectangles of d×d and one before them; kept are L·(x, tanh or its mate, relu's) of B×d each."""

    class Mixed(nn.Module):
        def __init__(self, d, L):
            super().__init__()
            self.first, self.rest = nn.Linear(d, d), nn.ModuleList(nn.Linear(d, d) for _ in range(L))

        def forward(self, x):
            x = self.first(x)
            y = x * 2
            for layer in self.rest:
                h = torch.tanh(layer(x))
                x, y = h + y, torch.relu(h) * h
            return x + y

    source = model_source("mixed", dims={"B": 3, "d": 8, "L": 3}, model=Mixed, inputs=lambda B, d: randn(B, d))
    ledger = symacct.derive(model=Mixed, inputs=lambda B, d: randn(B, d), dims={"B": 3, "d": 8, "L": 3}, device="cpu")
    for sizes in ({"B": 2, "d": 5, "L": 4}, {"B": 5, "d": 3, "L": 6}):
        B, d, L = sizes.values()
        run = measure(Mixed(d, L), randn(B, d))
        told = ledger.at(**sizes)
        assert told["flops.forward"] == 2 * B * d * d * (L + 1) == run.flops_forward
        assert told["flops.backward"] == run.flops_backward and told["bytes.saved"] == run.saved_bytes
        assert told["bytes.peak"] == real_peak(source, sizes)


def test_an_index_of_rows_is_none_of_the_indices_of_columns_that_repeat_after_it():
    """`x[i]` and `x[:, i]` are one op whose list of indices has gaps at other places."""

    class Indexed(nn.Module):
        def __init__(self, d, L):
            super().__init__()
            self.rest = nn.ModuleList(nn.Linear(d, d) for _ in range(L))

        def forward(self, x):
            rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
            x = torch.tanh(x)[rows]
            for layer in self.rest:
                x = torch.tanh(layer(x))[:, columns]
            return x

    sizes = {"B": 5, "d": 3, "L": 6}
    ledger = symacct.derive(model=Indexed, inputs=lambda B, d: randn(B, d), dims={"B": 3, "d": 8, "L": 3}, device="cpu")
    run = measure(Indexed(3, 6), randn(5, 3))
    told = ledger.at(**sizes)
    assert (told["flops.forward"], told["flops.backward"], told["bytes.saved"]) == (run.flops_forward, run.flops_backward, run.saved_bytes)
