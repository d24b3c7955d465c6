"""Optimizers by name and form: 8-bit state by its rule; fused, looped, capturable steps; what is refused."""

from __future__ import annotations

import json
from functools import cache

import pytest
import sympy as sp
import torch
from test_memory import real_peak
from test_training_state import DIMS, P, at, derived, mlp, parse, rows
from torch import nn, optim

import symacct
from symacct import cli
from symacct.account import Ledger
from symacct.errors import ModelFileError
from symacct.formula_reader import parse as read
from symacct.quantised import moment_bytes
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source


@cache
def eight_bit(recipe=None):
    return derived(optimizer="adamw8bit", recipe=recipe)


# bitsandbytes 0.50.2, AdamW8bit: elements of a tensor -> bytes of its two moments (state1, state2, absmax1,
# absmax2)
@pytest.mark.parametrize(
    ("elements", "measured"),
    [
        (70, 560),
        (2310, 18_480),
        (5000, 10_160),
        (7000, 14_224),
        (165_000, 335_160),
        (4095, 32_760),
        (4096, 8320),
        (1, 8),
    ],
)
def test_a_tensors_moments_in_8_bits(elements, measured):
    assert 2 * moment_bytes(sp.Integer(elements)) == measured


def test_bytes_a_parameter_in_8_bits():
    """2.03125 bytes a parameter of tensors with a multiple of 256 elements, 4,096 or more."""
    found = eight_bit().formulas
    sizes = {"d": 4096, "f": 8192}
    assert sp.Rational(
        at(found["bytes.optimizer"], **sizes), at(found["params.total"], **sizes)
    ) == sp.Rational(65, 32)
    small = {"d": 50, "f": 81}  # 4,050 elements: nothing is large enough
    assert at(found["bytes.optimizer"], **small) == 8 * at(found["params.total"], **small)


# bitsandbytes 0.50.2 on Linear(90, 60) and Linear(60, 90), of 5,400 elements each: 2·(5400 + 4·22), and
# biases in float32
def test_a_models_state_in_8_bits():
    assert at(eight_bit().formulas["bytes.optimizer"], d=90, f=60) == 2 * 2 * (5400 + 4 * 22) + 8 * (60 + 90)
    assert (
        at(eight_bit("mixed").formulas["bytes.optimizer"], d=90, f=60)
        == 4 * (2 * 5400 + 150) + 2 * 2 * 5488 + 8 * 150
    )


def test_an_8_bit_step_holds_and_moves_its_state_and_nothing_beside():
    fused = derived(optimizer=lambda p: optim.AdamW(p, fused=True))
    for sizes in ({"B": 1, "d": 90, "f": 60}, {"B": 300, "d": 9, "f": 6}):
        low, wide = (at_all(ledger, **sizes) for ledger in (eight_bit(), fused))
        less = wide["bytes.optimizer"] - low["bytes.optimizer"]
        for key in ("bytes.peak", "bytes.written"):
            assert wide[key] - low[key] == less, key
        assert (
            wide["bytes.read"] - low["bytes.read"] == less + 4 * 4
        )  # and four counts that a kernel adds one to
        assert low["flops.step"] == wide["flops.step"] and low["bytes.saved"] == wide["bytes.saved"]


def at_all(ledger, **sizes):
    return {key: at(formula, **sizes) for key, formula in ledger.formulas.items()}


