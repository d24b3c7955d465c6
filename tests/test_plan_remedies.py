"""What each remedy of a plan would change: formulas, bytes, FLOPs and peaks."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache, partial

import pytest
import sympy as sp

import symacct
from symacct.account import Ledger
from symacct.devices import card
from symacct.evaluation import evaluate
from symacct.expressions import parse
from symacct.parallel import rank, read_degrees
from symacct.plan.fitting import demand
from symacct.plan.planning import plan
from symacct.plan.question import Case, Question
from symacct.plan.remedies import lower_bounds
from symacct.plan.scores import fused, scores_of
from symacct.plan.solving import Ceiling, fewest
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {"B": 8, "T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
EVERY = ",".join(f"{name}={value}" for name, value in SIZES.items())
TINY = "--card=name=Tiny,bf16=1e12,fp32=5e11,memory=1e9,bandwidth=1e11"

BLOCKS = """
import torch
from torch import nn
dims = {"B": 3, "T": 5, "L": 2, "d": 8}
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x): return x + self.down(torch.relu(self.up(x)))
class Net(nn.Module):
    def __init__(self, L, d):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(L))
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return x
def model(L, d): return Net(L, d)
def inputs(B, T, d): return torch.randn(B, T, d)
"""


@pytest.fixture
def run(run):
    """Run `plan` in this process: exit code, stdout, stderr."""
    return partial(run, "plan")


def need(run, *words):
    out = run(*words, "--format", "json", "--no-roofline", "--no-remedies")[1]
    return json.loads(out)["memory"]


def remedies(run, *words):
    out = run(*words, "--format", "json", "--no-roofline")[1]
    return {row["remedy"]: row for row in json.loads(out)["remedies"]}


def test_remedies_are_traced_anew(run, tmp_path):
    file = tmp_path / "blocks.py"
    file.write_text(BLOCKS)
    code, out, _ = run(file, TINY, "--at", "B=64,T=256,L=6,d=128", "--format", "json", "--no-roofline")
    found = {row["remedy"]: row for row in json.loads(out)["remedies"]}
    full, half = found["recompute each block"], found["16 bits, bf16"]
    B, T, L, d = map(symbol, "BTLd")
    # of each block only its input is left: B·T·d fp32 numbers, the first one's being the model's input
    assert sp.expand(parse(full["becomes"]) - 4 * B * T * d * L) == 0
    # in backward its first product runs once more, 2·4·d² a row: torch stops before the last, whose result
    # none needs
    assert sp.expand(parse(full["more_flops"]) - 8 * B * T * L * d**2) == 0
    assert full["saves"] > 0
    assert sp.expand(parse(half["becomes"]) - 2 * L * (8 * d**2 + 5 * d)) == 0
    assert code == 0


ATTENDING = '''
import torch
from torch.nn.functional import scaled_dot_product_attention

dims = {"B": 2, "T": 16, "L": 2, "d": 64}

class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.out = torch.nn.Linear(d, d, bias=False)
    def forward(self, x):
        x = x.unsqueeze(1)
        return self.out(scaled_dot_product_attention(x, x, x).squeeze(1))

class Blocks(torch.nn.Module):
    def __init__(self, L, d):
        super().__init__()
        self.first = torch.nn.Linear(d, d, bias=False)
        self.blocks = torch.nn.ModuleList(Block(d) for _ in range(L))
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x

def model(L, d):
    return Blocks(L, d)

def inputs(B, T, d):
    return torch.randn(B, T, d)
'''


def test_a_remedy_adds_what_runs_no_second_time_without_it(run, tmp_path):
    """The two products of attention's forward, 4·B·T²·d a block: its backward makes scores again in any case.
    Torch stops before the last product, whose result none needs.
    """
    file = tmp_path / "attending.py"
    file.write_text(ATTENDING)
    _, out, _ = run(file, TINY, "--at", "B=64,T=256,L=6,d=128", "--format", "json", "--no-roofline")
    (full,) = (row for row in json.loads(out)["remedies"] if row["remedy"] == "recompute each block")
    assert sp.expand(parse(full["more_flops"]) - parse("4*B*L*T**2*d")) == 0


def test_step_counts_are_on_every_card(run):
    """8 bytes of AdamW's moments for each of N parameters divided; 4 bytes for each of 12 tensors a block and
    4 others are not.
    """
    code, out, _ = run("gpt2", "--card", "a100", "--at", EVERY, "--format", "json", "--no-roofline")
    found = {row["remedy"]: parse(row["becomes"]) for row in json.loads(out)["remedies"] if "becomes" in row}
    sizes = {symbol(k): sp.Integer(v) for k, v in {**SIZES, "n": 7}.items()}
    moments, counts = sp.Rational(8 * 124_439_808, 7), 4 * (12 * 12 + 4)
    assert code == 0
    assert found["optimizer state over n cards"].xreplace(sizes) == moments + counts
    assert found["all states over n cards"].xreplace(sizes) == 2 * moments + counts
    (all_,) = (row for row in json.loads(out)["remedies"] if row["remedy"] == "all states over n cards")
    assert all_["at"] == {"n": 8} and all_["bytes"] == 16 * 124_439_808 // 8 + counts
    words = ("gpt2", "--card", "a100", "--at", EVERY, "--parallel", "dp=8,zero=3")
    assert all_["peak"] == need(run, *words)["need"]


def test_fewest_cards_for_all_states():
    """Sharded over n cards, weights and optimizer state are 12·N/n beside what is kept, 16·N/n at the step's
    end.
    """
    n, gpt2 = symbol("n"), Ledger(graph_of("gpt2"))
    floor = lower_bounds(demand(gpt2.graph, gpt2.formulas), n)
    numbers = {symbol(k): sp.Integer(v) for k, v in {**SIZES, "B": 1}.items()}
    found = fewest([Ceiling(expr.xreplace(numbers), 10**9) for expr in floor], n)
    at = gpt2.at(**{**SIZES, "B": 1})
    states = at["bytes.params"] + at["bytes.optimizer"]

    def fits(count):
        begun = Fraction(states, count) + at["bytes.saved"]
        return begun <= 10**9 and Fraction(states + at["bytes.grads"], count) <= 10**9

    assert found == next(k for k in range(1, 10_000) if fits(k))


@cache
def blocks(checkpoint=None):
    space: dict = {}
    exec(BLOCKS, space)
    given = {key: space[key] for key in ("model", "inputs", "dims")}
    return symacct.derive(**given, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("asked", "degrees", "times"), [({"accumulate": 3}, None, 3), ({}, "dp=2,m=3", 3), ({}, "tp=2", 0.5)]
)
def test_more_a_step_is_of_all_micro_batches_of_a_rank(asked, degrees, times):
    """The recomputed product of a block, 2·4·d² a row, in each of 3 micro-batches; half of it with tp=2."""
    ledger, sizes = blocks(), {"B": 64, "T": 256, "L": 6, "d": 128}
    case = Case(ledger, ledger.formulas, lambda expr: expr, sizes, ledger.graph.assumptions)

    def divide(new, other=None):
        return rank(new.graph, other or read_degrees(degrees), sizes)

    asked = Question(card("a100"), **asked)
    found = plan(case, asked, lambda **how: blocks(how.get("checkpoint")), divide=divide if degrees else None)
    (full,) = (row for row in found.remedies if row.name == "recompute each block")
    assert evaluate(full.more, found.sizes) == times * 8 * 64 * 256 * 6 * 128**2


def test_other_degrees_are_planned(run):
    """What a remedy says of other degrees is what a plan with them needs."""
    words = ("gpt2", "--card", "a100", "--at", EVERY)
    found = remedies(run, *words, "--parallel", "dp=4,zero=2,tp=2")
    assert {"ZeRO stage 1", "ZeRO stage 2", "optimizer state over n cards"}.isdisjoint(found)
    cases = {"sequence parallelism": "dp=4,zero=2,tp=2,sp", "ZeRO stage 3": "dp=4,zero=3,tp=2"}
    for name, degrees in cases.items():
        assert found[name]["how"] == f"--parallel {degrees}"
        memory = need(run, *words, "--parallel", degrees)
        assert (found[name]["peak"], found[name]["bound"]) == (memory["need"], memory["bound"])
        assert found[name]["bytes"] == memory["kinds"][found[name]["kind"]]


BIASED = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, softmax

FUSED = False
dims = {"B": 2, "T": 32, "d": 16, "h": 4}

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out, self.gate = h, nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, d)
        self.slope = nn.Parameter(torch.ones(h, 1, 1))
    def forward(self, x):
        far = torch.arange(x.shape[1], dtype=x.dtype)
        bias = self.slope * (far - far[:, None])
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if FUSED:
            y = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            y = softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + bias, -1) @ v
        return x + softmax(self.gate(x), -1) * self.out(y.transpose(1, 2).flatten(2))

def model(d, h):
    return Block(d, h)

def inputs(B, T, d):
    return torch.randn(B, T, d)
"""


