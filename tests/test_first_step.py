"""The first step, and the peak at few repetitions, against storages counted here in real steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from symacct.account import Ledger
from symacct.graph import Graph
from symacct.liveness import first_step, first_step_at
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_memory import first_peak


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.up, self.down, self.idle = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Blocks with a layer each that nothing calls, and one more of another width."""

    def __init__(self, d: int, L: int) -> None:
        super().__init__()
        self.blocks, self.idle = nn.ModuleList(Block(d) for _ in range(L)), nn.Linear(d, 7 * d)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,  # makes state of every parameter when it is built, with or without gradient
}
SIZES = ({"B": 4, "d": 8, "L": 3}, {"B": 100, "d": 3, "L": 5})


class Alive(TorchDispatchMode):
    """The most bytes of storages that are alive after an op."""

    def __init__(self, given: list[torch.Tensor], states: Callable[[], list]) -> None:
        super().__init__()
        self.states = states
        self.known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        self.note(given)

    def note(self, tensors: list) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                ref = StorageWeakRef(tensor.untyped_storage())
                self.known[ref.cdata] = (ref, tensor.untyped_storage().nbytes())

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        self.note(tree_leaves((args, kwargs, out)) + self.states())
        self.known = {key: known for key, known in self.known.items() if not known[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.known.values()))
        return out


def real_steps(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """The most bytes alive in the first step and in the second, and those of the optimizer's state."""
    states = lambda: tree_leaves(list(optimizer.state.values()))  # noqa: E731
    most = []
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        with Alive([x, *model.parameters(), *states()], states) as alive:
            loss = (output := model(x)).sum()
            loss.backward()
            optimizer.step()
            assert output.shape == x.shape  # both are held to the end, as the peak is defined
        most.append(alive.most)
        del loss, output
    return *most, sum(t.nbytes for t in states() if isinstance(t, torch.Tensor))


@cache
def traced(name: str) -> tuple[object, Graph]:
    source = model_source(
        "net",
        dims={"B": 4, "d": 8, "L": 3},
        model=Net,
        inputs=lambda B, d: torch.randn(B, d),
        optimizer=OPTIMIZERS[name],
    )
    return source, Builder(source, "train", "cpu").graph("net")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_is_told_where_a_parameter_has_no_gradient(name, sizes):
    source, graph = traced(name)
    now = {symbol(n): v for n, v in sizes.items()}
    model = Net(sizes["d"], sizes["L"])
    x = torch.randn(sizes["B"], sizes["d"])
    most, _, state = real_steps(model, x, OPTIMIZERS[name](model.parameters()))
    assert Ledger(graph).formulas["bytes.optimizer"].xreplace(now) == state
    places = first_step(graph)
    assert places is not None and first_peak(source, sizes) == most
    assert max(live.xreplace(now) for _, live in places) == most


class Tower(nn.Module):
    """Alike blocks of two products: two repetitions of their backward pass have none beside the ends."""

    def __init__(self, d: int, f: int, L: int) -> None:
        super().__init__()
        made = (nn.Sequential(nn.Linear(d, f, False), nn.Tanh(), nn.Linear(f, d, False)) for _ in range(L))
        self.blocks = nn.ModuleList(made)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


STEPPED = {
    "muon": partial(torch.optim.Muon, ns_steps=1),
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True, foreach=True),
}


@pytest.mark.parametrize("name", STEPPED)
def test_peaks_are_told_at_every_depth_without_a_run(name):
    dims = {"B": 5, "d": 4, "f": 7, "L": 3}
    source = model_source(
        "tower", dims=dims, model=Tower, inputs=lambda B, d: torch.randn(B, d), optimizer=STEPPED[name]
    )
    graph = replace(Builder(source, "train", "cpu").graph("tower"), measured=None)
    for B, f, L in ((38, 6, 1), (9, 87, 1), (27, 14, 2), (5, 9, 2), (53, 24, 3), (7, 5, 3), (5, 9, 6)):
        sizes = {"B": B, "d": 4, "f": f, "L": L}
        model = Tower(4, f, L)
        first, second, _ = real_steps(model, torch.randn(B, 4), STEPPED[name](model.parameters()))
        assert first_step_at(graph, sizes) == first, sizes
        assert Ledger(graph).at(**sizes)["bytes.peak"] == second, sizes
