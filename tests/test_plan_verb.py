"""`symacct plan`: does it fit, how large a batch, how long; against the ledger's own numbers and brute
force.
"""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from functools import partial

import pytest
import sympy as sp

from symacct.account import Ledger
from symacct.errors import SizeError
from symacct.expressions import parse
from symacct.plan.fitting import demand, fit, largest_kind, solve
from symacct.symbols import symbol
from symacct.targets import graph_of

SMALL = "T=1024,V=50257,L=12,d=768,h=12,f=3072"
SIZES = {"T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
TINY = "--card=name=Tiny,bf16=1e12,fp32=5e11,memory=1e9,bandwidth=1e11"


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(run):
    """Run `plan` in this process: exit code, stdout, stderr."""
    return partial(run, "plan")


@pytest.fixture(scope="module")
def gpt2():
    return Ledger(graph_of("gpt2"))


# Text


def test_a_plan_in_words(run, golden):
    words = (
        "gpt2",
        "--card",
        "a100",
        "--cards",
        8,
        "--at",
        f"B=16,{SMALL}",
        "--precision",
        "bf16",
        "--no-roofline",
    )
    code, out, _ = run(
        *words, "--tokens", "300e9", "--mfu", "0.3", "--price", "1.5", "--tokens-per-second", "1.2e6"
    )
    assert code == 0
    golden(out)


def test_a_plan_that_does_not_fit_on_a_narrow_page(run, golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = ("llama", "--card", "v100", "--precision", "fp16", "--no-roofline", "--at", "B=1,T=4096")
    code, out, _ = run(*words, "--at", "V=32000,L=32,d=4096,h=32,h_kv=32,d_h=128,f=11008")
    assert code == 1
    assert max(map(len, out.splitlines())) <= 60
    golden(out)


def test_the_roofline_is_a_part(run):
    _, out, _ = run("gpt2", "--card", "h100", "--at", f"B=16,{SMALL}")
    assert "why MFU is low" in out
    _, out, _ = run("gpt2", "--card", "fp32=1e12,memory=80e9", "--at", f"B=16,{SMALL}")
    assert "why MFU is low" not in out  # no bandwidth, no roofline
    code, _, err = run("gpt2", "--card", "fp32=1e12,memory=80e9", "--at", f"B=16,{SMALL}", "--roofline")
    assert (code, err.count("no figure for bandwidth")) == (2, 1)


# JSON, against the ledger and brute force


def test_bytes_are_the_ledgers(run, gpt2):
    code, out, _ = run("gpt2", "--card", "a100", "--at", f"B=8,{SMALL}", "--format", "json")
    found = json.loads(out)
    truth = gpt2.at(B=8, **SIZES)
    memory = found["memory"]
    assert code == 0
    assert memory["need"] == truth["bytes.peak"]
    assert memory["kinds"]["weights"] == truth["bytes.params"]
    assert memory["kinds"]["optimizer state"] == truth["bytes.optimizer"]
    assert memory["limit"] == 80 * 10**9
    assert memory["fits"]
    assert found["card"]["asked"] == "a100"
    assert found["card"]["name"] == "A100-80GB-SXM"
    assert found["card"]["source"]


def test_the_largest_batch_by_brute_force(run, gpt2):
    _, out, _ = run("gpt2", "--card", "l4", "--at", SMALL, "--format", "json")
    found = json.loads(out)
    limit = 24 * 10**9
    peaks = {B: gpt2.at(B=B, **SIZES)["bytes.peak"] for B in range(1, 41)}
    truth = max(B for B, peak in peaks.items() if peak <= limit)
    solved = found["solved"]
    assert (solved["largest"], solved["next"], found["sizes"]["B"]) == (truth, truth + 1, truth)
    assert found["memory"]["need"] == peaks[truth]
    a, b, c = (parse(solved["inverse"][key]) for key in "abc")
    numbers = {symbol(name): sp.Integer(value) for name, value in SIZES.items()}
    assert a == 0
    assert sp.floor((limit - c.xreplace(numbers)) / b.xreplace(numbers)) == truth
    assert solved["closed"].startswith("B ≤ (M - (12·N")


def test_a_memory_too_small(run, gpt2):
    code, out, _ = run("gpt2", TINY, "--at", SMALL, "--format", "json")
    found = json.loads(out)
    assert code == 1
    assert found["solved"]["largest"] is None
    assert found["solved"]["short"] == gpt2.at(B=1, **SIZES)["bytes.peak"] - 10**9 == found["memory"]["short"]


def test_a_table_bounds_the_length():
    graph = graph_of("bert")
    wanted = demand(graph, Ledger(graph).formulas)
    sizes = {"B": 8, "V": 30522, "L": 12, "d": 768, "h": 12, "f": 3072, "P": 512}
    found = solve(wanted, 16 * 10**9, "T", sizes, graph.assumptions, graph.symbols)
    assert (found.solved.number, found.condition) == (512, "T <= 512")
    assert found.form is None


def test_a_batch_that_experts_divide():
    graph = graph_of("mixtral")
    ledger = Ledger(graph)
    sizes = {"T": 33, "V": 512, "L": 3, "d": 64, "h": 4, "h_kv": 2, "d_h": 16, "f": 128, "E": 8, "k": 2}
    found = solve(demand(graph, ledger.formulas), 60 * 10**6, "B", sizes, graph.assumptions, graph.symbols)
    fitting = [
        B for B in range(4, 200, 4) if ledger.at(B=B, **sizes)["bytes.peak"] <= 60 * 10**6
    ]  # 8 | 33·2·B
    assert (found.solved.number, found.solved.next) == (fitting[-1], fitting[-1] + 4)


def test_widths_and_heads_that_fit(gpt2):
    wanted = demand(gpt2.graph, gpt2.formulas)
    sizes = {**SIZES, "B": 4}
    del sizes["d"]
    found = solve(wanted, 24 * 10**9, "d", sizes, gpt2.graph.assumptions, gpt2.graph.symbols).solved
    assert found.number % 12 == 0  # h | d
    assert found.next == found.number + 12
    at = {d: gpt2.at(d=d, **sizes)["bytes.peak"] for d in (found.number, found.next)}
    assert at[found.number] <= 24 * 10**9 < at[found.next]


def test_what_can_not_be_solved_for(gpt2):
    wanted = demand(gpt2.graph, gpt2.formulas)
    with pytest.raises(SizeError, match="q is no size of the model; sizes are B, T"):
        solve(wanted, 10**9, "q", SIZES, (), gpt2.graph.symbols)
    with pytest.raises(SizeError, match="give numbers for T"):
        solve(wanted, 10**9, "B", {k: v for k, v in SIZES.items() if k != "T"}, (), gpt2.graph.symbols)


def test_where_the_peak_is_unknown(gpt2):
    """Weights and state are alive with what is kept, then with all gradients: a bound from below, called
    so.
    """
    unknown = dataclasses.replace(gpt2.graph, peak=None)
    wanted = demand(unknown, Ledger(unknown).formulas)
    sizes = {**SIZES, "B": 8}
    found = fit(wanted, 10**11, sizes)
    at = gpt2.at(B=8, **SIZES)
    assert wanted.bound == "at least"
    lasting = at["bytes.params"] + at["bytes.optimizer"]
    assert found.need == lasting + max(at["bytes.saved"], at["bytes.grads"]) <= at["bytes.peak"]
    assert found.form.place == "as backward begins"


def test_time_and_cost_of_gpt2(run):
    """6·N′ + 12·L·T·d = 874,944,921,600/1024 FLOPs a token, 300e9 tokens, 8 A100 at 30 %: 3.97 days."""
    words = (
        "gpt2",
        "--card",
        "a100",
        "--precision",
        "bf16",
        "--cards",
        8,
        "--at",
        f"B=100,{SMALL}",
        "--mfu",
        "0.3",
    )
    _, out, _ = run(
        *words, "--tokens", "300e9", "--price", "2", "--days", 2, "--format", "json", "--no-roofline"
    )
    time = json.loads(out)["time"]
    flops = Fraction(874_944_921_600, 1024) * 300 * 10**9
    seconds = flops / (8 * 312 * 10**12 * Fraction(3, 10))
    assert time["flops"] == flops
    assert time["at_mfu"]["days"] == pytest.approx(float(seconds / 86400))
    assert time["at_mfu"]["cost"] == pytest.approx(float(seconds * 8 * 2 / 3600))
    assert time["cards_in_time"] == 16  # 3.97 days on 8
    assert time["optimizer_steps"] == float(Fraction(300 * 10**9, 8 * 100 * 1024))
    # nanoGPT's notebook: 37.14 % at 0.755 s for 100 sequences on one A100
    one = (
        "gpt2",
        "--card",
        "a100",
        "--precision",
        "bf16",
        "--at",
        f"B=100,{SMALL}",
        "--format",
        "json",
        "--no-roofline",
    )
    for rate in (("--step-seconds", "0.755"), ("--tokens-per-second", float(Fraction(102_400, 755) * 1000))):
        measured = json.loads(run(*one, *rate)[1])["time"]["measured"]
        assert measured["mfu"] == pytest.approx(0.3714, abs=5e-5)
        assert measured["hfu"] > measured["mfu"]


def test_a_measured_rate_gives_the_time(run):
    """Tokens over tokens a second, 10^7 s of 2 cards, at 3 an hour; 10 times as many cards for a tenth."""
    words = ("gpt2", "--card", "a100", "--cards", 2, "--at", f"B=4,{SMALL}", "--no-roofline", "--no-remedies")
    words = (*words, "--tokens-per-second", "5e4", "--tokens", "5e11", "--price", 3)
    found = json.loads(run(*words, "--days", float(Fraction(10**6, 86400)), "--format", "json")[1])["time"]
    assert found["at_mfu"]["mfu"] == found["measured"]["mfu"]
    assert found["at_mfu"]["seconds"] == pytest.approx(10**7)
    assert found["at_mfu"]["cost"] == pytest.approx(2 * 3 * 10**7 / 3600)
    assert found["cards_in_time"] in (20, 21)  # the days are rounded
    assert "at measured MFU" in run(*words)[1]
    stated = json.loads(run(*words, "--mfu", 0.25, "--format", "json")[1])["time"]
    assert stated["at_mfu"]["seconds"] == pytest.approx(4 * stated["at_peak"]["seconds"])


def test_micro_batches_make_a_step(run):
    words = (
        "gpt2",
        "--card",
        "a100",
        "--precision",
        "bf16",
        "--at",
        f"B=4,{SMALL}",
        "--format",
        "json",
        "--no-roofline",
    )
    one = json.loads(run(*words, "--step-seconds", "1")[1])["time"]["measured"]["mfu"]
    many = json.loads(run(*words, "--step-seconds", "1", "--micro-batches", 8)[1])["time"]["measured"]["mfu"]
    assert many == pytest.approx(8 * one)
    memory = json.loads(run(*words, "--micro-batches", 8)[1])["memory"]
    alone = json.loads(run(*words)[1])["memory"]
    assert (memory["bound"], memory["need"]) == ("at most", alone["need"] + alone["kinds"]["gradients"])


def test_the_largest_kind(gpt2):
    wanted = demand(gpt2.graph, gpt2.formulas)
    assert largest_kind(wanted, {**SIZES, "B": 1}) == "optimizer state"
    assert largest_kind(wanted, {**SIZES, "B": 64}) == "kept for backward"
    # a vocabulary beside which all else is small: logits, their gradient, …, three of which are not kept
    assert largest_kind(wanted, {**SIZES, "B": 64, "L": 1, "V": 10**6}) == "what lives only for the moment"
    assert fit(wanted, 10**12, {**SIZES, "B": 1}).fits


# Bad input


EVERY = f"B=8,{SMALL}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--card", "h1000", "--at", EVERY), "no card 'h1000'; did you mean H100-SXM"),
        (("--card", "a100", "--precision", "fp8", "--at", EVERY), "has no peak for fp8, it has fp32"),
        (("--card", "tpu-v4", "--at", EVERY), "TPU-v4 has no peak for fp32, it has bf16, int8"),
        (("--card", "a100", "--at", "B=8,T=-3"), "T = -3: a size is a positive integer"),
        (("--card", "a100", "--at", "B=0"), "B = 0: a size is a positive integer"),
        (("--card", "a100", "--at", "B=8"), "--at leaves out T, V, L, d, h, f"),
        (("--card", "a100", "--at", EVERY, "--mfu", "1.2"), "--mfu = 1.2: it can be at most 1"),
        (("--card", "a100", "--at", EVERY, "--mfu", "0"), "--mfu = 0: it must be more than 0"),
        (("--card", "a100", "--at", EVERY, "--mfu", "40%"), "--mfu = '40%': write a number"),
        (("--card", "a100", "--at", EVERY, "--tokens", "-5"), "--tokens = -5: it must be more than 0"),
        (("--card", "a100", "--at", EVERY, "--cards", "1.5"), "--cards = 1.5: it must be a whole number"),
        (("--card", "a100", "--at", EVERY, "--days", "3"), "--days is for a whole training run"),
        (("--card", "a100", "--at", EVERY, "--tokens", "1", "--steps", "2"), "give one of --tokens, --steps"),
        (("--card", "a100", "--at", f"{EVERY},z=3"), "z: not a size of gpt2"),
        (("--card", "a100", "--at", EVERY.replace("768", "770")), "breaks Mod(d, h) = 0"),
        (("--card", "a100", "--at", SMALL.replace("768", "770")), "breaks Mod(d, h) = 0"),
        (("--card", "a100", "--at", EVERY, "--solve", "q"), "--solve q: not a size of gpt2"),
        (("--card", "peak=1e12", "--at", EVERY), "has no figure for memory"),
        (("--card", "memory=1e12", "--at", EVERY), "has no peak at all"),
        (("--at", EVERY), "Missing option '--card'"),
        (("--card", "a100", "--at", EVERY, "--mode", "decode"), "stored graph of mode train, not decode"),
    ],
)  # fmt: skip
def test_bad_input(run, words, says):
    code, out, err = run("gpt2", *words)
    error = err.splitlines()[-1]
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert says in error


