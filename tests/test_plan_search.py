"""The search over degrees: its arithmetic against the exact formulas of a rank, its front against brute
force.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import sympy as sp

from symacct.cli import main
from symacct.devices import card
from symacct.errors import SizeError
from symacct.parallel import rank as one_rank
from symacct.parallel import read_degrees
from symacct.plan.search import BEATEN, BIG, evaluated, grid, search, ways
from symacct.plan.setting import Setting
from symacct.plan.shares import Way, share
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {"V": 512, "L": 4, "d": 64, "h": 8, "h_kv": 4, "d_h": 8, "f": 128, "T": 64, "B": 1}
CARD = card("peak=1e12,memory=3e6,bandwidth=1e11,link=2e10")
SETTING = Setting(cards=16, batch=32, card=CARD, precision="bf16", efficiency=0.5, node=4, network=10**9)


@cache
def shares():
    return tuple(share(graph_of("llama"), way, SIZES, "B") for way in ways((1, 2, 4), [("none", None)], True))


@cache
def outcome():
    return search(shares(), SETTING, SIZES)


def test_the_front_is_what_brute_force_finds():
    found = outcome()
    able = [r for r in range(len(found.seconds)) if found.reasons[found.reason[r]] in ("", BEATEN)]
    beaten = set()
    for r in able:
        for other in able:
            better = found.seconds[other] <= found.seconds[r] and found.bytes[other] <= found.bytes[r]
            strictly = found.seconds[other] < found.seconds[r] or found.bytes[other] < found.bytes[r]
            if better and strictly:
                beaten.add(r)
    front = set(found.front.tolist())
    assert front and not front & beaten
    # of equal ones a single one stays
    assert {(found.seconds[r], found.bytes[r]) for r in able if r not in beaten} == {
        (found.seconds[r], found.bytes[r]) for r in front
    }


def test_each_loser_has_its_reason():
    found = outcome()
    for row, code in enumerate(found.reason):
        why = found.reasons[code]
        assert (why == BIG) <= (found.bytes[row] > CARD.memory)
        if why.startswith("fewer micro-batches"):
            assert found.columns["m"][row] < found.columns["p"][row]
        if why.startswith("the stages do not divide"):
            assert SIZES["L"] % found.columns["p"][row]
    said = {found.reasons[k] for k in found.reason}
    assert {"", BIG, BEATEN} <= said and any(s.startswith("the stages do not divide 4 layers") for s in said)


def test_every_configuration_uses_all_cards_and_all_samples():
    columns = outcome().columns
    assert set(columns["dp"] * columns["t"] * columns["c"] * columns["p"]) == {16}
    assert set(columns["dp"] * columns["m"] * columns["B"]) == {32}
    rows = list(
        zip(
            *(columns[k].tolist() for k in columns),
            (w.sequence for w in np.array(outcome().ways, dtype=object)[outcome().way]),
            strict=True,
        )
    )
    assert len(set(rows)) == len(rows)


def test_the_time_of_one_card_and_of_data_ranks_by_hand():
    """FLOPs at half the peak; then 4 ranks on one node: gradients by ring at half the link, beside the
    work.
    """
    alone = Way("none", 1, False, False)
    one = next(s for s in shares() if s.way == alone)
    rank = one_rank(graph_of("llama"), read_degrees(""), SIZES)
    flops = int(
        rank.flops["flops.hardware"].xreplace(
            {symbol(k): sp.Integer(v) for k, v in {**SIZES, "B": 2}.items()}
        )
    )
    weights = int(rank.shares[0].states.params.xreplace({symbol(k): sp.Integer(v) for k, v in SIZES.items()}))
    columns = {
        k: np.array([v])
        for k, v in {"dp": 1, "t": 1, "c": 1, "e": 1, "p": 1, "v": 1, "m": 3, "B": 2, "zero": 0}.items()
    }
    work = 3 * flops / (10**12 * 0.5)
    assert evaluated(one, columns, SETTING, "B", [""])[1][0] == pytest.approx(work)
    four = {**columns, "dp": np.array([4])}
    slow = replace(SETTING, card=card("peak=1e12,memory=3e6,bandwidth=1e11,link=2e8"))
    for setting, link in ((SETTING, 2e10), (slow, 2e8)):
        sent = 2 * weights * 3 / 4 / (link / 2)
        assert evaluated(one, four, setting, "B", [""])[1][0] == pytest.approx(
            work + max(0, sent - 2 * work / 3)
        )
    assert sent > 2 * work / 3  # the slow link is waited for


def test_a_million_rows_are_one_call():
    columns = {k: np.resize(v, 1_000_000) for k, v in grid(shares()[-1], SETTING).items()}
    held, seconds, _ = evaluated(shares()[-1], columns, SETTING, "B", [""])
    assert held.shape == seconds.shape == (1_000_000,) and np.isfinite(seconds).all()


def test_numbers_that_no_degrees_make_are_refused():
    with pytest.raises(SizeError, match="no degrees make 7 cards"):
        search([s for s in shares() if s.way.tensor > 1], Setting(7, 32, CARD, "bf16"), SIZES)


LLAMA_3_8B = "V=128256,L=32,d=4096,h=32,h_kv=8,d_h=128,f=14336,T=8192"
ASKED = [
    "plan",
    "llama",
    "--search",
    "--card",
    "h100",
    "--precision",
    "bf16",
    "--network",
    "50e9",
    "--at",
    LLAMA_3_8B,
]


def test_the_command_lists_the_front_and_why_the_others_lost(capsys):
    assert main([*ASKED, "--cards", "64", "--batch", "512"]) == 0
    text = capsys.readouterr().out
    assert (
        "configurations" in text
        and "does not fit" in text
        and "no faster than one that needs no more memory" in text
    )


def test_as_json_every_configuration_is_on_the_front_or_has_a_reason(capsys):
    assert main([*ASKED, "--cards", "16", "--batch", "32", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["reason"] for row in found["others"])
    assert all(
        row["dp"] * row["tp"] * row["cp"] * row["pp"] == 16 for row in [*found["front"], *found["others"]]
    )
    seconds, held = ([row[key] for row in found["front"]] for key in ("seconds", "bytes"))
    assert seconds == sorted(seconds) and held == sorted(held, reverse=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cards", "64"], "--search spreads --batch samples"),
        (["--cards", "0", "--batch", "8"], "--cards"),
        (["--cards", "2.5", "--batch", "8"], "--cards"),
        (["--cards", "8", "--batch", "8", "--mfu", "1.5"], "--mfu"),
        (["--cards", "8", "--batch", "8", "--mode", "forward"], "graph of mode train"),
    ],
)
def test_bad_input_of_a_search_is_one_sentence(capsys, words, said):
    assert main([*ASKED, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_what_a_trace_remarks_is_said_once_of_all_graphs(capsys):
    """A file is traced for one micro-batch and for several, each with and without recomputation."""
    words = ["--at", "d=64,f=256,c=16", "--recipe", "mixed", "--search", "--cards", "2", "--batch", "8"]
    assert main(["plan", "examples/mlp.py", "--card", "h100", *words]) == 0
    said = capsys.readouterr().err.splitlines()
    assert any("recipe mixed" in line for line in said) and len(set(said)) == len(said)
