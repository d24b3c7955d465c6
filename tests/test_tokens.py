"""A step as 6·N′·D in `derive`: as JSON, and where it alone is near, counted length by length."""

from __future__ import annotations

import json
from functools import cache

import pytest
from sympy import Integer

from symacct import cli
from symacct.account import Ledger
from symacct.expressions import evaluate, parse
from symacct.report.answer import answer
from symacct.report.nearness import BOUNDS, near
from symacct.report.tokens import as_data, said, tokens_of, untold
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {
    "gpt2": {"B": 1, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072},
    "bert": {"B": 3, "V": 30522, "P": 2048, "L": 12, "d": 768, "h": 12, "f": 3072},
    "lstm": {"B": 2, "V": 1000, "L": 2, "d": 650},
    "mamba": {"B": 1, "V": 50280, "L": 24, "d": 768, "N": 16, "R": 48},
    "llama": {"B": 1, "V": 32000, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 11008},
    "mixtral": {
        "B": 8, "V": 32000, "L": 2, "d": 256, "h": 8, "h_kv": 2, "d_h": 32, "f": 512, "E": 8, "k": 2,
    },
    "deepseek-mla": {
        "B": 1, "V": 1000, "L": 4, "d": 512, "h": 8, "d_h": 64, "d_r": 32, "d_v": 64, "d_c": 128, "d_q": 192,
        "f": 1024,
    },
    "t5": {"B": 1, "S": 1, "V": 32128, "L": 6, "d": 512, "h": 8, "d_h": 64, "f": 2048},
}  # fmt: skip


@cache
def ledger(name):
    return Ledger(graph_of(name))


@pytest.mark.parametrize("name", SIZES)
def test_the_lengths_are_those_at_which_the_error_is_within_the_bound(name):
    given = ["S = T"] if name == "t5" else []
    sizes = {**SIZES[name], "T": 7}
    sizes |= {"S": 7} if name == "t5" else {}
    asked = answer(ledger(name), [",".join(f"{k}={v}" for k, v in sizes.items())], given)
    data = as_data(asked)
    step = asked.formulas["flops.step"]
    assert [row["percent"] for row in data["within"]] == list(BOUNDS)
    for length in (1, 2, 3, 5, 6, 8, 46, 47, 60, 243, 244, 352, 353, 511, 512, 513, 1000, 9999, 40000):
        known = {**sizes, "T": length} | ({"S": length} if name == "t5" else {})
        whole = evaluate(step, known)
        short = data["number"] * evaluate(parse(data["parameters"]), known) * known["B"] * length
        assert short + evaluate(parse(data["leaves"]), known) == whole
        for row in data["within"]:
            left, right = row["where"].split(" < ")
            near_ = 100 * abs(short - whole) <= row["percent"] * whole
            assert (evaluate(parse(left), known) < evaluate(parse(right), known)) == near_
            assert (row["from"] <= length < (row["below"] or length + 1)) == near_
        for other in data["others"]:
            counted = data["number"] * evaluate(parse(other["parameters"]), known) * known["B"] * length
            assert counted + evaluate(parse(other["leaves"]), known) == whole


def test_a_head_on_one_token_and_a_state_that_starts_at_zero_have_regions():
    written = {name: list(said(answer(ledger(name)), tokens(name))) for name in ("bert", "lstm", "mamba")}
    alone = "6·N′·D alone is within 1, 5, 10 % while"
    assert f"{alone} n·(2·L·T²·d + d²) < N′·T, n = 99, 19, 9" in written["bert"]
    assert f"{alone} T > n·L·d²/N′, n = 404/3, 28, 44/3" in written["lstm"]
    assert any("6·P′·D alone" in line for line in written["mamba"])  # N is the size of its state


def tokens(name):
    asked = answer(ledger(name))
    return tokens_of(asked, asked.formulas["flops.step"])


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("vit", [], "no rows of tokens"),
        ("mlp", [], "no rows of tokens"),
        ("t5", [], "2 lengths, S and T"),
        ("t5", ["S = T"], ""),
    ],
)
def test_where_there_is_no_such_form_that_is_said(name, given, why):
    asked = answer(ledger(name), (), given)
    told = untold(asked, asked.formulas["flops.step"])
    assert why in told
    assert bool(told) == bool(why)
    assert ("reason" in as_data(asked)) == bool(why)


def test_the_verb_writes_them(capsys):
    assert cli.main(["derive", "gpt2", "--given", "f=4*d", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokens"]
    assert (found["leaves"], found["tokens"]) == ("12*B*L*T**2*d", "B*T")
    assert found["meaning"] == "used in products"
    assert found["within"][1] == {"percent": 5, "where": "38*L*T*d < 12*L*d**2 + V*d"}
    assert cli.main(["derive", "vit"]) == 0
    assert "no 6·N′·D: the inputs are no rows of tokens" in capsys.readouterr().out


def test_a_rest_that_changes_its_sign_has_no_region():
    T, B, d = symbol("T"), symbol("B"), symbol("d")
    assert near(d, 6, B * T**2 - B * d, B, T, {}) is None
    assert near(d, 6, Integer(0), B, T, {}) is None
    nowhere = near(d, 6, 6 * B * T**2 + 6 * B, B, T, {"d": 1})  # at T = 1, 2: at least 2 times all of 6·N′·D
    assert nowhere.here == (None, None, None)
