"""`symacct plan --parallel`: what a rank holds and sends, the fewest ranks, degrees that cannot be."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial

import pytest
import sympy as sp

from symacct.account import Ledger
from symacct.expressions import parse
from symacct.parallel import rank, read_degrees
from symacct.plan.ranks import sent
from symacct.report.answer import answer
from symacct.report.planned_formulas import bracketed, written
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {"T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
AT = ",".join(f"{name}={value}" for name, value in SIZES.items())


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(run):
    """Run `plan` of gpt2 in bf16 in this process: exit code, stdout, stderr."""
    return partial(run, "plan", "gpt2", "--precision", "bf16")


def planned(run, *words):
    return json.loads(run("--no-remedies", *words, "--format", "json")[1])


def needed(found, batch):
    """The peak of each kind of stage at a batch, by the formulas that a plan prints."""
    known = {**SIZES, **found["parallel"]["degrees"], "B": batch}
    numbers = {symbol(name): sp.Integer(value) for name, value in known.items()}
    peaks: dict[str, list[Fraction]] = {}
    for row in found["parallel"]["peaks"]:
        value = parse(row["formula"]).xreplace(numbers)
        peaks.setdefault(row["stage"], []).append(Fraction(int(value.p), int(value.q)))
    return {stage: max(values) for stage, values in peaks.items()}


@pytest.fixture(scope="module")
def gpt2():
    return Ledger(graph_of("gpt2"))


def test_a_divided_plan_in_words(run, golden):
    code, out, _ = run(
        "--card", "a100", "--at", f"B=4,{AT}", "--parallel", "dp=4,zero=1,tp=2,sp,pp=2,m=8", "--mfu", "0.4"
    )
    assert code == 0
    golden(out)


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "states"), [(0, 1, 1, 1), (1, 1, 1, 8), (2, 1, 8, 8), (3, 8, 8, 8)]
)
def test_what_zero_divides(run, gpt2, zero, weights, gradients, states):
    """Rajbhandari et al. 2020, section 5: stage 1 divides the optimizer's state, 2 also gradients, 3 also
    weights.
    """
    found = planned(run, "--card", "a100", "--at", f"B=4,{AT}", "--parallel", f"dp=8,zero={zero}")
    kinds, whole = found["memory"]["kinds"], gpt2.at(B=4, **SIZES)
    counts = 16 * (3 * 12 + 1)  # the steps of 148 tensors, 4 B each, are on every rank
    assert kinds["weights"] * weights == whole["bytes.params"]
    assert kinds["gradients"] * gradients == whole["bytes.grads"]
    assert (kinds["optimizer state"] - counts) * states == whole["bytes.optimizer"] - counts
    assert kinds["kept for backward"] == whole["bytes.saved"]
    assert ("gathered for a while" in kinds) == (zero == 3)
    said = " ".join(found["notes"])
    assert ("parts are taken as even" in said, "DDP holds a copy" in said) == (zero > 0, zero == 0)
    # stage 2: 12·d² + 13·d numbers of a layer, and those outside the layers, are whole until scattered
    d = 768
    before = 4 * (12 * d**2 + 13 * d + (50257 + 1024) * d + 2 * d)
    assert kinds.get("gradients before they are scattered") == (before if zero == 2 else None)
    assert found["card"]["count"] == 8


def test_the_fewest_ranks_by_brute_force(run):
    """2 GB hold a step at B = 1 from so many ranks on that both the states and what is gathered fit."""
    card = "bf16=1e12,memory=2e9,bandwidth=1e11"
    found = planned(run, "--card", card, "--at", f"B=1,{AT}", "--parallel", "zero=3", "--solve", "dp")
    number = found["parallel"]["fewest"]["dp"]

    def need(ranks):
        words = ("--card", card, "--at", f"B=1,{AT}", "--parallel", f"dp={ranks},zero=3")
        return planned(run, *words)["memory"]["need"]

    assert need(number) == found["memory"]["need"] <= 2 * 10**9 < need(number - 1)
    assert found["card"]["count"] == found["parallel"]["devices"] == number
    # where not even one sample fits among 2 ranks, their plan names that number
    few = ("--card", card, "--at", f"B=9,{AT}", "--parallel", "dp=2,zero=3")
    solved = planned(run, *few)["solved"]
    assert (solved["largest"], solved["enough"]) == (None, {"dp": number})
    assert f"dp = {number} is the fewest with which B = 1 fits" in run(*few, "--no-remedies")[1]


def test_no_number_of_ranks_is_enough(run):
    words = ("--card", "bf16=1e12,memory=5e8", "--at", f"B=1,{AT}", "--parallel", "zero=3", "--solve", "dp")
    found = planned(run, *words)
    assert found["parallel"]["fewest"] == {"dp": None}
    code, out, _ = run(*words)
    assert code == 1
    assert "no dp is enough" in out


def test_the_fullest_stage_is_shown(run):
    p, m = symbol("p"), symbol("m")
    found = planned(run, "--card", "a100", "--at", f"B=4,{AT}", "--parallel", "pp=4,m=8")
    needs = needed(found, 4)
    fullest = found["parallel"]["fullest"]
    assert needs[fullest] == max(needs.values()) == found["memory"]["need"]
    assert set(needs) == {"first stage", "second stage", "last stage"}
    assert (
        sp.cancel(parse(found["parallel"]["idle"]) - (p - 1) / m) == 0
    )  # Narayanan et al. 2021, section 2.2


def test_time_is_of_the_whole_model(run):
    """MFU divides the unsharded model's FLOPs by all cards: 16 cards in dp4 × tp4 reach what 4 alone would
    with a 4th.
    """
    words = ("--card", "a100", "--at", f"B=4,{AT}", "--tokens-per-second", "1e6")
    one = planned(run, *words)["time"]["measured"]["mfu"]
    many = planned(run, *words, "--parallel", "dp=4,tp=4,zero=1")["time"]["measured"]["mfu"]
    assert many == pytest.approx(one / 16)


def test_days_are_those_of_the_busiest_rank(run):
    """12 heads and 50257 rows do not part among 8: attention, projections and head are on every rank, which
    does all of them and 1/8 of the MLP.
    """
    words = ("--card", "a100", "--at", f"B=8,{AT}", "--parallel", "tp=8", "--tokens", "3e11", "--days", "2")
    found = planned(run, *words)["time"]
    tokens, d, layers = 8 * 1024, 768, 12
    own = 6 * tokens * (50257 * d + layers * 4 * d * d) + 6 * tokens * layers * 2 * d * 3072 // 8
    own += 14 * 8 * layers * 1024**2 * d  # full squares, with the scores that fused attention computes again
    seconds = own / 312e12 * 3e11 / tokens
    assert found["at_peak"]["seconds"] == pytest.approx(seconds)
    assert found["at_peak"]["days"] == pytest.approx(6.411, abs=5e-4)
    assert found["at_peak"]["card_hours"] == pytest.approx(8 * seconds / 3600)
    assert found["cards_in_time"] == 8 * 4  # 6.4/2 replicas, and no part of one
    half = planned(run, *words, "--mfu", "0.1")["time"]  # by the definition of MFU
    assert half["at_mfu"]["seconds"] == pytest.approx(half["flops"] / (8 * 312e12 * 0.1))
    assert half["cards_in_time"] % 8 == 0
    said = run(*words, "--mfu", "0.4")[1]
    model = 6 * tokens * (50257 * d + layers * (4 * d * d + 2 * d * 3072)) + 12 * 8 * layers * 1024**2 * d
    executed = own - 14 * 8 * layers * 1024 * (1024 - 1) // 2 * d  # kernels skip pairs behind the causal mask
    assert "the MFU is at most" in said and f"{100 * model / (8 * executed):.1f} %" in said
    two = planned(run, *words[:-6], "--parallel", "pp=2,m=4")["time"]["at_peak"]["seconds"]
    # the last stage has the head, and waits for a quarter of its time: (p - 1)/m
    last = 6 * tokens * (50257 * d + 6 * 12 * d * d) + 14 * 8 * 6 * 1024**2 * d
    assert two == pytest.approx(4 * last * 5 / 4 / 312e12)


def test_what_goes_over_the_links(run, gpt2):
    """Full gradients in fp32 by ring: 2·(n-1)/n · 4·N bytes from every rank, one way over half of 600
    GB/s.
    """
    found = planned(run, "--card", "a100", "--at", f"B=4,{AT}", "--parallel", "dp=8")
    (row,) = found["parallel"]["sent"]
    whole = gpt2.at(B=4, **SIZES)["bytes.grads"]
    assert (row["axis"], row["collective"]) == ("dp", "all_reduce")
    assert row["bytes"] == 2 * whole * 7 // 8
    assert row["seconds"] == pytest.approx(row["bytes"] / 300e9)
    made = rank(gpt2.graph, read_degrees("dp=8"), SIZES)
    (alone,) = sent(made, lambda expr: expr, {**SIZES, "B": 4, **made.numbers}, None)
    assert (alone.seconds, alone.bytes) == (None, row["bytes"])
    assert sp.expand(alone.payload * (alone.ranks - 1) / alone.ranks - alone.formula) == 0


def test_the_largest_batch_of_a_rank(run):
    """The batch that fits on a rank by the formula of its fullest stage, and not one more."""
    found = planned(run, "--card", "l4", "--at", AT, "--parallel", "dp=2,zero=3,tp=2,sp")
    number = found["solved"]["largest"]
    assert max(needed(found, number).values()) <= 24 * 10**9 < max(needed(found, number + 1).values())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--parallel", "pp=5,m=5"), "L = 12, p = 5 breaks p | L"),
        (("--parallel", "pp=13,m=13"), "13 stages, but 12 layers"),
        (("--parallel", "pp=4,v=4,m=4"), "16 parts of stages (p·v), but 12 layers"),
        (("--parallel", "dp=8", "--cards", "9"), "--cards = 9, but --parallel makes dp·tp·cp·pp = 8"),
        (("--parallel", "dp=8,zero=9"), "zero = 9"),
        (("--parallel", "dpp=8"), "'dpp' is no kind of parallelism; did you mean"),
        (("--parallel", "dp=0"), "a degree is a positive integer"),
        (("--parallel", "dp=8", "--solve", "dp"), "with zero=0 every rank holds all states"),
        (("--solve", "dp"), "say how with --parallel, such as zero=3"),
        (
            ("--parallel", "m=4,pp=2", "--micro-batches", "3"),
            "--micro-batches = 3, but --parallel makes m = 4",
        ),
    ],
)
def test_degrees_that_cannot_be(run, words, says):
    code, out, err = run("--card", "a100", "--at", f"B=4,{AT}", *words)
    assert (code, out) == (2, "")
    assert says in err.splitlines()[-1]


def test_formulas_over_common_divisors(gpt2):
    asked = answer(gpt2)
    whole, (t, p, B) = gpt2.formulas["params.total"], map(symbol, ("t", "p", "B"))
    assert written(16 * whole / t, asked) == "16·N/t"
    assert written(4 * whole / (p * t) - 4 * whole / t + 8 * B * B, asked) == "4·N/(p·t) + 8·B² - 4·N/t"
    assert written(-B / t - 1, asked) == "-B/t - 1"
    assert bracketed("(a + b)·c") == "(a + b)·c"
    assert bracketed("a·(b + c) - d") == "(a·(b + c) - d)"


def test_an_interleaved_peak_reads_as_one_multiple_of_the_layers(gpt2):
    """(p·v + p - 1)/(p·v) of all layers are under way on the first stage (Korthikanti et al. 2022, 4.2.3), or
    without the pass at work (p·v + p - v - 1)/(p·v).
    """
    found = rank(gpt2.graph, read_degrees("pp=4,m=8,v=3"), {"B": 1, **SIZES}).shares[0]
    said = [written(live, answer(gpt2)) for live in (found.kept, *found.peak)]
    assert all("·(p·v + p - " in formula and formula.count("/(p·v)") == 1 for formula in said)
    assert "·(p·v + p - 1)/(p·v)" in said[0] and max(map(len, said)) < 200


def test_what_a_stage_keeps_of_other_passes(gpt2):
    """Of what it keeps, one pass of its own layers and of what stands beside them is of the pass at work."""
    numbers = {symbol(k): sp.Integer(v) for k, v in {"B": 1, **SIZES, "p": 4, "m": 8, "v": 3}.items()}
    one = rank(gpt2.graph, read_degrees(""), SIZES).shares[0].kept.xreplace(numbers)
    first, _, last = rank(gpt2.graph, read_degrees("pp=4,m=8,v=3"), SIZES).shares
    layers = gpt2.formulas["bytes.saved"].coeff(symbol("L")).xreplace(numbers) * 12
    mine = [(part.kept - part.others).xreplace(numbers) for part in (first, last)]
    # on the first and the last stage together: a quarter of the layers each, and all that stands outside them
    assert sum(mine) == one - layers + 2 * layers / 4


def test_data_ranks_send_as_much_as_the_stage_with_more():
    """The head is as large as the table before the layers; the final norm beside it makes it 4·d bytes more."""
    sizes = {"T": 64, "V": 96, "L": 4, "d": 32, "h": 4, "h_kv": 2, "d_h": 8, "f": 64, "B": 1}
    found = rank(graph_of("llama"), read_degrees("dp=2,pp=2,m=2"), sizes)
    numbers = {symbol(k): sp.Integer(v) for k, v in {**sizes, **found.numbers}.items()}
    payload = sum(x.payload.xreplace(numbers) for x in found.traffic if x.axis == "dp")
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
    assert payload == 4 * (2 * layer + 96 * 32 + 32)
