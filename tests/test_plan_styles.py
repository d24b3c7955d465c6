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
    asked = ["plan", "llama", "--card", "h100", "--at", at, "--parallel", parallel, "--no-remedies", "--no-roofline", *words]
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


def test_what_reads_one_token_of_a_divided_sequence_is_told(capsys):
    """BERT's pooler reads x[:, 0], which is no part of a sequence: its input is whole, and the gather before it is told."""
    at = "B=4,T=64,P=128,V=512,L=4,d=64,h=8,f=256"
    asked = ["plan", "bert", "--card", "a100", "--at", at, "--parallel", "tp=2,sp", "--no-remedies", "--format", "json"]
    assert cli.main(asked) == 0
    told = json.loads(capsys.readouterr().out)["parallel"]["styles"]
    assert told["plan"]["pooler"] == "ColwiseParallel(use_local_output=False)"
    assert told["plan"]["blocks.*.up"] == "ColwiseParallel(input_layouts=Shard(1), use_local_output=False)"
    (place,) = told["gathered_before"]
    line = int(place.rpartition(":")[2].rstrip(")"))
    assert "[:, 0]" in (EXAMPLES / "bert.py").read_text().splitlines()[line - 1]
    assert cli.main(asked[:-2]) == 0
    assert f"gathered before {place}" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["verify", str(EXAMPLES / "bert.py"), "--parallel", "tp=2,sp", "--points", "1"]) == 2
    assert "which no style says" in " ".join(capsys.readouterr().err.split())


def styles_of(capsys, *words):
    assert cli.main(["plan", *words, "--card", "a100", "--no-remedies", "--no-roofline", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["parallel"]["styles"]


def test_few_key_heads_leave_the_rest_of_the_sequence_parallel_plan_as_it_is(capsys):
    """8 ranks, 4 heads of keys: k and v are whole on each rank's part; all else is as with 4 ranks."""
    sizes = "V=512,L=4,d=64,h=16,h_kv=4,d_h=8,f=160,T=64,B=4"
    four, eight = (styles_of(capsys, "llama", "--at", sizes, "--parallel", f"tp={t},sp") for t in (4, 8))
    keys = {f"blocks.*.attn.{name}" for name in "kv"}
    assert {path: style for path, style in four["plan"].items() if path not in keys} == eight["plan"]
    assert set(eight["apart"]) == {f"{path}.weight" for path in keys} and "Shard(1)" in eight["plan"]["embed"]
    assert [place.split()[0] for place in eight["gathered_before"]] == ["aten._scaled_dot_product_flash_attention"]


def test_a_table_of_distances_is_no_part_of_a_sequence(capsys):
    """T5's bias is S×S for a rank's heads: its tables are whole, and so is what is looked up in them."""
    sizes = "B=8,S=512,T=256,V=32128,L=6,d=512,h=8,d_h=64,f=2048"
    told = styles_of(capsys, "t5", "--at", sizes, "--parallel", "tp=2,sp")
    assert told["apart"] == {"encoder.bias.table.weight": "whole", "decoder.bias.table.weight": "whole"}
    positions = styles_of(capsys, "gpt2", "--at", "B=1,T=16,V=96,L=2,d=32,h=4,f=64", "--parallel", "tp=2,sp")
    assert positions["apart"]["wpe.weight"] == "whole, on each rank's part of the sequence"


def test_the_other_end_of_a_tied_table_is_told_and_tied_again(capsys):
    """GPT-2's head is its table: both are divided by rows of V, and are one parameter once they are tied again."""
    sizes = {"V": 96, "L": 2, "d": 32, "h": 4, "f": 64, "T": 16}
    at = ",".join(f"{name}={value}" for name, value in sizes.items())
    asked = ["plan", "gpt2", "--card", "a100", "--at", f"B=2,{at}", "--parallel", "tp=2", "--no-remedies"]
    assert cli.main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = found["parallel"]["styles"]
    assert told["tied"] == {"head.weight": "wte.weight"}
    model = source("gpt").model(**sizes)
    styles = {path: eval(style, dict(WORDS)) for path, style in told["plan"].items()}
    with fake_ranks(1, 2) as mesh:
        parallelize_module(model, mesh["tensor"], styles)
        assert model.head.weight is not model.wte.weight  # torch parts them
        model.head.weight = model.wte.weight
        local = sum((p.to_local() if isinstance(p, DTensor) else p).numel() * 4 for p in model.parameters())
    qkv = sizes["L"] * (3 * sizes["d"] ** 2 + 3 * sizes["d"]) * 4  # what no style divides, half of it a rank's
    assert local == found["memory"]["kinds"]["weights"] + qkv / 2
    assert cli.main(asked) == 0
    assert "head.weight is wte.weight: tie them again" in " ".join(capsys.readouterr().out.split())