def test_scores_that_fused_attention_does_not_keep(tmp_path):
    """As the model with the fused kernel is derived, but for a number a row and head, in rows of 32: no scores
    are left, the learned bias is kept, and so are distances and a gate's softmax. Inputs have no integers.
    """
    plain, other = tmp_path / "plain.py", tmp_path / "fused.py"
    plain.write_text(BIASED)
    other.write_text(BIASED.replace("FUSED = False", "FUSED = True"))
    ledger, truth = symacct.derive(str(plain)), symacct.derive(str(other)).formulas["bytes.saved"]
    case = Case(ledger, ledger.formulas, lambda expr: expr, {"B": 2, "T": 64, "d": 32, "h": 4})
    found = next(row for row in plan(case, Question(card("a100"))).remedies if row.name == "fused attention")
    assert sp.expand(truth - parse("128*B*h*ceiling(T/32)") - found.becomes) == 0
    assert "a learned bias is kept" in found.how and found.peak is None


def test_scores_of_t5():
    """Of its three attentions h·S², h·T² and h·T·S numbers a layer; both towers' biases are kept instead."""
    ledger = Ledger(graph_of("t5"))
    found = scores_of(ledger.graph)
    less = ledger.formulas["bytes.saved"] - Ledger(fused(ledger.graph, found)).formulas["bytes.saved"]
    assert sp.expand(less - parse("4*B*L*h*(S**2 + T**2 + S*T) - 4*h*(S**2 + T**2)")) == 0
    assert scores_of(graph_of("gpt2")) is None  # fused already
    assert scores_of(graph_of("lstm")) is None