def test_models_without_tokens(run):
    words = ("vit", "--card", "a100", "--at", "B=8,n=14,p=16,C=1000,L=12,d=768,h=12,f=3072")
    code, _, err = run(*words, "--tokens", "1e9")
    assert (code, err.splitlines()[-1][-30:]) == (2, "ow much with --samples or --steps"[-30:])
    code, _, err = run(*words, "--tokens-per-second", "1e4")
    assert code == 2 and err.splitlines()[-1].endswith("give the seconds of a step with --step-seconds")
    code, out, _ = run(*words, "--samples", "1.28e6", "--format", "json", "--no-roofline")
    assert code == 0
    assert json.loads(out)["time"]["optimizer_steps"] == 160_000


@pytest.mark.parametrize(
    ("model", "at", "words", "says"),
    [
        ("unet", "B=1,H=512,W=512,C=4,w=64", ("--parallel", "tp=4"), "no rule divides its convolutions"),
        ("deepseek-mla", "B=1,T=128,V=64,L=2,d=64,h=4,f=64", (), "--at leaves out d_h, d_r, d_v, d_c, d_q; give"),
    ],
)
def test_what_a_model_has_not(run, model, at, words, says):
    """Convolutions are not divided; heads of several widths have none that follows from d and h."""
    code, out, err = run(model, "--card", "a100", "--at", at, *words)
    assert (code, out) == (2, "") and says in err.splitlines()[-1] and "d_h; it is taken" not in err


