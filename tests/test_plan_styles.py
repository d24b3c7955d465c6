"""The tensor-parallel plan that `plan` prints, pasted into torch: its parallelize_module makes the rank
that was counted.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from symacct import cli
from symacct.oracles_flops import unfused
from symacct.oracles_parallel import fake_ranks

EXAMPLES = Path(__file__).parent.parent / "examples"
WORDS = {
    word.__name__: word for word in (ColwiseParallel, RowwiseParallel, SequenceParallel, Replicate, Shard)
}
SIZES = {"B": 2, "T": 16, "V": 96, "L": 2, "d": 32, "h": 4, "h_kv": 2, "d_h": 8, "f": 64}


@cache
def source(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(capsys, parallel, *words):
    at = ",".join(f"{name}={value}" for name, value in SIZES.items())
    asked = ["plan", "llama", "--card", "h100", "--at", at, "--parallel", parallel, "--no-remedies", *words]
    assert cli.main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.main(asked) == 0
    return found, capsys.readouterr().out


def run(plan, model, loss_in_parts):
    """A forward pass with its loss under torch's plan: the bytes of a rank's weights, and the collectives."""
    styles = {path: eval(style, dict(WORDS)) for path, style in plan.items()}  # as a user pastes it
    with fake_ranks(1, 2) as mesh:
        parallelize_module(model, mesh["tensor"], styles)
        local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
        tokens = torch.randint(0, SIZES["V"], (SIZES["B"], SIZES["T"]))
        with implicit_replication(), unfused(attention=True), CommDebugMode() as mode, loss_parallel():
            scores = model(tokens)
            assert isinstance(scores, DTensor) == loss_in_parts
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        return sum(p.numel() * p.element_size() for p in local), mode.get_total_counts()


def llama():
    names = ("V", "L", "d", "h", "h_kv", "d_h", "f", "T")
    wanted = source("llama").model.__code__.co_varnames
    return source("llama").model(**{name: SIZES[name] for name in names if name in wanted})


@pytest.mark.parametrize("parallel", ["tp=2", "tp=2,sp"])
def test_the_proposed_plan_runs_under_torch(capsys, parallel):
    found, text = printed(capsys, parallel)
    told = found["parallel"]["styles"]
    assert (told["source"], told["apart"], told["loss_parallel"]) == ("proposed", {}, True)
    weights, sent = run(told["plan"], llama(), True)
    assert weights == found["memory"]["kinds"]["weights"]
    assert sent > 0
    for path, style in told["plan"].items():
        assert f"{path} " in text and style in text
    assert ("SequenceParallel" in text) == ("sp" in parallel)


def test_context_ranks_change_nothing_of_the_plan(capsys):
    """That of tp and sp runs under torch, above; what context ranks scatter, keys and values, lies otherwise."""
    alone, both = (printed(capsys, f"tp=2,sp{more}")[0]["parallel"]["styles"]["plan"] for more in ("", ",cp=2"))
    assert both == alone and "Shard(1)" in str(both)


def test_a_plan_of_ones_own_is_told_and_runs(capsys):
    own = "blocks.*.mlp.gate=colwise,blocks.*.mlp.up=colwise,blocks.*.mlp.down=rowwise"
    found, text = printed(capsys, "tp=2", "--styles", own)
    told = found["parallel"]["styles"]
    column, row = "ColwiseParallel(use_local_output=False)", "RowwiseParallel()"
    assert told["source"] == "--styles" and "as --styles has it" in text
    wanted = {"blocks.*.mlp.gate": column, "blocks.*.mlp.up": column, "blocks.*.mlp.down": row}
    assert told["plan"] == wanted and not told["loss_parallel"]
    weights, sent = run(told["plan"], llama(), False)
    assert weights == found["memory"]["kinds"]["weights"]
    assert sent == SIZES["L"]  # the sum behind each row-parallel product


def test_what_no_style_says_is_told_apart(capsys):
    at = "B=1,T=16,V=96,L=2,d=32,h=4,f=64"
    asked = ["plan", "gpt2", "--card", "h100", "--at", at, "--parallel", "tp=2", "--format", "json"]
    assert cli.main(asked) == 0
    told = json.loads(capsys.readouterr().out)["parallel"]["styles"]
    assert told["apart"] == {"blocks.*.attn.qkv.weight": "Shard(0) of each of its 3 parts"}
    assert "blocks.*.attn.qkv" not in told["plan"]


def test_links_tell_ring_and_tree(capsys):
    """A double binary tree sends no more than twice the payload, a ring 2·(n - 1)/n of it: 2/3 of that for
    n = 3.
    """
    at = "B=1,T=16,V=96,L=2,d=32,h=4,f=64"
    asked = ["plan", "gpt2", "--card", "h100", "--at", at, "--parallel", "dp=3"]
    assert cli.main([*asked, "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)["parallel"]["sent"][0]
    assert (row["axis"], row["collective"]) == ("dp", "all_reduce")
    assert row["tree"]["bytes"] * 2 == row["bytes"] * 3
    assert cli.main(asked) == 0
    text = capsys.readouterr().out
    assert "by tree" in text and "2·⌈log₂ n⌉" in text
