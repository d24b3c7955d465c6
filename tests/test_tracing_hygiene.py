"""A derivation leaves torch, math, numpy and the user's model as they were, and gives the same bytes each time."""

from __future__ import annotations

import copy
import math
import numbers
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import Attention, Call, LanguageModel, linear, randn
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils import checkpoint

import symacct
from symacct.errors import ModelFileError
from symacct.storage import dumps
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file

ROOT = Path(__file__).parents[1]
OPTIMIZERS = tuple(import_module(f"torch.optim.{name}") for name in ("optimizer", "adam", "adamw", "sgd"))
PATCHED = (math, np, numbers, torch, torch._VF, nn.init, torch.Tensor, torch._C.TensorBase, F, torch_module, checkpoint)
PATCHED += (checkpoint._CheckpointFrame, checkpoint.CheckpointFunction, nn.Module, nn.Linear, nn.LayerNorm, *OPTIMIZERS)


def world():
    """Every name bound in the places that a trace touches, and torch's global switches."""
    names = {(owner, name): id(value) for owner in PATCHED for name, value in vars(owner).items()}
    names = {key: value for key, value in names.items() if key[1] not in ("__warningregistry__", "_global_state")}
    switches = (
        torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled(), torch.is_grad_enabled(),
        torch.get_default_dtype(), torch.get_rng_state().sum().item(),
        len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks),
        len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
    )  # fmt: skip
    return names, switches


def changed(before):
    names, switches = world()
    old_names, old_switches = before
    differ = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in old_names if names.get((owner, name)) != old_names[owner, name]]
    added = [name for name in names if name not in old_names]
    return differ, added, [pair for pair in zip(switches, old_switches, strict=True) if pair[0] != pair[1]]


NOTHING = ([], [], [])