def test_parameters_where_n_is_another_size(run):
    words = ("mamba", "--card", "a100", "--at", "B=8,T=1024,V=50257,L=12,d=768,N=16,R=48", "--no-roofline")
    out = run(*words, "--no-remedies")[1]
    assert "6·P·D instead" in out and "with P = all parameters" in out


def test_each_share_names_its_count(run):
    """The head's part of what kernels execute, causal pairs skipped, and of the model's FLOPs with full squares."""
    b, t, v, layers, d = 1, 1024, 50257, 12, 768
    words = ("gpt2", "--card", "a100", "--precision", "bf16", "--no-remedies")
    said = " ".join(run(*words, "--at", f"B={b},T={t},V={v},L={layers},d={d},h=12,f=3072")[1].split())
    head, blocks = 6 * b * t * v * d, 72 * b * t * layers * d * d
    model = head + blocks + 12 * b * layers * t * t * d
    executed = head + blocks + 14 * b * layers * d * t * (t + 1) // 2
    assert f"{100 * head / executed:.1f} % of the FLOPs that kernels execute (head)" in said
    assert f"V columns wide: {100 * head / model:.1f} % of model FLOPs" in said


def test_a_least_size_of_1_that_no_form_tells_is_refused_with_what_does_not_fit(run):
    """T = 2 needs more than 8 MB, so nothing above it fits either."""
    sizes = "V=512,L=8,d=64,h=8,h_kv=4,d_h=8,f=160,B=2"
    card = ("--card", "memory=8e6,peak=1e12")
    code, _, error = run("llama", *card, "--at", sizes, "--solve", "T")
    assert code == 2 and "no T from 2 on fits into this memory, and of T = 1 no form tells the peak" in " ".join(error.split())
    code, out, _ = run("llama", *card, "--at", f"{sizes},T=2", "--format", "json")
    assert code == 1 and json.loads(out)["memory"]["need"] > 8e6


