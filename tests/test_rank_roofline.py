"""The roofline of a divided step: a rank's part of the optimizer's step, and what a pipeline stage runs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
import sympy as sp

from symacct.account import Ledger
from symacct.cli import main
from symacct.conventions import convention
from symacct.devices import card
from symacct.evaluation import evaluate
from symacct.parallel import rank, read_degrees
from symacct.parallel.own_experts import of_own_experts
from symacct.parallel.staged import on_stage
from symacct.plan.rank_roofline import slowest
from symacct.plan.roofline import roofline
from symacct.targets import graph_of

SIZES = {"V": 512, "L": 4, "d": 64, "h": 8, "h_kv": 4, "d_h": 8, "f": 128, "T": 64, "B": 2}
CARD = card("fp32=1e12,memory=80e9,bandwidth=1e11")
TENSORS = (
    3 + 9 * SIZES["L"]
)  # Llama's table, last norm and head; of a block four projections, three of the MLP, two norms
# V·d of the table and of the head; a block's q and o, k and v, three of the MLP, two norms; and the norm
# behind them
BLOCK = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
PARAMETERS = 2 * 512 * 64 + SIZES["L"] * BLOCK + 64


@cache
def of(text):
    return rank(graph_of("llama"), read_degrees(text), SIZES)


def found(text):
    made = of(text)
    return slowest(made, Ledger(graph_of("llama")), CARD, SIZES | made.numbers, None)


def bounds(text, optimizer):
    return [b for b in found(text).found.unfused.bounds if (b.kernel.last.phase == "optimizer") == optimizer]


# torch.optim.AdamW's foreach step in float32, op after op, in tensors read and written for each parameter:
# decay 2; the mean's lerp 3; the squares' mul 2 and addcmul 4, which is given the gradient twice; sqrt 2;
# div 2; add 2; and addcdiv 4. A count of steps, one number for each tensor, is read and written too, and
# what is added to it is read.
def test_the_optimizers_step_of_a_zero_rank_by_hand():
    whole, divided = bounds("dp=8", True), bounds("dp=8,zero=1", True)
    moved = sum(b.bytes for b in whole)
    assert 0 <= moved - 21 * 4 * PARAMETERS <= 3 * 4 * TENSORS
    assert [b.bytes for b in divided] == [-(-b.bytes // 8) for b in whole]
    assert [b.bytes for b in bounds("dp=8", False)] == [b.bytes for b in bounds("dp=8,zero=1", False)]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_stages_together_run_each_op_once(name):
    """Two stages move what one card moves. GPT-2's head is its table: both hold and step it, 21 tensors of 4
    bytes.
    """
    sizes = SIZES if name == "llama" else {key: SIZES[key] for key in ("V", "L", "d", "h", "f", "T", "B")}
    whole, made = Ledger(graph_of(name)), rank(graph_of(name), read_degrees("pp=2"), sizes)
    at = sizes | {"L": sizes["L"] // 2}
    roofs = [roofline(on_stage(whole, share.stage), CARD, at).unfused for share in made.shares]
    once = roofline(whole, CARD, sizes).unfused
    assert sum(b.product for roof in roofs for b in roof.bounds) == sum(b.product for b in once.bounds)
    for optimizer in (False, True):
        first, last, all_ = (
            sum(b.bytes for b in roof.bounds if (b.kernel.last.phase == "optimizer") == optimizer)
            for roof in (*roofs, once)
        )
        twice = 21 * 4 * sizes["V"] * sizes["d"] if optimizer and name == "gpt2" else 0
        assert 0 <= first + last - all_ - twice <= 3 * 4


# Of AdamW's arithmetic on each element: decay 1, lerp 3, the squares' mul 1 and addcmul 3, sqrt, div and
# add 1 each, and addcdiv 3. Of the numbers of the table and of the head, V·d each, and of the layers, a
# stage of two has one and half.
def test_flops_of_the_optimizer_are_those_of_the_ranks_own_elements():
    counted = Ledger(graph_of("llama"), convention(None, count="all"))
    whole = int(counted.at(**SIZES)["flops.optimizer"])

    def of_rank(text):
        made = rank(graph_of("llama"), read_degrees(text), SIZES, counted.convention)
        return evaluate(made.flops["flops.optimizer"], SIZES | made.numbers)

    each = whole // PARAMETERS
    assert each == 14 and whole - each * PARAMETERS <= 3 * TENSORS
    assert of_rank("dp=4,zero=2") == Fraction(whole, 4) and of_rank("dp=4") == whole
    last = 512 * 64 + SIZES["L"] // 2 * BLOCK + 64
    assert 0 <= of_rank("pp=2,m=2") - each * last <= 3 * TENSORS


def test_the_stage_with_the_head_is_the_slowest_and_is_named():
    said = found("pp=2,m=2")
    assert "the roofline is that of the last stage, the slowest, with L = 2" in said.said
    modules = {part.name for part in said.found.unfused.modules}
    assert "head" in modules and "embed" not in modules


def test_the_command_says_what_part_is_shown(capsys):
    at = ",".join(f"{name}={value}" for name, value in SIZES.items())
    words = [
        "plan",
        "llama",
        "--card",
        "fp32=1e12,memory=80e9,bandwidth=1e11",
        "--at",
        at,
        "--roofline",
        "--no-remedies",
    ]
    assert main([*words, "--parallel", "dp=2,zero=1,pp=2,m=2"]) == 0
    said = capsys.readouterr().err
    for part in ("1/2 of the elements, as zero=1", "one of the 2 micro-batches", "last stage"):
        assert part in said


EXPERTS = {**SIZES, "E": 4, "k": 2}
ROUTED = 3 * EXPERTS["L"] * EXPERTS["E"] * EXPERTS["d"] * EXPERTS["f"]  # gate, up and down of each expert


def of_experts(text, optimizer):
    made = rank(graph_of("mixtral"), read_degrees(text), EXPERTS)
    ran = slowest(made, Ledger(graph_of("mixtral")), CARD, EXPERTS | made.numbers, None)
    return ran, [b for b in ran.found.unfused.bounds if (b.kernel.last.phase == "optimizer") == optimizer]


# Each weight of an expert is read in forward and for its input's gradient, and its gradient is written: three
# times 4 bytes; half of the experts are elsewhere. The optimizer moves 21 tensors for each, as above.
def test_a_rank_moves_the_weights_of_its_own_experts():
    for optimizer, times in ((False, 3), (True, 21)):
        (_, whole), (ran, own) = of_experts("dp=2", optimizer), of_experts("dp=2,ep=2", optimizer)
        less = sum(b.bytes for b in whole) - sum(b.bytes for b in own)
        assert 0 <= times * 4 * ROUTED // 2 - less <= 4  # the number that is added to counts of steps
        assert sum(b.product for b in whole) == sum(b.product for b in own)
        assert not [text for text in ran.said if "expert" in text]


def test_what_reads_a_part_of_a_weight_is_said():
    ledger = Ledger(graph_of("mixtral"))
    made, sure = of_own_experts(ledger, sp.Integer(2))
    at = next(k for k, e in enumerate(ledger.entries) if made.entries[k].read != e.read)
    entries = list(ledger.entries)
    entries[at] = replace(entries[at], read=entries[at].read / 3)
    ledger.__dict__["entries"] = tuple(entries)
    again, unsure = of_own_experts(ledger, sp.Integer(2))
    assert sure and not unsure and again.entries[at] == entries[at]


def test_zero_divides_the_steps_of_experts_once():
    """Of 4 ranks two hold the same experts: a rank steps a quarter of these as of all other weights."""
    (_, whole), (_, own) = of_experts("dp=4", True), of_experts("dp=4,zero=1,ep=2", True)
    assert [b.bytes for b in own] == [-(-b.bytes // 4) for b in whole]


def test_flops_of_the_optimizer_are_those_of_the_ranks_own_experts():
    counted = convention(None, count="all")

    def of_rank(text):
        made = rank(graph_of("mixtral"), read_degrees(text), EXPERTS, counted)
        return evaluate(made.flops["flops.optimizer"], EXPERTS | made.numbers)

    assert of_rank("dp=2") - of_rank("dp=2,ep=2") == 14 * ROUTED // 2
