"""Orders such as `T << d` in `derive`: what they leave of a formula, what is dropped, a bound that holds."""

from __future__ import annotations

import json
import random
import re

import pytest
import sympy as sp

import symacct
from symacct import cli
from symacct.account import Ledger
from symacct.claims.bounds import EPSILON, bounded
from symacct.claims.dropped import leading, table
from symacct.claims.leading import stated
from symacct.errors import SizeError
from symacct.latex.reader import read
from symacct.report.answer import Answer, answer
from symacct.symbols import symbol
from symacct.targets import graph_of

B, T, V, L, d = map(symbol, "BTVLd")


@pytest.fixture(scope="module")
def gpt2() -> Answer:
    return answer(Ledger(graph_of("gpt2")), given=["f=4*d"])


def test_what_is_left_of_a_step_is_what_papers_write(gpt2):
    found = {one.key: one for one in leading(gpt2, ["T << d", "V << L*d"])}
    # Kaplan et al. 2020, table 1: 24·L·d² a token forward, 12·L·d² parameters less what is small
    assert found["params.total"].kept == 12 * L * d**2
    assert found["flops.forward"].kept == 24 * B * L * T * d**2
    assert found["flops.step"].rest == 6 * B * T * V * d + 12 * B * L * T**2 * d
    assert found["flops.step"].bound.endswith("with ε < 1 (proved)")


def test_the_bound_holds_wherever_the_orders_do(gpt2):
    rng = random.Random(3)
    texts = ["T << d", "V << L*d"]
    regime = stated(texts, gpt2.ledger.graph, gpt2.relations.replaced)
    found = leading(gpt2, texts)
    assert len(found) >= 4
    for one in found:
        whole = gpt2.formulas[one.key]
        assert sp.expand(one.kept + one.rest - whole) == 0
        bound = bounded(whole, one.kept, one.kept, regime.orders)
        for _ in range(100):
            width, depth, heads = rng.randint(2, 500), rng.randint(1, 40), rng.randint(1, 8)
            point = {
                symbol("h"): sp.Integer(heads),
                d: sp.Integer(width * heads),
                L: sp.Integer(depth),
                T: sp.Integer(rng.randint(1, width * heads - 1)),
                V: sp.Integer(rng.randint(1, depth * width * heads - 1)),
                B: sp.Integer(rng.randint(1, 9)),
            }
            small = max((one_side / other).xreplace(point) for one_side, other in regime.orders)
            assert one.rest.xreplace(point) <= bound.xreplace({EPSILON: small}) * whole.xreplace(point)


def test_an_order_that_proves_nothing_says_so(gpt2):
    assert leading(gpt2, ["T + V << d"]) == []
    assert "check" in table(gpt2, [], ["T + V << d"]).rows[0][1]


def test_orders_that_cannot_all_hold_are_refused(gpt2):
    with pytest.raises(SizeError, match="cannot all hold"):
        leading(gpt2, ["T << d", "d << T"])


def test_derive_prints_them_and_writes_them_as_json(capsys):
    words = ["derive", "gpt2", "--given", "f=4*d", "--given", "T << d"]
    assert cli.main(words) == 0
    assert "at most ε/6, wherever T ≤ ε·d with ε < 1 (proved)" in capsys.readouterr().out
    assert cli.main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["orders"] == ["T << d"]
    assert found["leading"]["flops.step"]["dropped"] == "12*B*L*T**2*d"


def test_where_an_order_is_not_read_that_is_said(capsys):
    assert cli.main(["explain", "gpt2", "--given", "T << d"]) == 2
    assert "check" in capsys.readouterr().err


GIVEN = ["--given", "f=4*d", "--given", "T << d", "--given", r"V \ll 12*L*d"]


@pytest.mark.parametrize(
    "words",
    [
        ["latex", "gpt2"],
        ["latex", "gpt2", "--format", "markdown"],
        ["derive", "gpt2", "--format", "latex"],
        ["derive", "gpt2", "--format", "markdown"],
    ],
)
def test_papers_get_them_as_a_table_that_reads_back(capsys, words):
    assert cli.main([*words, *GIVEN]) == 0
    written = capsys.readouterr().out
    dotted = "\\,"  # Markdown on GitHub has blanks instead
    assert r"$T \ll d$, $V \ll 12\,L\,d$" in written.replace("12 L d", f"12{dotted}L{dotted}d")
    (row,) = [line for line in written.splitlines() if "F_{\\mathrm{step}}" in line and "epsilon" in line]
    _, kept, rest, bound = re.findall(r"\$([^$]*)\$", row)
    # Kaplan et al. 2020: 24·L·d² FLOPs a token forward, three times that in a step
    assert read(kept.replace(" ", dotted), set("BTLVdhf")) == 72 * B * L * T * d**2
    assert sp.expand(read(rest, set("BTLVdhf"))) == 6 * B * T * V * d + 12 * B * L * T**2 * d
    # 6·B·T·V·d / 72·B·L·T·d² <= ε and 12·B·L·T²·d / 72·B·L·T·d² <= ε/6
    assert read(bound) == sp.Rational(7, 6) * symbol("epsilon")


def test_the_ledger_reads_orders_too(capsys):
    assert cli.main(["latex", "gpt2", *GIVEN]) == 0
    told = symacct.derive("gpt2").latex(given=[word for word in GIVEN if word != "--given"])
    assert capsys.readouterr().out == told