def derive(model=None, **more):
    given = {
        "model": model or (lambda d, h, L: nn.Sequential(*(Attention(d, h, "fused") for _ in range(L)))),
        "inputs": lambda B, T, d: randn(B, T, d),
        "dims": {"B": 2, "T": 5, "d": 8, "h": 2, "L": 2},
    }
    return symacct.derive(**given | more)


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Modules that torch imports and tables that it fills at the first trace are not ours to undo."""
    derive()


def test_torch_math_and_numpy_are_as_before():
    before = world()
    derive()
    assert changed(before) == NOTHING


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("mode", ["train", "forward"])
def test_on_any_device_and_in_any_mode(device, mode):
    before = world()
    derive(device=device, mode=mode)
    assert changed(before) == NOTHING


def _raises_when_built(d):
    raise ZeroDivisionError("built")


def _raises_when_run(d):
    def f(m, x):
        m.inner(x)
        raise KeyError("run")

    return Call(f, inner=linear(d, d))


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise IndexError("backward")


def _raises_in_backward(d):
    return Call(lambda m, x: Backwards.apply(m.inner(x)), inner=linear(d, d))


@pytest.mark.parametrize("model", [_raises_when_built, _raises_when_run, _raises_in_backward])
def test_also_when_the_users_code_raises(model):
    before = world()
    with pytest.raises(ModelFileError, match=r"built|run|backward"):
        derive(model)
    assert changed(before) == NOTHING


def test_the_users_functions_still_work_in_a_trace():
    """math.sqrt, numpy and the initialisers act as ever on what is no symbolic size."""

    def model(d):
        weight = torch.empty(3, 3)
        nn.init.constant_(weight, 2.0)
        assert math.sqrt(16) == 4 and np.sqrt(16.0) == 4 and math.prod([2, 3]) == 6
        assert isinstance(3, numbers.Integral) and not isinstance(3.0, numbers.Integral)
        return linear(d, d)

    derive(model)


# The user's model


def test_a_ready_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).eval()
    model[0].weight.grad = torch.ones(6, 6)
    model[3].requires_grad_(False)
    calls = []
    model[1].register_forward_hook(lambda *_: calls.append("hook"))
    x = randn(4, 6, grad=True)
    state = copy.deepcopy(model.state_dict())
    parameters = list(model.parameters())
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()]
    before, value = world(), x.detach().clone()
    symacct.derive(model=model, inputs=x, dims={})
    symacct.derive(model=model, inputs=x, dims={}, mode="forward")
    assert changed(before) == NOTHING
    assert not any(m.training for m in model.modules())
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(now, state[name]) for name, now in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(6, 6))
    assert [p.grad is None for p in parameters[1:]] == [True] * 5
    assert [p.requires_grad for p in parameters] == [True] * 4 + [False] * 2
    assert x.grad is None and x.requires_grad and torch.equal(x, value)
    now = [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()]
    assert now == hooks


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_the_callers_block_changes_nothing(block):
    expected = derive().formulas
    ready = linear(6, 6), randn(4, 6)
    with block():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        within = derive().formulas
        formulas = symacct.derive(model=ready[0], inputs=ready[1], dims={}).formulas
        assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    for key in ("params.total", "flops.forward", "flops.backward", "flops.step", "flops.hardware"):
        assert within[key] == expected[key]
    assert formulas["flops.step"] == 2 * (2 * 4 * 6 * 6)


def test_a_model_that_casts_costs_the_same():
    def model(d, h, L):
        def half(m, x):
            with torch.autocast("cpu", torch.bfloat16):
                return m.inner(x)

        return Call(half, inner=nn.Sequential(*(Attention(d, h) for _ in range(L))))

    def plain(d, h, L):
        return nn.Sequential(*(Attention(d, h) for _ in range(L)))

    cast, expected = derive(model).formulas, derive(plain).formulas
    for key in ("params.total", "flops.forward", "flops.backward"):
        assert cast[key] == expected[key]


def test_random_numbers_go_on_where_they_were():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    derive()
    assert torch.equal(torch.rand(4), expected)


# Threads


def test_two_threads_at_once_are_both_right():
    found, errors = {}, []

    def work(name, width):
        try:
            ledger = derive(lambda d, L: nn.Sequential(*(linear(d, d) for _ in range(L * width))))
            found[name] = str(ledger.formulas["flops.forward"])
        except Exception as error:  # a thread's error must reach the test
            errors.append(error)

    before = world()
    threads = [threading.Thread(target=work, args=(k, k + 1)) for k in range(2)]
    for thread in threads:
        thread.start()
    real = [math.sqrt(16.0), torch.nn.init.ones_(torch.empty(2)).sum().item(), torch.ones(3, 4)[:, 1].sum().item()]
    for thread in threads:
        thread.join()
    assert not errors
    assert real == [4.0, 2.0, 3.0]
    assert found == {0: "2*B*L*T*d**2", 1: "4*B*L*T*d**2"}
    assert changed(before) == NOTHING


# The trace as a torch.fx.Graph


def test_a_torch_fx_graph_is_at_hand(tmp_path):
    path = tmp_path / "mlp.py"
    path.write_text(MLP, encoding="utf-8")
    builder = Builder(load_model_file(path), "train", "cuda")
    builder.graph("mlp")
    graph = builder.fx
    assert isinstance(graph, torch.fx.Graph)
    graph.lint()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert sum(node.target is torch.ops.aten.mm.default for node in calls) >= 4
    assert "aten.mm" in str(graph)


# The same bytes

MLP = """
import torch
from torch import nn

dims = {"B": 3, "L": 2, "d": 8, "h": 2, "f": 12}


def model(L, d, f):
    return nn.Sequential(*(nn.Sequential(nn.Linear(d, f), nn.GELU(), nn.LayerNorm(f), nn.Linear(f, d)) for _ in range(L)))


def inputs(B, d):
    return torch.randn(B, d)
"""

PRINTS = """
import sys
import symacct
from symacct.expressions import to_text
from symacct.storage import dumps

ledger = symacct.derive(sys.argv[1])
print(dumps(ledger.graph), {key: to_text(value) for key, value in ledger.formulas.items()})
"""


def test_deriving_twice_gives_the_same_bytes():
    """Sizes of 1, which take many runs, are among the bytes of the next test."""

    def once():
        ledger = symacct.derive(
            model=lambda V, L, d, h, f: LanguageModel(V, L, d, h, f, "einsum"),
            inputs=lambda B, T, V: torch.randint(V, (B, T)),
            dims={"B": 2, "T": 5, "V": 11, "L": 2, "d": 16, "h": 4, "f": 24},
        )
        return dumps(replace(ledger.graph, limits=())), {key: str(value) for key, value in ledger.formulas.items()}

    assert once() == once()


def test_any_process_and_hash_seed_gives_the_same_bytes(tmp_path):
    path = tmp_path / "mlp.py"
    path.write_text(MLP, encoding="utf-8")
    answers = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PRINTS, str(path)],
            env=os.environ | {"PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.add(done.stdout)
    assert len(answers) == 1
    assert "Mod" not in answers.pop()
