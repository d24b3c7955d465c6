"""Claims about gpt2 with its sizes under the names of papers: what is true under its own names is so here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from symacct.account import Ledger
from symacct.api import derive
from symacct.conventions import convention
from symacct.errors import FormulaError
from symacct.storage import loads

PAPER = {
    "B": "n_batch",
    "T": "n_ctx",
    "V": "n_vocab",
    "L": "n_layer",
    "d": "d_model",
    "h": "n_head",
    "f": "d_ff",
}
STORED = Path(__file__).parents[1] / "graphs" / "gpt2.json"


@cache
def ledger():
    text = STORED.read_text(encoding="utf-8")
    renamed = re.sub(r"(?<![\w.])[BTVLdhf](?![\w.])", lambda found: PAPER[found[0]], text)
    return Ledger(loads(renamed), convention(None))


def check(claim, **options):
    return ledger().check(claim, **options)


FIXED = "%s → ∞, the other sizes fixed"
EQ_7 = r"\mathrm{FLOPs} = 72 B L s h^2\left(1+\frac{s}{6h}+\frac{V}{12Lh}\right)"


@pytest.mark.parametrize(
    ("claim", "names"),
    [
        ("forward = 24BLTd² + 4BLT²d + 2BTVd", {}),
        (EQ_7, {"s": "n_ctx", "h": "d_model"}),  # Korthikanti et al. 2022, equation 7
        ("params = 12 L d^2 + 13 L d + V d + T d + 2d", {}),
    ],
)
def test_usual_relations_hold_under_any_names(claim, names):
    found = check(claim, map=names)
    assert (found.verdict, found.conditions) == ("equal-under", ("d_ff = 4*d_model",))


def test_the_width_of_a_head_is_a_quotient_under_any_names():
    for name in ("d_h", "Q"):  # Chowdhery et al. 2022, appendix B
        found = check(f"C/D = 6N_{{matmul}} + 12LH{name}T")
        assert (found.verdict, found.names[name]) == ("equal", "d_model/n_head")


def test_an_ambiguous_h_is_asked_for_under_any_names():
    with pytest.raises(FormulaError, match="--map s=n_ctx,h=d_model or --map h=n_head"):
        check(EQ_7)
    with pytest.raises(FormulaError, match="--map a=n_head,h=d_model"):
        check("forward = 4 B T d h a")
    assert check("forward = 24BLTd² + 4BLT²d + 2BTVd + h - h").proved  # no foreign letter: h is the heads


def test_leading_orders_are_those_of_gpt2():
    found, own = check("params = 12 L d^2"), derive("gpt2").check("params = 12 L d^2")
    assert (found.verdict, found.conditions) == (
        "leading-order",
        ("d_ff = 4*d_model", FIXED % "d_model, d_ff"),
    )
    assert (own.verdict, own.conditions) == ("leading-order", ("f = 4*d", FIXED % "d, f"))
    assert check("params = V d").verdict == derive("gpt2").check("params = V d").verdict == "refuted"
