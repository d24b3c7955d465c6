"""Claims as they are pasted: what `latex` prints, and equations of papers with all that stands around them."""

from __future__ import annotations

from functools import cache

import pytest

from symacct.account import Ledger
from symacct.claims import Verdict
from symacct.claims import check as judged
from symacct.errors import SymacctError
from symacct.latex.closed import equations
from symacct.report.answer import answer
from symacct.targets import graph_of


@cache
def ledger(name: str) -> Ledger:
    return Ledger(graph_of(name))


def check(name: str, claim: str, given: str = "", mapped: str = "") -> Verdict:
    return judged(ledger(name), claim, [given] if given else [], None, [mapped] if mapped else [])


# What is printed is read back


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "bert", "t5", "resnet50", "lstm", "mamba"])
def test_every_equation_that_latex_prints_is_a_claim_that_holds(name):
    printed = equations(answer(ledger(name)), "")
    assert len(printed) >= 10
    for line in printed:
        if line.left != "D":  # a definition, of no formula
            found = check(name, f"{line.left} = {' '.join(line.pieces)}")
            assert found.verdict in ("equal", "equal-under"), (line.left, found)
            assert not [c for c in found.conditions if "=" in c], found


def test_a_printed_equation_with_another_number_is_refuted():
    assert check("gpt2", r"M_{\mathrm{optimizer}} = 8\,P + 16\,(3\,L + 2)").verdict == "refuted"
    assert check("bert", r"F_{\mathrm{step}} = 6\,N'\,D + 12\,B\,L\,T^{2}\,d").verdict != "equal"
    assert check("mixtral", r"F_{\mathrm{step}} = 7\,N'\,D").verdict == "refuted"


# Names of keys and counts


def test_a_name_may_be_mapped_to_a_key_or_to_a_count():
    # Narayanan et al. 2021, equation 2; GPT-2's final norm has 2·d more
    claim = r"P = 12 l h^2 (1 + \frac{13}{12h} + \frac{V+s}{12 l h})"
    found = check("gpt2", claim, "f = 4*d", "h=d,s=T,l=L,P=N")
    assert (found.verdict, str(found.difference)) == ("leading-order", "2*d")
    assert check("gpt2", "F = 3*G", "", "F=flops.step,G=flops.forward").verdict == "equal"
    assert check("gpt2", "P = 6*B", "", "P=N").verdict == "refuted"


@pytest.mark.parametrize(
    ("mapped", "what"),
    [
        ("F=flops.stop", "did you mean 'flops.step'"),
        ("F=flops.step,F=N", "told twice"),
        ("F=M", "unknown symbol 'M'"),
    ],
)
def test_a_name_mapped_to_nothing_is_refused(mapped, what):
    with pytest.raises(SymacctError, match=what):
        check("gpt2", "F = 6*N*D", "", mapped)
