"""Claims as they are pasted: what `latex` prints, and equations of papers with what stands around them."""

from __future__ import annotations

from functools import cache

import pytest

from symacct import cli
from symacct.account import Ledger
from symacct.claims import Verdict
from symacct.claims import check as judged
from symacct.errors import SymacctError
from symacct.latex.closed import equations
from symacct.report.answer import answer
from symacct.targets import graph_of
from symacct.testing import assert_claims, assert_formula


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


# What stands around an equation of a paper


@pytest.mark.parametrize(
    "claim",
    [
        r"\[ C = 3\,F_{\mathrm{forward}} \]",
        r"\( C = 3 F_\mathrm{forward} \).",
        r"$$C = 3 F_{forward}.$$",
        r"\begin{equation} \label{eq:c} C \equiv 3\,F_{\text{forward}}, \end{equation}",
        r"\begin{align*} C &= 3\,F_{\text{forward}}. \label{eq:c} \end{align*}",
        r"C = 3\,F_{\text{forward}} \,,\tag{3}",
        "C = 3 F_{forward};",
    ],
)
def test_an_equation_is_read_with_what_stands_around_it(claim):
    assert check("gpt2", claim).verdict == "equal"


@pytest.mark.parametrize("letter", ["\\lambda", "λ", "\\lambda{}", "{\\lambda}"])
def test_greek_letters_are_names(letter):
    assert check("gpt2", f"C = 3 {letter} F_{{forward}}", "", "lambda=1").verdict == "equal"
    assert check("gpt2", f"C = 3 {letter} F_{{forward}}", "", "lambda=2").verdict == "refuted"


@pytest.mark.parametrize(
    ("claim", "what", "column"),
    [
        ("C = 6 N D % 3", "expected an operator, found '%'", 10),
        ("C = 6 N D!", "expected an operator, found '!'", 9),
        ("C = 6 N D. 3", "expected an operator, found '.'", 9),
        ("C = 1e6", "write 3/2 for 1.5 and 10**9 for 1e9", 5),
        ("C = 1.5 N D", "write 3/2 for 1.5 and 10**9 for 1e9", 5),
        (r"C = 6 \beta N", "unknown symbol 'beta'", 6),
        ("C = 6·N²·D′·%", "unknown symbol 'D_prime'", 9),
    ],
)
def test_what_cannot_be_read_is_named_as_it_was_written(claim, what, column):
    with pytest.raises(SymacctError) as caught:
        check("gpt2", claim)
    message, shown, caret = str(caught.value).split("\n")
    assert what in message
    assert "held" not in message
    assert shown == f"  {claim}"
    assert caret == " " * (2 + column) + "^"


def test_a_long_row_of_closing_signs_is_refused_fast():
    for text in ("\\\\" * 4000, "\\end{" * 1600, "\\end{a}" * 1400):
        with pytest.raises(SymacctError):
            check("gpt2", f"C = 6 N D {text} =")


# What is refused says why


def test_a_key_that_map_tells_is_no_key():
    with pytest.raises(SymacctError, match="names none, for --map tells C"):
        check("gpt2", "C/D = 6*N + 6*L*C*T", "", "C=d")


def test_a_claim_of_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    path = tmp_path / "paper.toml"
    path.write_text('[[claim]]\nformula = "backward = 2*forward"\n[[claim]]\nformula = "C = 6*N*q"\n')
    assert cli.main(["check", "gpt2", "--file", str(path)]) == 2
    told = "".join(capsys.readouterr().out.split())
    assert f"error{path},claim2:unknownsymbol'q';saywhatitmeans,asin--mapq=<size>," in told
    with pytest.raises(SymacctError, match="claim 2: unknown symbol 'q'"):
        assert_claims(ledger("gpt2"), path)


def test_switches_are_read_in_small_letters_as_on_the_command_line():
    # 2 FLOPs are one multiply-add: 12·L·d² weights a token and 2·L·T·d of attention, and the head
    claim = "forward = B*T*(V*d + 12*L*d^2) + 2*B*L*T^2*d"
    assert assert_formula(ledger("gpt2"), claim, given="f = 4*d", unit="mac").verdict == "equal-under"


def test_a_verdict_that_there_is_not_is_no_failed_claim():
    with pytest.raises(SymacctError, match="'leading'; there are equal, equal-under, leading-order"):
        assert_formula(ledger("gpt2"), "C = 6*N*D", verdict="leading")
