"""Relations as people give them: a head's width, which size is told, and what contradicts the model."""

from __future__ import annotations

import re

import pytest
import sympy as sp

from symacct.account import Ledger
from symacct.claims import check
from symacct.errors import SizeError
from symacct.report.answer import answer
from symacct.report.relations import relations, turned
from symacct.symbols import symbol
from symacct.targets import graph_of

B, T, V, L, d, h, h_kv, d_h, f = map(symbol, ("B", "T", "V", "L", "d", "h", "h_kv", "d_h", "f"))


@pytest.fixture(scope="module")
def gpt2() -> Ledger:
    return Ledger(graph_of("gpt2"))


@pytest.fixture(scope="module")
def llama() -> Ledger:
    return Ledger(graph_of("llama"))


def test_a_head_s_width_is_d_over_h_where_no_size_is(gpt2):
    asked = answer(gpt2, given=["f=4*d", "d=h*d_h"])
    # nanoGPT's estimate_mfu: 6N + 12LHQT a token, H·Q = d; its N without biases and norms is V·d + 12·L·d².
    products, attention = V * d + 12 * L * d**2, 12 * B * L * T**2 * d
    assert asked.formulas["flops.step"] == sp.expand(6 * B * T * products + attention)
    assert asked.relations.texts == ("f = 4*d", "d_h = d/h")


def test_a_head_s_width_in_numbers(gpt2):
    sizes = "B=1,T=8,V=9,L=2,h=3,f=4"
    assert answer(gpt2, [sizes], ["d_h = 64"]).sizes["d"] == 192
    with pytest.raises(SizeError, match="d = 100 breaks d = 64"):
        answer(gpt2, [f"{sizes},d=100"], ["d_h = 64"])


def test_a_claim_may_speak_of_the_width_of_a_head(gpt2):
    found = check(gpt2, "forward = 24*B*L*T*d^2 + 4*B*L*T^2*h*d_h + 2*B*T*V*d", ["f=4*d", "d=h*d_h"])
    assert found.verdict == "equal-under"


def test_a_product_does_not_replace_the_width(llama):
    asked = answer(llama, given=["d = h*d_h"])
    assert symbol("d") in asked.formulas["flops.step"].free_symbols
    attention = asked.formulas["flops.step"].coeff(T, 2)
    assert attention == 12 * B * L * d  # PaLM, appendix B: 12·L·H·Q a token and a position
    back = asked.formulas["flops.step"].xreplace({d: h * d_h})
    assert sp.expand(back - llama.formulas["flops.step"].xreplace({d: h * d_h})) == 0


@pytest.mark.parametrize("left_out", ["d", "h", "d_h"])
def test_a_product_tells_each_of_its_sizes(llama, left_out):
    whole = {"B": 1, "T": 8, "V": 10, "L": 2, "d": 12, "h": 3, "h_kv": 3, "d_h": 4, "f": 5}
    at = ",".join(f"{name}={value}" for name, value in whole.items() if name != left_out)
    found = answer(llama, [at], ["d = h*d_h"])
    assert found.sizes == whole
    # by hand: 2·V·d + L·(4 projections d·12 + 3·d·f + 2 norms) + norm
    assert found.values["params.total"] == 2 * 120 + 2 * (4 * 144 + 3 * 60 + 24) + 12


def test_every_way_to_tell_a_product_says_the_same():
    known = relations(["f = 4*d", "d = h*d_h"], ["f", "d", "h", "d_h"])
    found = [way.replaced for way in turned(known)]
    assert [set(way) for way in found] == [{f, d_h}, {f, h}]
    for way in found:
        assert way[f] == 4 * d
        assert sp.expand((h * d_h).xreplace(way) - d) == 0


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["h = 2*d"], "contradicts h | d"),
        (["h = d + 1"], "contradicts h | d"),
        (["d = 3*f", "h = 6*f"], "contradicts h | d"),
        (["5 | L", "L = 3"], "contradicts 5 | L"),
        (["2*d = 1"], "d would be 1/2"),
    ],
)
def test_what_no_sizes_can_obey_is_refused(gpt2, texts, what):
    with pytest.raises(SizeError, match=re.escape(what)):
        answer(gpt2, given=texts)
    with pytest.raises(SizeError):
        check(gpt2, "C = 6*N*D", texts)


@pytest.mark.parametrize("texts", [["d = 64*h"], ["h = d"], ["d = 2*f", "h = f"], ["T = V"]])
def test_what_some_sizes_obey_is_not(gpt2, texts):
    assert answer(gpt2, given=texts).relations.texts
