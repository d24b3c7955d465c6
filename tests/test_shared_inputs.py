"""Column-parallel modules that read one tensor, with and without a module around just them: what torch does more."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from test_verify_parallel import observed, wrong
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, parallelize_module

from symacct.oracles_parallel import fake_ranks
from symacct.parallel.degrees import Degrees
from symacct.parallel.rank import rank
from symacct.parallel.torch_styles import torch_plan
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_parallel import parallel_checks

SEED = 18


class Three(nn.Module):
    """Three products of one input, and one of what they make."""

    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, y):
        return self.o(torch.sigmoid(self.q(y)) * self.k(y) * self.v(y))


class Apart(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.three = nn.LayerNorm(d), Three(d)

    def forward(self, x):
        return x + self.three(self.norm(x))


class Named(Apart):
    """Gives its module the tensor by name, as transformers does."""

    def forward(self, x):
        return x + self.three(y=self.norm(x))


class Direct(Three):
    """The same with q, k and v directly in the block, beside its norm."""

    def __init__(self, d):
        super().__init__(d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        return x + super().forward(self.norm(x))


class Model(nn.Module):
    def __init__(self, block, V, L, d):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, d), nn.Linear(d, V)
        self.layers = nn.ModuleList(block(d) for _ in range(L))

    def forward(self, idx):
        x = self.embed(idx)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@cache
def traced(block):
    made = model_source(
        block.__name__,
        dims={"B": 2, "T": 6, "V": 10, "L": 2, "d": 8},
        model=lambda V, L, d: Model(block, V, L, d),
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
    )
    return made, Builder(made, "train", "cuda").graph(block.__name__)


def told(block, degrees):
    graph = traced(block)[1]
    found = rank(graph, degrees)
    return torch_plan(graph, found.graph, found.plan, found.names.of["tp"], degrees.sequence).shared


@pytest.mark.parametrize("block", [Apart, Named, Direct])
@pytest.mark.parametrize("sequence", [False, True])
def test_torch_brings_in_an_input_for_each_where_no_module_is_given_it(block, sequence):
    """By hand, in a layer: o sums forward, q, k and v in backward, together or each; table and head one each, the loss three."""
    found = parallel_checks(*traced(block), Degrees(tensor=2, sequence=sequence), SEED)
    assert not wrong(found)
    layers, each, seen = found.points[0]["L"], 3 if block is Direct else 1, observed(found)
    if sequence:
        assert seen["collectives.all_gather"] == seen["collectives.reduce_scatter"] == (1 + each) * layers + 2
    else:
        assert seen["collectives.all_reduce"] == (1 + each) * layers + 2 + 3
    noted = [note for note in found.notes if "share an input" in note]
    assert bool(noted) == (block is Direct)
    assert not noted or noted[0].startswith("layers.*.q, layers.*.k, layers.*.v share an input")


def test_shards_and_stages_of_modules_that_share_an_input():
    """fully_shard over them is compared with what is added; of stages that comparison is refused, with the reason."""
    found = parallel_checks(*traced(Direct), Degrees(tensor=2, data=2, zero=3), SEED)
    assert not wrong(found) and any("the comparison adds these" in note for note in found.notes)
    found = parallel_checks(*traced(Direct), Degrees(tensor=2, stages=2, micro_batches=2), SEED)
    assert not wrong(found)
    assert any("pp with tp is not compared: layers.*.q, layers.*.k" in note for note in found.notes)


@pytest.mark.parametrize(("around", "sums"), [(False, 3), (True, 1)])
def test_comm_debug_mode_counts_the_sums_that_are_told(around, sums):
    """torch's own count, of its own styles: three products of one tensor, whose gradient is wanted."""
    plan = dict.fromkeys("qkv", ColwiseParallel())
    if around:
        plan = {k: ColwiseParallel() for k in "qkv"} | {
            "": PrepareModuleInput(input_layouts=(torch.distributed.tensor.Replicate(),), desired_input_layouts=(torch.distributed.tensor.Replicate(),))
        }
    model = nn.ModuleDict({k: nn.Linear(4, 4, bias=False) for k in "qkv"})
    model.forward = lambda x: sum(model[k](x).sum() for k in "qkv")
    with fake_ranks(1, 2) as mesh:
        parallelize_module(model, mesh["tensor"], plan)
        with CommDebugMode() as mode:
            model(torch.randn(3, 4, requires_grad=True)).backward()
    (shared,) = told(Apart if around else Direct, Degrees(tensor=2))
    each = sum(more.count for more in shared.more) / symbol("L")
    assert mode.get_total_counts() == sums == 1 + each


def test_what_is_told_of_modules_around():
    (shared,) = told(Apart, Degrees(tensor=2, sequence=True))
    assert (shared.around, shared.more) == ("layers.*.three", ())
    B, T, L, d = map(symbol, "BTLd")
    (shared,) = told(Direct, Degrees(tensor=2, sequence=True))
    assert not shared.around
    assert {(x.kind, x.phase, x.count, x.bytes) for x in shared.more} == {
        ("all_gather", "forward", 2 * L, 4 * B * T * d),
        ("reduce_scatter", "backward", 2 * L, 4 * B * T * d),
    }