def test_the_formula_reads_back(capsys, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\ndims = {'B': 2, 'd': 8}\ndef model(d): return torch.nn.Linear(d, d)\ndef inputs(B, "
        "d): return torch.ones(B, d)\n"
    )
    assert (
        cli.main(["derive", str(path), "--optimizer", "AdamW8bit", "--at", "B=3,d=100", "--format", "json"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    formula = read(answer["formulas"]["bytes.optimizer"])
    assert answer["values"]["bytes.optimizer"] == at(formula, d=100) == 2 * (10_000 + 4 * 40) + 8 * 100
    assert cli.main(["derive", str(path), "--optimizer", "adamw8bit"]) == 0
    said = capsys.readouterr()
    lines = {line[:22].strip(): line[22:].strip() for line in said.out.splitlines()}
    assert (
        lines["optimizer state"]
        == "= S₈, of each tensor of n elements 2·n + 8·⌈n/256⌉ if n >= 4,096, else 8·n"
    )
    assert lines["bytes written"].startswith("= S₈ + ")
    assert "bitsandbytes' rule" in said.err


def test_widths_that_change_with_depth_have_no_8_bit_sum():
    class Growing(nn.Module):
        def __init__(self, L, d):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(d, d * (k + 1)) for k in range(L))

        def forward(self, x):
            return sum(layer(x).sum() for layer in self.layers)

    with pytest.raises(ModelFileError, match="widths change from layer to layer"):
        derived(Growing, rows, {"B": 2, "d": 3, "L": 3}, optimizer="adamw8bit")


# By name


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("sgd", "0"),
        ("AdamW", f"8*{P} + 16"),
        ("adagrad", f"4*{P} + 16"),
        ("adafactor", "4*2*(d + f) + 4*(d + f) + 16"),
    ],
)
def test_an_optimizer_by_its_name(name, state):
    ledger = derived(optimizer=name)
    assert ledger.formulas["bytes.optimizer"] == parse(state)
    assert ledger.graph.variant == name.lower()


class Lion(optim.Optimizer):
    """One moment, and the sign of its blend with the gradient (Chen et al. 2023, algorithm 2)."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(m.lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


def test_an_optimizer_that_torch_does_not_have_is_traced():
    source = model_source("m", dims=DIMS, model=mlp, inputs=rows, optimizer=Lion)
    ledger = Ledger(Builder(source, "train", "cpu").graph("m"))
    assert ledger.formulas["bytes.optimizer"] == parse(f"4*{P}")  # acceptance: 4 bytes a parameter
    sizes = {"B": 1, "d": 11, "f": 5}
    assert at(ledger.formulas["bytes.peak"], **sizes) == real_peak(source, sizes)


# Forms of one optimizer's step


@cache
def step(device="cuda", kind=optim.AdamW, **options):
    """The ops of an optimizer's step, in order."""
    made = derived(device=device, optimizer=lambda p: kind(p, **options))
    return made, tuple(p.node.op.removeprefix("aten.") for p in made.graph.ops if p.node.phase == "optimizer")


def test_fused_foreach_looped_and_capturable_steps_are_told_apart():
    assert step(fused=True)[1] == ("_foreach_add_", "_fused_adamw_")
    assert "_foreach_addcdiv_" in step()[1] and "addcdiv_" not in step()[1]
    assert step(foreach=False)[1].count("addcdiv_") == 4  # one for each tensor
    assert step(device="cpu")[1] == step(foreach=False)[1]
    kept = step(capturable=True)
    # counts on the device: corrections are tensors
    assert "_foreach_pow" in kept[1] and "_foreach_pow" not in step()[1]
    forms = ({}, {"fused": True}, {"foreach": False}, {"capturable": True})
    assert len({step(**form)[1] for form in forms}) == 4
    assert {made.formulas["bytes.optimizer"] for made in (step()[0], step(fused=True)[0], kept[0])} == {
        parse(f"8*{P} + 16")
    }


@pytest.mark.parametrize(("kind", "name"), [(optim.SGD, "_fused_sgd_"), (optim.Adagrad, "_fused_adagrad_")])
def test_fused_steps_without_a_shape_function_keep_their_symbols(kind, name):
    made, ops = step(kind=kind, fused=True, lr=0.1, device="cpu")
    assert ops[-1] == name and not made.graph.remarks


def test_capturable_steps_are_cudas():
    with pytest.raises(
        ModelFileError, match="If capturable=True, params and state_steps must be on supported devices"
    ):
        derived(device="cpu", optimizer=lambda p: optim.AdamW(p, capturable=True))


def test_radams_second_step_is_announced():
    for optimizer in (optim.RAdam, "radam"):
        (remark,) = derived(optimizer=optimizer).graph.remarks
        assert remark.startswith("the optimizer's step is the second: RAdam divides")


# What is refused


def lookups(B, V):
    return torch.randint(V, (B,))


def test_sparse_gradients_are_refused_in_words():
    dims = {"B": 3, "V": 20, "d": 8}
    with pytest.raises(
        ModelFileError, match=r"the gradient of 0 is sparse \(sparse=True\).*derive with sparse=False"
    ):
        derived(lambda V, d: nn.Sequential(nn.Embedding(V, d, sparse=True)), lookups, dims)
    with pytest.raises(ModelFileError, match="SparseAdam steps the rows that a batch looked up"):
        derived(lambda V, d: nn.Embedding(V, d), lookups, dims, optimizer=lambda p: optim.SparseAdam(list(p)))
    forward = derived(lambda V, d: nn.Embedding(V, d, sparse=True), lookups, dims, mode="forward")
    assert forward.formulas["bytes.params"] == parse("4*V*d")


def test_unknown_names_are_refused_in_words():
    for options, words in (
        ({"optimizer": "adamw8bits"}, "no optimizer 'adamw8bits'; did you mean 'adamw8bit'"),
        ({"optimizer": "lbfgs"}, "no optimizer 'lbfgs'; .*known: adadelta"),
        ({"optimizer": "adamw8bit", "widths": "symbolic"}, "says which width its state has"),
        ({"optimizer": "adamw", "mode": "forward"}, "adamw says how to train"),
        ({"optimizer": "muon"}, "Muon only supports 2D parameters"),
    ):
        with pytest.raises(ModelFileError, match=words):
            derived(**options)


@pytest.mark.parametrize(("kind", "told"), [(optim.Adagrad, True), (optim.AdamW, False)])
def test_state_that_is_made_for_frozen_parameters_too_is_told(kind, told):
    """torch's Adagrad makes its sums as it is built, for whatever it is given; AdamW in its first step, from gradients."""

    class Half(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.kept, self.trained = nn.Linear(d, d).requires_grad_(False), nn.Linear(d, d)

        def forward(self, x):
            return self.trained(self.kept(x))

    made = symacct.derive(model=Half, inputs=lambda B, d: torch.ones(B, d), dims={"B": 2, "d": 5}, optimizer=lambda p: kind(p))
    real = kind(Half(5).parameters())
    assert bool(real.state) is told  # before any step
    states = 1 if told else 2
    assert made.at(B=3, d=7)["bytes.optimizer"] == (7 * 7 + 7) * states * 4 + 2 * 4
    assert any(remark.startswith("the optimizer") and "state for the frozen ones too" in remark for remark in made.graph.remarks) is told