def test_the_cards_that_are_said_to_be_enough_are(run):
    """A hint's own `--parallel` fits, and one card less does not."""
    words = ("gpt2", "--card=name=Tiny,fp32=5e11,memory=1e9,bandwidth=1e11", "--at", "B=1,T=64,L=2,d=768,h=12,V=50257,f=3072")
    said = " ".join(run(*words, "--no-roofline")[1].split())
    assert "at least 2 cards; gathered weights come on top, and then 3 are enough; --parallel dp=3,zero=3" in said
    assert [need(run, *words, "--parallel", f"dp={cards},zero=3")["fits"] for cards in (2, 3)] == [False, True]


def test_a_remedy_that_saves_nothing_says_so(run, tmp_path):
    """Gathering costs more than a small model's divided states save, as far as the bound tells."""
    (tmp_path / "blocks.py").write_text(BLOCKS)
    words = (str(tmp_path / "blocks.py"), TINY, "--at", "B=25,T=4,L=1,d=64", "--no-roofline")
    rows = [line for line in run(*words)[1].splitlines() if line.startswith("all states over n cards")]
    now = need(run, *words[:4])["need"]
    parted = need(run, *words[:4], "--parallel", "dp=8,zero=3")["need"]
    assert parted > now and rows[0].endswith("none for sure")
