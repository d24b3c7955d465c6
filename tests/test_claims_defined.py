"""Claims that only say how to count, orders that cannot be, names that are sizes, and errors with a place."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from symacct.api import derive
from symacct.claims.absent import why_absent
from symacct.cli import main
from symacct.conventions import convention
from symacct.errors import FormulaError, SizeError, UnknownSymbol
from symacct.expressions import parse
from symacct.testing import assert_formula


@cache
def ledger(name):
    return derive(name)


def check(target, claim, **options):
    return ledger(target).check(claim, **options)


# A convention that says what the claim says proves nothing of a model.


@pytest.mark.parametrize(
    ("target", "claim"),
    [
        ("gpt2", "flops.step = 2*flops.forward"),
        ("gpt2", "flops.backward = flops.forward"),
        ("gpt2", "flops.backward/flops.forward = 1"),
        ("vit", "flops.backward = 2*flops.forward"),  # pixels get no gradient
        ("mlp", "flops.step = 3*flops.forward"),  # neither does the first layer's input
        ("mlp", "flops.hardware = 3*flops.forward"),
        ("mlp", "2*flops.step = 3*flops.backward"),
    ],
)
def test_no_claim_is_proved_by_its_own_definition(target, claim):
    found = check(target, claim)
    assert not found.proved and found.terms
    assert any("backward = twice the claim would hold by definition" in n for n in found.notes) == (
        target != "gpt2"
    )
    with pytest.raises(AssertionError):
        assert_formula(ledger(target), claim)


def test_a_convention_that_is_asked_for_is_kept_and_said_to_define_the_claim():
    once = ledger("gpt2").under(convention(backward="once"))
    twice = ledger("vit").under(convention("palm"))
    for now, claim in ((once, "flops.step = 2*flops.forward"), (twice, "backward = 2*forward")):
        found = now.check(claim)
        assert found.verdict == "equal"
        assert any("by definition" in note for note in found.notes)
    assert not check("gpt2", "flops.step = 3*flops.forward").notes  # each product has two in backward


def test_a_convention_that_authors_use_is_tried_where_it_says_something_of_the_model():
    # examples/mlp.py: 2·B·d·f and 2·B·f·c forward; twice that backward gives the input a gradient as well
    found = check("mlp", "C = 6BN_matmul")
    assert (found.verdict, found.conditions) == ("equal-under", ("backward = twice",))
    assert not check("mlp", "C = 4BN_matmul").proved  # nobody asked for a backward of one forward


# Orders


@pytest.mark.parametrize(
    ("orders", "kind"),
    [
        (["T << "], SizeError),
        (["<< d"], SizeError),
        (["zz << d"], UnknownSymbol),
        (["T << d", "d << T"], SizeError),
        (["T << (d"], FormulaError),
    ],
)
@pytest.mark.parametrize("claim", ["flops.step = 3*flops.forward", "params = 2 L d^2"])
def test_orders_are_read_whatever_the_verdict(orders, kind, claim):
    with pytest.raises(kind):
        check("gpt2", claim, given=orders)
    with pytest.raises(kind):
        assert_formula(ledger("gpt2"), claim, given=orders)


def test_a_wrong_order_is_an_error_at_the_door(capsys):
    assert main(["check", "gpt2", "flops.step = 3*flops.forward", "--given", "T << "]) == 2
    assert "write one order" in capsys.readouterr().err


# Names


def test_a_letter_that_is_a_size_of_the_model_is_told_where_a_formula_may_be_meant():
    note = "C is read as classes; where it is flops.step, map it with --map C=flops.step"
    assert note in check("vit", "C = 3*flops.forward").notes
    assert not any("is read as" in n for n in check("vit", "forward = 2BCd + 8BL(n^2+1)d^2").notes)
    with pytest.raises(FormulaError, match=r"C is read as classes.*--map C=flops.step"):
        check("vit", "C = 6*N*B")
    with pytest.raises(FormulaError, match=r"P is read as rows .*--map P=params\.total"):
        check("bert", "P = 12 L d^2")
    pixels = "6 B n^2 p^2 d"  # they get no gradient
    mapped = check("vit", f"C = 3*flops.forward - {pixels}", map={"C": "flops.step"})
    assert mapped.verdict == "equal"
    assert any("--map N=params.total" in note for note in check("mamba", "C = 6ND").notes)


def test_a_key_of_another_mode_is_told_with_its_mode():
    with pytest.raises(UnknownSymbol, match="--mode prefill and decode"):
        check("llama", "bytes.kv_cache = 4 B L T h_kv d_h")
    served = replace(ledger("llama").graph, mode="decode")
    for key in ("flops.step", "bytes.saved", "bytes.grads"):
        assert why_absent(key, served, ["flops.forward"]) == (
            "--mode decode has none: it is there in --mode train"
        )
    assert "flops.step" in why_absent("flops.stop", ledger("llama").graph, ledger("llama").formulas)
    with pytest.raises(UnknownSymbol, match="no sizes E"):
        check("llama", "params.active = N")


# Places of errors


@pytest.mark.parametrize(
    ("claim", "under"),
    [
        ("(B+T+V+L+d+h+f)**40 = flops.step", "40"),
        ("flops.step^2 = 3*flops.forward^30 + d^9", "30"),
        (r"C = \left(B + T + V + L + d + h + f\right)^{40}", "40"),
    ],
)
def test_what_is_too_long_to_multiply_out_is_shown(claim, under):
    with pytest.raises(FormulaError, match="terms when multiplied out") as caught:
        check("gpt2", claim)
    *_, text, mark = str(caught.value).splitlines()
    assert text[mark.index("^") :].startswith(under)


# LaTeX: examples/gpt.py has 12·L·d² + 13·L·d + (V + T)·d + 2·d parameters, f being 4·d.


@pytest.mark.parametrize(
    "claim",
    [
        r"params \sim 12 L d^2 + 13 L d + V d + T d + 2d",
        "params ∼ 12 L d^2 + 13 L d + V d + T d + 2d",
        "params ~ 12 L d^2 + 13 L d + V d + T d + 2d",
        "params ~ 12~L~d^2 + 13~L~d + V~d + T d + 2d",
        "params = 12~L~d^2 + 13~L~d + V~d + T d + 2d",
        r"params = \underbrace{12 L d^2}_{\text{sum} = 4 + 8} + \underbrace{13 L d} + V d + T d + 2d",
        r"params = L\underbrace{(12 d^2 + 13 d)}_\text{block} + \overbrace{V d + T d}^{\text{tables}} + 2d",
        r"\#\text{params} = 12 L d^2 + 13 L d + V d + T d + 2d",
        r"\# params = 12 \#\text{layers} d^2 + 13 L d + V d + T d + 2d",
    ],
)
def test_spellings_of_papers(claim):
    assert check("gpt2", claim, given=["f = 4*d"]).verdict == "equal-under"


@pytest.mark.parametrize("prime", ["'", "′", r"^\prime", r"^{\prime}", "^{'}"])
def test_a_prime_belongs_to_its_name(prime):
    assert check("gpt2", f"params = {prime.join(['d', ' L'])}", map={"d_prime": "d"}).read_as == parse("d*L")


@pytest.mark.parametrize(
    "claim", [r"params = \# d", r"\# = 6N", "params ~ 2 ~ d", "params~2d~L", r"params = \underbrace 12 d"]
)
def test_what_may_mean_two_things_is_refused_with_its_place(claim):
    with pytest.raises(FormulaError, match=r"\n +\^"):
        check("gpt2", claim)
