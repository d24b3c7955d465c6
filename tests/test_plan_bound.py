"""What `symacct plan` says bounds a step: one case of each verdict by hand, and what is not settled."""

from __future__ import annotations

import json

import pytest

from symacct.account import Ledger
from symacct.targets import graph_of

B, D, F, C = 64, 256, 1024, 16
AT = f"B={B},d={D},f={F},c={C}"
# two linear layers: 2 FLOPs forward and 4 backward for each weight and sample, but no gradient of the input
FLOPS = 6 * B * (D * F + F * C) - 2 * B * D * F
WEIGHTS = 4 * (D * F + F + F * C + C)  # bytes in fp32


@pytest.fixture
def run(run):
    """Run `plan` in this process: exit code and stdout."""
    return lambda *words: run("plan", *words, "--no-remedies")[:2]


def bound(run, *words):
    return json.loads(run(*words, "--format", "json")[1]).get("bound")


def own(peak="1e12", bandwidth="1e12", link="1e12"):
    figures = {"fp32": peak, "bf16": peak, "memory": "8e12", "bandwidth": bandwidth, "link": link}
    return "--card", ",".join(f"{name}={value}" for name, value in figures.items() if value)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({}, "compute"),
        ({"bandwidth": "1e10"}, "memory"),
        ({"link": "1e9"}, "communication"),
        ({"bandwidth": "1e10", "link": "1e9"}, "memory"),
    ],
)
def test_each_verdict_by_hand(run, figures, verdict):
    """Two ranks each send their gradients once by ring, 2·(2-1)/2 of them, over half of a link's figure both
    ways; two thirds of the arithmetic hide as much.
    """
    found = bound(run, "mlp", *own(**figures), "--at", AT, "--parallel", "dp=2", "--no-roofline")
    moved = Ledger(graph_of("mlp")).at(B=B, d=D, f=F, c=C)
    seconds = {
        "compute": FLOPS / 1e12,
        "memory": (moved["bytes.read"] + moved["bytes.written"]) / float(figures.get("bandwidth", 1e12)),
        "communication": max(0, WEIGHTS / (float(figures.get("link", 1e12)) / 2) - FLOPS / 1e12 * 2 / 3),
    }
    assert found["seconds"] == pytest.approx(seconds)
    assert found["by"] == verdict == max(seconds, key=seconds.get)
    assert found["bytes"] == "unfused"


LINEAR = """
import torch
from torch import nn
dims = {"B": 4, "d": 8, "f": 16}
def model(d, f): return nn.Linear(d, f, bias=False)
def inputs(B, d): return torch.randn(B, d)
"""


def test_bytes_of_one_product_by_hand(run, tmp_path):
    """It reads an input and a matrix and writes a result, 4 bytes a number, and sends nothing."""
    path = tmp_path / "linear.py"
    path.write_text(LINEAR)
    at = ("--mode", "forward", "--at", "B=32,d=64,f=128", "--parallel", "tp=1")
    for bandwidth, verdict in (("1e12", "compute"), ("1e9", "memory")):
        found = bound(run, path, *own(bandwidth=bandwidth), *at)
        moved = 4 * (32 * 64 + 64 * 128 + 32 * 128)
        memory, compute = moved / float(bandwidth), 2 * 32 * 64 * 128 / 1e12
        seconds = {"compute": compute, "memory": memory, "communication": 0}
        assert found["seconds"] == pytest.approx(seconds)
        assert found["by"] == verdict


def test_tensor_parallel_traffic_is_waited_for(run):
    """Two ranks of tp sum an activation of B·T·d twice in each pass over a layer, and what stands outside;
    all of what they send is waited for, whatever the arithmetic.
    """
    sizes = "B=4,T=64,V=512,L=4,d=64,h=8,h_kv=4,d_h=8,f=128"
    words = ("llama", *own(peak="1e9", link="1e9"), "--at", sizes, "--parallel", "tp=2")
    found = json.loads(run(*words, "--format", "json")[1])
    rows = found["parallel"]["sent"]
    assert {row["axis"] for row in rows} == {"tp"}
    # 2 all-reduces forward and 2 backward a layer, each 2·(2-1)/2 of 4 B·T·d bytes
    assert sum(row["bytes"] for row in rows) >= 4 * 4 * (4 * 4 * 64 * 64)
    waited = sum(row["bytes"] for row in rows) / 5e8
    assert found["bound"]["seconds"]["communication"] == pytest.approx(waited)


GPT2 = "B=4,T=64,V=512,L=4,d=64,h=8,f=256"


def memory(run, ways, *words):
    return bound(run, "gpt2", *own(), "--at", GPT2, "--parallel", ways, *words)["seconds"]["memory"]