def test_a_size_that_moves_the_parameters_is_solved_for_without_naming_them(run):
    """gpt2 has a row of parameters for each position, so N would hold the T that is solved for."""
    words = ("gpt2", "--card", "h100", "--solve", "T", "--no-roofline", "--no-remedies")
    sizes = {"B": 1, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
    out = run(*words, "--at", ",".join(f"{name}={number}" for name, number in sizes.items()))[1]
    block = " ".join(out.split("the largest T")[1].split("M = 80,000,000,000 B")[0].split())
    assert block.startswith("T ≤ (M - ") and "N" not in block and block.count("T") == 1
    right = parse(block.removeprefix("T ≤ ").replace("·", "*").replace("²", "**2"))
    numbers = {symbol(name): number for name, number in {**sizes, "M": 80_000_000_000}.items()}
    assert sp.floor(right.xreplace(numbers)) == 55_681 and "T = 55,681 is the largest" in out


def test_sides_rounded_up_are_those_of_a_multiple_or_more(run):
    """By hand, over B·T = 200 rows: products of V = 1001, f = 100 and d = 60 columns. With 64, d stays as it is."""
    sizes = "B=2,T=100,V=1001,L=2,d=60,h=5,h_kv=5,d_h=12,f=100"
    said = " ".join(run("llama", "--card", "h100", "--precision", "fp32", "--at", sizes, "--no-remedies")[1].split())
    plain = 1001 * 60 + 2 * (3 * 60 * 100 + 4 * 60 * 60)
    by_8 = 1008 * 64 + 2 * (3 * 64 * 104 + 4 * 64 * 64)
    by_64 = Fraction(256, 200) * (1024 * 60 + 2 * (3 * 60 * 128 + 4 * 60 * 60))
    assert f"{100 * by_8 / plain - 100:.1f} % with multiples of 8, {float(100 * by_64 / plain - 100):.1f} % with multiples of 64" in said
    assert "each side of a multiple or more rounded up" in said
