"""Claims of quotients, and what is asked for rather than read one way. Truths are counted by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy as sp
import torch

from symacct.api import derive
from symacct.claims.judging import check
from symacct.conventions import convention
from symacct.errors import FormulaError, UnknownSymbol
from symacct.expressions import evaluate, parse


@pytest.fixture(scope="module")
def gpt2():
    return derive("gpt2")


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("flops.step/flops.forward = 3", "equal"),  # all inputs of products need gradients but the tokens
        ("3 = flops.step/flops.forward", "equal"),
        ("(flops.step - flops.forward)/flops.forward = 2", "equal"),
        ("flops.step/flops.forward - 1 = 2", "equal"),
        ("flops.hardware/flops.step = 4/3", "refuted"),  # nothing is checkpointed
        ("flops.step/(6*N*D) = 1", "leading-order"),  # as flops.step = 6*N*D is
        ("6*N*D/flops.step = 1", "leading-order"),
        ("flops.step = D/N", "refuted"),
    ],
)
def test_quotients_are_judged_as_products_are(gpt2, claim, verdict):
    found = check(gpt2, claim)
    assert found.verdict == verdict
    assert "held" not in " ".join([*found.notes, *(term.meaning for term in found.terms)])


def test_what_a_quotient_gets_wrong_has_a_place(gpt2):
    # The backward of fused attention runs q·kᵀ again: 2·B·L·T²·d beyond the step.
    terms = check(gpt2, "flops.hardware/flops.step = 1").terms
    assert {(str(t.term), t.module) for t in terms} == {("2*B*L*T**2*d", "blocks.*.attn")}


@pytest.mark.parametrize("text", ["1/2Vd", "V*1/2d", "V + 3/4d", r"1/2\,V"])
def test_a_half_before_a_name_is_asked_for(gpt2, text):
    with pytest.raises(FormulaError, match=r"may be \([13]/[24]\)\*[Vd] or [13]/\([24]\*[Vd]\)"):
        check(gpt2, f"params.total = {text}")


@pytest.mark.parametrize(
    ("text", "read"),
    [("1/2 V", "V/2"), ("V^2/3d", "V**2/(3*d)"), ("2V/3d", "2*V/(3*d)"), ("1/2(V)", "V/2")]
    + [
        (r"V \div d", "V/d"),
        ("V ÷ d", "V/d"),
        ("V ∕ d", "V/d"),
        (r"V \times d", "V*d"),
        (r"\frac V d", "V/d"),
    ],
)
def test_what_is_no_half_before_a_name_is_read(gpt2, text, read):
    assert sp.expand(check(gpt2, f"params.total = {text}").read_as - parse(read)) == 0


@pytest.mark.parametrize(
    "claim", ["C = 6ND FLOPs", r"C = 6ND\ \text{FLOPs}", "params.total = 12 L d^2 params"]
)
def test_a_unit_is_no_factor(gpt2, claim):
    with pytest.raises(FormulaError, match="seems to be its unit"):
        check(gpt2, claim)
    assert check(gpt2, "flops.step = FLOPs").verdict == "equal"


def test_only_a_step_is_asked_whether_it_is_the_backward(gpt2):
    step, forward = (check(gpt2, f"flops.{key} = 2/3*flops.{key}").notes for key in ("step", "forward"))
    assert any("only the backward" in note for note in step)
    assert not any("backward" in note for note in forward)


def test_active_parameters_are_not_guessed():
    class Routed(torch.nn.Module):
        def __init__(self, width, many, few):
            super().__init__()
            self.few, self.router = few, torch.nn.Linear(width, many, bias=False)
            self.weights = torch.nn.Parameter(torch.randn(many, width, width))

        def forward(self, x):
            _, picked = self.router(x).topk(self.few, -1)
            return torch.einsum("td,tkdf->tkf", x, self.weights[picked])

    inputs, sizes = (lambda t, d: torch.randn(t, d)), {"t": 8, "d": 6}
    unnamed = derive(
        model=lambda d, many, few: Routed(d, many, few), inputs=inputs, dims={**sizes, "many": 4, "few": 2}
    )
    named = derive(model=lambda d, E, k: Routed(d, E, k), inputs=inputs, dims={**sizes, "E": 4, "k": 2})
    with pytest.raises(UnknownSymbol, match=r"picks by topk .*named E \(experts\) and k"):
        check(unnamed, "flops.forward = 2*N_active*t")
    with pytest.raises(UnknownSymbol, match="picks by topk"):
        check(unnamed.under(convention(params="active")), "flops.forward = 2*N*t")
    # 2·t·d·E for the router, 2·t·k·d² for k of the E matrices
    assert check(named, "flops.forward = 2*N_active*t").verdict == "equal"
    assert check(named, "flops.forward = 2*t*d*E + 2*t*k*d^2").verdict == "equal"


def test_sizes_that_divide_are_told():
    model = derive(
        model=lambda: torch.nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False),
        inputs=lambda H, W: torch.randn(1, 3, H, W),
        dims={"H": 8, "W": 12},
    )
    claim = "flops.forward = 2*27*5*H*W/4"  # 27 multiply-adds an output
    found = check(model, claim)
    assert found.verdict == "refuted"
    assert any(note.startswith("equal where 2 | H and 2 | W") for note in found.notes)
    assert check(model, claim, given=["2 | H", "2 | W"]).verdict == "equal-under"


def test_a_sum_of_many_fractions_is_judged_without_one_line_for_all(gpt2):
    sum_of = " + ".join(f"B/({size} + {at})" for at, size in enumerate("BTVLdhf" * 8, 2))
    found = check(
        gpt2, f"forward = {sum_of}", given="f = d"
    )  # 56 divisors: multiplied out, no memory would hold it
    assert found.verdict == "refuted"
    point = {"B": 2, "T": 2, "V": 2, "L": 2, "d": 2, "h": 1, "f": 2}  # as --given has it
    by_hand = sum(Fraction(2, point[size] + at) for at, size in enumerate("BTVLdhf" * 8, 2))
    assert evaluate(found.read_as, point) == by_hand