def test_micro_batches_repeat_all_but_the_optimizers_step_and_zero_divides_that(run):
    one, two, three = (memory(run, f"m={m}") for m in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    step = 2 * one - two
    assert 0 < step < one
    assert memory(run, "dp=4,zero=1") == pytest.approx(one - step * 3 / 4)


def test_two_stages_move_what_one_does(run):
    """A stage has half of the layers and an end of them: more than half of the bytes, less than all."""
    assert memory(run, "m=2") / 2 < memory(run, "pp=2,m=2") < memory(run, "m=2")


def test_the_roofline_merges_chains(run):
    words = ("llama", *own(), "--at", "B=4,T=64,V=512,L=4,d=64,h=8,h_kv=4,d_h=8,f=128")
    apart, merged = (bound(run, *words, "--parallel", "m=2", *more) for more in (["--no-roofline"], ()))
    assert (apart["bytes"], merged["bytes"]) == ("unfused", "merged")
    assert merged["seconds"]["memory"] < apart["seconds"]["memory"]
    assert merged["seconds"]["compute"] == apart["seconds"]["compute"]
    # an undivided step of as many micro-batches does the same work, and sends nothing
    alone = bound(run, *words, "--micro-batches", "2")
    assert alone["seconds"] == pytest.approx({k: merged["seconds"][k] for k in ("compute", "memory")})
    assert bound(run, *words, "--no-roofline") is None


def test_arithmetic_is_what_kernels_execute(run):
    """T·(T + 1)/2 of T² pairs: 4 FLOPs forward, 10 backward for each of d, as scores are made again."""
    b, t, v, layers, d, f = 2, 2048, 512, 3, 64, 256
    words = ("gpt2", *own(peak="1e9"), "--at", f"B={b},T={t},V={v},L={layers},d={d},h=8,f={f}")
    flops = 6 * b * t * (v * d + layers * (4 * d * d + 2 * d * f)) + 14 * b * layers * d * t * (t + 1) // 2
    whole = bound(run, *words)["seconds"]
    assert whole["compute"] == pytest.approx(flops / 1e9)
    assert bound(run, *words, "--parallel", "m=3")["seconds"]["compute"] == pytest.approx(3 * flops / 1e9)
    found = json.loads(run(*words, "--format", "json")[1])
    assert found["roofline"]["products_alone"]["seconds"] == pytest.approx(whole["compute"])
    said = " ".join(run(*words)[1].split())
    assert "at the peak, pairs behind a causal mask left out" in said


def test_what_has_no_figure_is_left_out_and_said(run):
    words = ("mlp", "--at", AT, "--parallel", "dp=2", *own(bandwidth="", link=""))
    assert bound(run, *words) == {"by": None, "seconds": {"compute": FLOPS / 1e12}, "bytes": "unfused"}
    said = " ".join(run(*words)[1].split())
    assert "what bounds the step is not settled" in said
    assert "the card has no bandwidth" in said and "links are left out" in said


def test_expert_ranks_move_their_own_experts(run):
    """3·L·E·d·f weights of 4 bytes, half elsewhere: moved 3 times in the passes, 21 times in AdamW's step."""
    sizes = "B=4,T=64,V=512,L=4,d=64,h=8,h_kv=4,d_h=8,f=128,E=8,k=2"
    words = ("mixtral", *own(bandwidth="1e9"), "--at", sizes, "--no-roofline", "--parallel")
    all_, half = (bound(run, *words, degrees) for degrees in ("dp=2", "dp=2,ep=2"))
    assert half["by"] == "memory"
    less = all_["seconds"]["memory"] - half["seconds"]["memory"]
    assert less * 1e9 == pytest.approx((3 + 21) * 4 * 3 * 4 * 8 * 64 * 128 / 2, abs=8)


def test_the_verdict_in_words(run):
    said = " ".join(run("mlp", *own(link="1e9"), "--at", AT, "--parallel", "dp=2")[1].split())
    assert "the step is communication-bound: arithmetic takes 73.40 µs at the peak; memory" in said


def test_the_peak_of_a_rank_of_one_layer_is_called_a_bound(run):
    """No form of it need be reached where layers do not repeat: `derive` unfolds the step there, and tells less."""
    sizes = {"B": 2, "T": 64, "V": 500, "d": 64, "h": 4, "h_kv": 2, "d_h": 16, "f": 256}
    for depth, bound_ in ((1, "at most"), (4, "exact")):
        at = ",".join(f"{name}={value}" for name, value in {**sizes, "L": depth}.items())
        _, out = run("llama", *own(), "--at", at, "--parallel", "dp=2", "--format", "json")
        memory = json.loads(out)["memory"]
        real = Ledger(graph_of("llama")).at(L=depth, **sizes)["bytes.peak"]
        assert memory["bound"] == bound_ and (memory["need"] > real if depth == 1 else memory["need"] == real)
