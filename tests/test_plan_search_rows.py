"""Rows of a search at random against the one rank that `plan --parallel` shows: all numbers, exactly."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import sympy as sp
from test_parallel_shared import towers

from symacct.devices import card
from symacct.parallel import rank as one_rank
from symacct.parallel import read_degrees
from symacct.plan.ranks import demand_of
from symacct.plan.rows import sent_of
from symacct.plan.search import search, ways
from symacct.plan.setting import Setting
from symacct.plan.shares import share
from symacct.report.searched import spelled
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {
    "V": 520,
    "L": 12,
    "d": 64,
    "h": 8,
    "h_kv": 4,
    "d_h": 8,
    "f": 128,
    "T": 64,
    "E": 8,
    "k": 2,
    "S": 32,
    "P": 64,
}
CARD = card("peak=1e12,memory=3e6,bandwidth=1e11,link=2e10")
SETTING = Setting(cards=48, batch=96, card=CARD, precision="bf16", efficiency=0.5, node=4, network=10**9)
REACH = {"tp": "t", "cp": "t·c", "ep": "t·e", "dp": "t·c·dp", "pp": "t·c·dp·p"}


@cache
def sizes_of(name):
    return {key: SIZES[key] for key in graph_of(name).symbols if key != "B"} | {"B": 1}


@cache
def outcome(name):
    tensor = (1, 2, 4) if name == "llama" else (1, 2)
    shares = tuple(
        share(graph_of(name), way, sizes_of(name), "B")
        for way in ways(tensor, [("none", None)], name == "llama")
    )
    return search(shares, SETTING, sizes_of(name)), shares


def column(name, row):
    return {key: int(values[row]) for key, values in outcome(name)[0].columns.items()}


def rows_of(name, count):
    """Rows that nothing forbids, as different as there are: each use of experts, stages, parts and ZeRO."""
    found, rng = outcome(name)[0], random.Random(name)
    kinds: dict[tuple, list[int]] = {}
    for row in np.flatnonzero(found.reason < 3).tolist():
        at = column(name, row)
        kind = (
            *(at[k] > 1 for k in ("dp", "t", "c", "e", "v")),
            min(at["p"], 3),
            at["zero"],
            at["m"] == at["p"],
        )
        kinds.setdefault(kind, []).append(row)
    chosen = rng.sample(sorted(kinds), min(count, len(kinds)))
    return [rng.choice(kinds[kind]) for kind in chosen]


def rank_of(name, row):
    """The one rank, by the words that a search prints for a row; its sizes and degrees."""
    words, _, beside = spelled(outcome(name)[0], row).partition(" with B=")
    sizes = {**sizes_of(name), "B": int(beside)}
    rank = one_rank(graph_of(name), read_degrees(words), sizes)
    return rank, {symbol(key): sp.Integer(value) for key, value in {**sizes, **rank.numbers}.items()}


def exact(expr, numbers):
    value = sp.sympify(expr).xreplace(numbers)
    return Fraction(int(value.p), int(value.q))


@pytest.mark.parametrize(
    ("name", "count"), [("llama", 4), ("mixtral", 3), ("gpt2", 2), ("bert", 1), ("t5", 1)]
)
def test_each_number_of_a_row_is_that_of_the_one_rank(name, count):
    found, shares = outcome(name)
    for row in rows_of(name, count):
        rank, numbers = rank_of(name, row)
        at = column(name, row)
        need = max(exact(form.bytes, numbers) for form in demand_of(rank, lambda expr: expr).forms)
        assert int(found.bytes[row]) == int(need), at
        sent = dict.fromkeys(REACH, Fraction(0))
        for x in rank.traffic:
            sent[x.axis] += exact(x.ring, numbers)
        mine = sent_of(shares[found.way[row]], {key: np.array([value]) for key, value in at.items()}, "B")
        for axis, number in sent.items():
            assert float(np.ravel(mine[axis])[0]) == pytest.approx(float(number), rel=1e-14), (axis, at)
        work = exact(rank.flops["flops.hardware"], numbers) / Fraction(10**12) * 2
        rates = {}
        for axis, words in REACH.items():
            span = np.prod([at[word] for word in words.split("·")])
            rates[axis] = 10**10 if span <= 4 else 10**9
        waited = sum(sent[axis] / rates[axis] for axis in ("tp", "cp", "ep", "pp"))
        seconds = (
            work * (1 + exact(rank.idle, numbers)) + waited + max(0, sent["dp"] / rates["dp"] - work * 2 / 3)
        )
        assert float(found.seconds[row]) == pytest.approx(float(seconds), rel=1e-13), at


def test_experts_and_parts_are_tried():
    found = outcome("mixtral")[0]
    columns = found.columns
    assert set(columns["e"].tolist()) == {
        1,
        2,
        3,
        4,
        6,
        8,
    }  # what divides 48, 24, 16, … ranks, up to 8 experts
    assert set(columns["v"].tolist()) == {1, 2, 3, 4, 6}  # what divides the 12/p layers of a stage
    said = np.array(found.reasons, dtype=object)[found.reason]
    assert all(said[columns["e"] % 3 == 0]) and "the ranks of experts do not divide 8 experts" in said
    uneven = (columns["v"] > 1) & (columns["m"] % columns["p"] != 0)
    assert uneven.any() and found.reason[uneven].all()
    assert (found.reason[columns["v"] > 1] < 3).any() and (found.reason[columns["e"] > 1] < 3).any()


@pytest.mark.parametrize("zero", [0, 3])
def test_two_towers_of_unlike_depth_hold_what_one_rank_says(zero):
    sizes = {"B": 1, "T": 8, "S": 16, "V": 64, "L": 4, "M": 6, "d": 16, "f": 32, "e": 24, "g": 48}
    graph = towers()[1]
    found = search((share(graph, ways((1,), [("none", None)], False)[0], sizes, "B"),), SETTING, sizes)
    row = next(r for r in np.flatnonzero(found.reason < 3).tolist() if found.columns["zero"][r] == zero)
    words, _, beside = spelled(found, row).partition(" with B=")
    rank = one_rank(graph, read_degrees(words), sizes)
    numbers = {symbol(k): sp.Integer(v) for k, v in {**sizes, "B": int(beside), **rank.numbers}.items()}
    need = max(exact(form.bytes, numbers) for form in demand_of(rank, lambda expr: expr).forms)
    assert int(found.bytes[row]) == int(need)
