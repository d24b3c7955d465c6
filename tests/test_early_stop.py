"""Recomputation to its end, and what `verify` and `diff` take of the options of a training step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import symacct
from symacct.errors import Unsupported
from symacct.expressions import parse
from symacct.symbols import symbol

MODEL = '''
import torch
from torch import nn

dims = {"b": 2, "s": 6, "h": 8, "a": 2}


class Block(nn.Module):
    def __init__(self, h, a):
        super().__init__()
        self.a, self.qkv, self.out = a, nn.Linear(h, 3 * h), nn.Linear(h, h)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.a, h // self.a).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = ((q @ k.transpose(-2, -1)) * (h // self.a) ** -0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, s, h))


def model(h, a):
    return nn.Sequential(Block(h, a))


def inputs(b, s, h):
    return torch.randn(b, s, h)
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("early") / "block.py"
    file.write_text(MODEL, encoding="utf-8")
    return file


def repeated(run, path: Path, *options: str):
    """FLOPs that the hardware repeats."""
    code, out, _ = run("derive", path, "--format", "json", "--checkpoint", "selective", *options)
    assert code == 0
    found = json.loads(out)["formulas"]
    return parse(found["flops.hardware"]) - parse(found["flops.step"])


def test_the_attention_core_is_recomputed_as_far_as_it_is_needed(run, path):
    """q·kᵀ and weights·v are 2·b·s²·h each; the result of the second one is not needed again."""
    b, s, h = (symbol(name) for name in "bsh")
    assert (repeated(run, path) - 2 * b * s**2 * h).expand() == 0
    assert (repeated(run, path, "--no-early-stop") - 4 * b * s**2 * h).expand() == 0


def test_verify_runs_another_optimizer_without_early_stop(run, path):
    words = ("--device", "cpu", "--points", "1", "--checkpoint", "selective", "--no-early-stop")
    code, out, _ = run("verify", path, *words, "--optimizer", "sgd", "--format", "json")
    assert code == 0
    found = {c["quantity"]: c for c in json.loads(out)["checks"]}
    assert found["bytes.optimizer"]["observed"] == 0  # plain SGD keeps nothing
    assert found["flops.hardware"]["equal"] and found["bytes.peak"]["equal"]
    at = {symbol(name): value for name, value in found["flops.hardware"]["point"].items()}
    b, s, h = (symbol(name).xreplace(at) for name in "bsh")
    unwanted = 2 * b * s * h * 3 * h  # the gradient of the input
    product = 2 * b * s * h * 4 * h + 4 * b * s * s * h
    assert found["flops.hardware"]["observed"] == 3 * product - unwanted + 4 * b * s * s * h


def test_a_ledger_verifies_another_optimizer_without_early_stop(path):
    asked = {"device": "cpu", "checkpoint": "selective"}
    ledger = symacct.derive(str(path), **asked, optimizer="sgd", early_stop=False)
    found = {check.quantity: check for check in ledger.verify(points=1).checks}
    assert found["bytes.optimizer"].observed == 0 and found["bytes.optimizer"].equal  # plain SGD keeps nothing
    assert found["flops.hardware"].equal and found["bytes.peak"].equal
    with pytest.raises(Unsupported, match="recipe mixed"):
        symacct.derive(str(path), **asked, recipe="mixed").verify(points=1)


@pytest.mark.parametrize(
    ("option", "value"), [("--recipe", "mixed"), ("--optimizer", "adamw8bit"), ("--widths", "symbolic")]
)
def test_verify_refuses_what_no_plain_step_does(run, path, option, value):
    code, _, err = run("verify", path, option, value)
    assert code == 2 and f"{option} {value}" in err


def test_diff_takes_an_optimizer(run, path):
    code, out, _ = run("diff", path, path, "--optimizer", "sgd", "--format", "json")
    assert code == 0 and '"bytes.optimizer"' in out
