"""Two precisions and accumulated gradients: bytes a parameter as published, peaks as real steps have."""

from __future__ import annotations

from functools import cache
from pathlib import Path

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
from symacct.graph import MASTER
from symacct.oracles import measure
from symacct.storage import dumps, loads
from symacct.symbols import symbol
from symacct.tracing.masters import MasterWeights
from symacct.tracing.model_file import model_source
from symacct.tracing.variation import graph_of, varied
from symacct.variants import variant

MLP = Path(__file__).parents[1] / "examples" / "mlp.py"
STEPS = "4*4"  # torch's Adam family counts the steps of each of the four tensors in a float32


@cache
def under(recipe=None, **options):
    return derived(recipe=recipe, **options)


def held(found):
    """Bytes of weights, gradients and optimizer state, its step counts left out."""
    return sp.expand(found["bytes.params"] + found["bytes.grads"] + found["bytes.optimizer"] - parse(STEPS))


# Bytes a parameter: ZeRO 2 + 2 + 12 (Rajbhandari et al. 2020, section 3.1); Megatron-LM 18 without
# distributed optimizer
# (theoretical_memory_usage.py); the Ultra-Scale Playbook 20 with float32 accumulation, 16 without; CS336
# lecture 2
# 4 + 4 + 8 in float32, which autocast leaves as it is
@pytest.mark.parametrize(
    ("recipe", "weights", "gradients", "state"),
    [
        (None, 4, 4, 8),
        ("autocast", 4, 4, 8),
        ("mixed", 2, 2, 12),
        ("megatron", 2, 4, 12),
        ("playbook", 2, 6, 12),
    ],
)
def test_bytes_a_parameter(recipe, weights, gradients, state):
    found = under(recipe).formulas
    assert found["bytes.params"] == parse(f"{weights}*{P}")
    assert found["bytes.grads"] == parse(f"{gradients}*{P}")
    assert found["bytes.optimizer"] == parse(f"{state}*{P} + {STEPS}")
    assert found.get("bytes.master") == (parse(f"4*{P}") if state == 12 else None)


# The Ultra-Scale Playbook, "memory for weights/grads/optimizer": GB at N parameters
@pytest.mark.parametrize(
    ("billions", "plain", "accumulating"), [(1, 16, 20), (7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)]
)
def test_the_playbooks_table(billions, plain, accumulating):
    for recipe, gigabytes in (("mixed", plain), ("playbook", accumulating)):
        found = under(recipe).formulas
        assert sp.cancel(held(found) / found["params.total"]) * billions == gigabytes


def test_what_others_count_of_the_same_state():
    """scaling-book: 10 = 2 of weights and 8 of moments; Hugging Face: 18 = 4 + 2 of weights, 8, 4."""
    found = under("mixed")
    moments = sp.Add(
        *(p.node.outputs[0].bytes for p in found.graph.sources("state") if "exp_avg" in p.node.label)
    )
    assert sp.expand(found.formulas["bytes.params"] + moments) == parse(f"10*{P}")
    cast = under("autocast").formulas
    assert held(cast) == parse(f"16*{P}")
    # the low-precision copy: of the weights of products, as long as backward needs them; the first layer's
    # it does not
    assert cast["bytes.saved"].coeff(symbol("B"), 0) == parse("2*d*f")


def test_masters_are_marked_and_survive_storage():
    graph = under("megatron").graph
    masters = [p.node.label for p in graph.sources("state") if MASTER in p.node.notes]
    assert masters == ["0.weight.master", "0.bias.master", "2.weight.master", "2.bias.master"]
    assert loads(dumps(graph)).variant == "recipe megatron"
    assert "2 + 4 + 4" in graph.remarks[-1]
    assert "variant" not in dumps(under().graph)


def test_parameters_in_float32_are_their_own_masters():
    class Wide(nn.Module):
        _keep_in_fp32_modules_strict = ("norm",)

        def __init__(self, d):
            super().__init__()
            self.layer, self.norm = nn.Linear(d, d, bias=False), nn.LayerNorm(d)

        def forward(self, x):
            return self.norm(self.layer(x).float())

    found = derived(Wide, dims={"B": 2, "d": 8}, recipe="mixed").formulas
    assert found["bytes.master"] == parse("4*d**2")
    assert found["bytes.params"] == found["bytes.grads"] == parse("2*d**2 + 8*d")
    assert found["bytes.optimizer"] == parse("12*d**2 + 16*d + 12")


def test_an_optimizer_of_some_parameters_has_masters_of_these():
    found = derived(
        recipe="megatron", optimizer=lambda p: optim.Muon([q for q in p if q.dim() == 2])
    ).formulas
    assert found["bytes.master"] == found["bytes.optimizer"] / 2 == parse("8*d*f")
    assert found["bytes.grads"] == parse(f"4*{P}")  # the buffers are of all


def test_a_real_step_has_that_state_and_moves_the_weights():
    torch.manual_seed(0)
    for gradients, buffered in (("own", 0), ("wide", 4), ("both", 4)):
        model = mlp(5, 7).to(torch.bfloat16)
        before = [p.detach().clone() for p in model.parameters()]
        made = MasterWeights(lambda p: optim.AdamW(p, lr=0.1), list(model.parameters()), gradients)
        for _ in range(2):
            model(rows(3, 5).bfloat16()).sum().backward()
            own = [p.grad is not None for p in model.parameters()]
            made.step()
            made.zero_grad()
        assert all(own) == (gradients != "wide")
        count = sum(p.numel() for p in model.parameters())
        state = [t for kept in made.state.values() for t in kept.values() if isinstance(t, torch.Tensor)]
        assert sum(t.nbytes for t in state) == 12 * count + 4 * 4
        assert sum(buffer.nbytes for _, buffer in made.gradients()) == buffered * count
        for p, old in zip(model.parameters(), before, strict=True):
            assert not torch.equal(p, old) and torch.equal(p, made.masters[id(p)].bfloat16())


