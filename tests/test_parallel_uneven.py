"""Sizes that the ranks do not divide: the plan is that of even sizes without these, and the size is what is blamed."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import randint

from symacct.account import Ledger
from symacct.cli import main
from symacct.oracles_parallel import rank_of
from symacct.oracles_styles import Tensors
from symacct.parallel import rank, read_degrees
from symacct.parallel.collectives import traffic_of
from symacct.parallel.proposal import propose
from symacct.symbols import symbol
from symacct.targets import graph_of
from symacct.verify_tensor import styles_of

t = symbol("t")
LLAMA = {"V": 32000, "L": 4, "d": 512, "h": 8, "h_kv": 8, "d_h": 64, "f": 1024, "T": 128, "B": 2}
GPT2 = {"V": 50304, "L": 12, "d": 768, "h": 12, "f": 3072, "T": 1024, "B": 2}
BERT = {**GPT2, "P": 512, "T": 512}
T5 = {"V": 32128, "L": 12, "d": 768, "h": 12, "d_h": 64, "f": 2048, "S": 512, "T": 128, "B": 2}
VIT = {"n": 14, "p": 16, "C": 1000, "L": 12, "d": 768, "h": 12, "f": 3072, "B": 8}
MIXTRAL = {"V": 32000, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336, "E": 8, "k": 2, "T": 4096, "B": 1}
DEEPSEEK = {
    "V": 102400, "L": 27, "d": 2048, "h": 16, "f": 10944, "d_h": 128, "d_r": 64, "d_v": 128, "d_c": 512, "d_q": 1536, "T": 4096, "B": 1,
}


def plan_of(name, sizes, **changed):
    return propose(graph_of(name), t, {**sizes, **changed, "t": 4})


def without(plan, *parts):
    """The styles of a plan without those of the modules whose path has one of these words."""
    return {label: style for label, style in plan.styles.items() if not any(f".{part}." in label for part in parts)}


# Which modules a size belongs to is read off the models' code; of weights alone, as biases follow theirs.
@pytest.mark.parametrize(
    ("name", "sizes", "size", "number", "modules"),
    [
        ("llama", LLAMA, "f", 1026, ("gate", "up", "down")),
        ("llama", LLAMA, "V", 32001, ()),
        ("gpt2", GPT2, "f", 3074, ("up", "down")),
        ("gpt2", GPT2, "h", 6, ("qkv", "proj")),
        ("bert", BERT, "f", 3074, ("up", "down")),
        ("t5", T5, "f", 2050, ("up", "down", "gate", "wi", "wo")),
        ("vit", VIT, "f", 3074, ("up", "down")),
        ("mixtral", MIXTRAL, "f", 14338, ("moe",)),
        ("deepseek-mla", DEEPSEEK, "f", 10946, ("mlp",)),
    ],
)
def test_what_a_size_does_not_touch_is_divided_as_ever(name, sizes, size, number, modules):
    even, uneven = plan_of(name, sizes), plan_of(name, sizes, **{size: number})
    tables = {label for label, style in even.styles.items() if size in map(str, graph_shapes(name)[label])} if not modules else set()
    assert uneven.styles == {label: style for label, style in without(even, *modules).items() if label not in tables}
    stays = set(uneven.whole) - set(even.whole)
    weights = {label for label in set(even.styles) - set(uneven.styles) if len(graph_shapes(name)[label]) > 1}
    assert stays == weights != set()
    assert {uneven.whole[label] for label in stays} == {f"{size} = {number:,} is no multiple of t = 4"}


@cache
def graph_shapes(name):
    return {p.node.label: p.node.outputs[0].shape for p in graph_of(name).sources("parameter")}


def test_four_heads_too_few_leave_attention_whole():
    """q by its heads, k and v by theirs; o as what it reads. The MLP is divided."""
    plan = plan_of("llama", LLAMA, h=6, h_kv=6)
    said = {label.split(".")[-2]: why for label, why in plan.whole.items()}
    assert said == {name: f"{'h_kv' if name in 'kv' else 'h'} = 6 is no multiple of t = 4" for name in "qkvo"}
    assert plan.styles == without(plan_of("llama", LLAMA), *"qkvo")


def test_a_latent_that_is_whole_anyway_blames_nothing_behind_it():
    """Its norm needs whole rows at any width: what reads it is divided by heads."""
    even, uneven = plan_of("deepseek-mla", DEEPSEEK), plan_of("deepseek-mla", DEEPSEEK, d_q=1538)
    assert uneven.styles == even.styles and uneven.whole == even.whole


# By hand: attention sums once a layer each way, and so do the table and the head; the loss three times B·T numbers.
def test_an_uneven_mlp_sends_nothing():
    found = rank(graph_of("llama"), read_degrees("tp=4"), {**LLAMA, "f": 1026})
    rows = traffic_of(found.graph, "tp", t)
    numbers = {symbol(name): value for name, value in {**LLAMA, "f": 1026, "t": 4}.items()}
    assert sum(x.count for x in rows).xreplace(numbers) == 2 * 4 + 2 + 3
    positions = 2 * 128
    assert sum(x.payload for x in rows).xreplace(numbers) == 4 * positions * ((2 * 4 + 2) * 512 + 3)
    layer = 4 * 512 * 512 // 4 + 3 * 512 * 1026 + 2 * 512
    assert Ledger(found.graph).at(**LLAMA | {"f": 1026, "t": 4})["params.total"] == 2 * 32000 * 512 // 4 + 4 * layer + 512


def test_torch_runs_the_uneven_plan_alike():
    sizes = {"V": 96, "L": 2, "d": 32, "h": 4, "h_kv": 4, "d_h": 8, "f": 66, "T": 16, "B": 2}
    found = rank(graph_of("llama"), read_degrees("tp=4"), sizes)
    spec = importlib.util.spec_from_file_location("llama", Path(__file__).parents[1] / "examples" / "llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.model(**{name: sizes[name] for name in ("V", "L", "d", "h", "h_kv", "d_h", "f")})
    tokens = randint(96, (2, 16))
    loss = lambda scores: F.cross_entropy(scores.flatten(0, 1), tokens.flatten())  # noqa: E731
    seen = rank_of(model, tokens, loss, Tensors(styles_of(model, found.plan), 4))
    ledger = Ledger(found.graph).at(**sizes, t=4)
    assert seen.params_bytes == 4 * ledger["params.total"]
    assert (seen.flops_forward, seen.flops_backward) == (ledger["flops.forward"], ledger["flops.backward"])
    numbers = {symbol(name): value for name, value in {**sizes, "t": 4}.items()}
    rows = traffic_of(found.graph, "tp", t)
    assert [len(seen.sent), sum(x.payload for x in seen.sent)] == [sum(getattr(x, key) for x in rows).xreplace(numbers) for key in ("count", "payload")]


def test_one_note_names_all_that_a_size_keeps_whole(capsys):
    at = ",".join(f"{name}={value}" for name, value in {**LLAMA, "f": 1026}.items())
    assert main(["plan", "llama", "--card", "h100", "--at", at, "--parallel", "tp=4", "--no-remedies", "--no-roofline"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    names = ", ".join(f"blocks.*.mlp.{name}.weight" for name in ("gate", "up", "down"))
    assert f"{names} are held whole by every rank: f = 1,026 is no multiple of t = 4" in said
    assert "meets two divisions" not in said