@pytest.mark.parametrize("recipe", [None, "mixed", "megatron", "playbook", "autocast"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_the_peak_equals_a_real_step(recipe, accumulate):
    asked = variant(recipe, accumulate)
    source = model_source("m", dims=DIMS, model=mlp, inputs=rows)
    ledger = Ledger(graph_of(source, "m", "train", "cpu", asked=asked))
    for sizes in ({"B": 1, "d": 11, "f": 5}, {"B": 90, "d": 5, "f": 9}):
        assert at(ledger.formulas["bytes.peak"], **sizes) == real_peak(varied(source, asked), sizes)


def test_a_deep_models_peak_equals_a_real_step():
    source = model_source(
        "m",
        dims={"B": 2, "d": 8, "L": 2},
        model=lambda d, L: nn.Sequential(*(mlp(d, d) for _ in range(L))),
        inputs=rows,
    )
    asked = variant("megatron", accumulate=True)
    ledger = Ledger(graph_of(source, "m", "train", "cpu", asked=asked))
    n = ledger.formulas["params.total"]
    assert held(ledger.formulas) + parse(STEPS) == sp.expand(18 * n) + parse("4*4*L")
    for sizes in ({"L": 3, "B": 1, "d": 9}, {"L": 5, "B": 90, "d": 5}):
        assert at(ledger.formulas["bytes.peak"], **sizes) == real_peak(varied(source, asked), sizes)


# Accumulated gradients


def test_gradients_that_are_there_already_are_added_to():
    plain, more = under().formulas, under(accumulate=True).formulas
    same = [
        key
        for key in plain
        if key.startswith(("params", "flops")) or key in ("bytes.saved", "bytes.grads", "bytes.optimizer")
    ]
    assert [key for key in same if plain[key] != more[key]] == []
    # each new gradient is read and added to the one before: two reads and a write more of all parameters
    assert sp.expand(more["bytes.read"] - plain["bytes.read"]) == parse(f"8*{P}")
    assert sp.expand(more["bytes.written"] - plain["bytes.written"]) == parse(f"4*{P}")
    added = [
        p.node
        for p in under(accumulate=True).graph.ops
        if p.node.phase == "backward" and p.node.op == "aten.add_"
    ]
    assert len(added) == 4 and {node.module for node in added} == {"0", "2"}


def test_what_is_kept_is_not_the_gradients():
    for recipe in ("megatron", "playbook"):
        source = model_source("m", dims=DIMS, model=mlp, inputs=rows)
        sizes = {"B": 3, "d": 6, "f": 10}
        found = Ledger(graph_of(source, "m", "train", "cpu", asked=variant(recipe, accumulate=True)))
        run = measure(mlp(6, 10).bfloat16(), rows(3, 6).bfloat16())
        assert at(found.formulas["bytes.saved"], **sizes) == run.saved_bytes


# What is said


def test_options_that_contradict_are_refused():
    for options, words in (
        ({"recipe": "megatorn"}, "no recipe 'megatorn'; did you mean 'megatron'"),
        ({"recipe": "mixed", "dtype": "fp32"}, "recipe mixed trains in two precisions"),
        ({"recipe": "autocast", "dtype": "int8"}, "a model converted to 8 bits does not run"),
        ({"recipe": "mixed", "mode": "forward"}, "says how to train, and mode forward does not"),
        ({"accumulate": True, "mode": "forward"}, "says how to train"),
        ({"recipe": "mixed", "widths": "symbolic"}, "says which width each tensor has"),
    ):
        with pytest.raises(ModelFileError, match=words):
            derived(**options)
    with pytest.raises(ModelFileError, match="the step of LBFGS runs the model again"):
        derived(recipe="mixed", optimizer=optim.LBFGS)


def test_a_claim_about_masters_and_an_appendix_speak_of_them(capsys):
    assert cli.main(["check", str(MLP), "bytes.master = 4*N", "--recipe", "mixed"]) == 0
    assert cli.main(["check", str(MLP), "bytes.master = 4*d*f", "--recipe", "mixed"]) == 1
    assert "0.bias.master" in capsys.readouterr().out
    assert cli.main(["latex", str(MLP), "--recipe", "mixed"]) == 0
    written = capsys.readouterr().out
    assert r"M_{\mathrm{master}} &= 4\,P" in written and "a training step (recipe mixed)" in written


def test_the_command_line_names_the_recipe(capsys):
    assert cli.main(["derive", str(MLP), "--recipe", "mixed", "--dtype", "fp16", "--accumulate"]) == 0
    said = capsys.readouterr()
    assert "training step, recipe mixed, last of several micro-batches" in said.out.splitlines()[0]
    assert [
        line.split("=")[1].strip()
        for line in said.out.splitlines()
        if line.startswith(("weights", "gradients", "of it"))
    ] == ["2·N", "2·N", "4·N"]
    assert "recipe mixed: low-precision weights" in said.err
    assert cli.main(["derive", "gpt2", "--recipe", "mixed"]) == 2
    assert "derive its model file with --recipe mixed" in capsys.readouterr().err
    assert symacct.derive("mlp").graph.variant == ""
