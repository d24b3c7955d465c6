"""Letters that are a formula's name in one paper and a size in another: C, a step's FLOPs or the channels."""

from functools import cache

import pytest

from symacct import derive
from symacct.errors import FormulaError


@cache
def ledger(convention=None):
    return derive("gpt2", convention=convention)


def test_the_channels_of_llm_c_are_the_width():
    """karpathy/llm.c, train_gpt2.cu, gpt2_estimate_mfu: 6·N and 6·L·C·T a token, C channels, causal half."""
    found = ledger("llm.c").check("flops.step/D = 6N + 6 L C T")
    assert found.proved
    assert found.names["C"] == "d"
    assert ledger("llm.c").check("flops.step/D = 6N + 9 L C T").verdict == "refuted"
    assert ledger("llm.c").check("C/D = 6N + 6 L d T").names["C"] == "flops.step"


@pytest.mark.parametrize(
    ("claim", "at"),
    [
        ("flops.step/D = 6N + 6 L C T", 24),
        ("forward = 24 B T C^2", 17),
        ("forward = L T (2 C + 4)", 17),
        ("flops.step = C + 6ND", 13),  # the same formula twice
        ("C/D = 6N + 12 L C T", 0),
    ],
)
def test_a_letter_that_may_be_a_size_is_asked_for(claim, at):
    with pytest.raises(FormulaError, match=r"--map C=flops\.step or.*--map C=d") as error:
        ledger().check(claim)
    assert str(error.value).splitlines()[-1].index("^") - 2 == at
    assert ledger().check(claim, map={"C": "d"}) if claim[0] != "C" else True


@pytest.mark.parametrize(
    ("claim", "read"),
    [
        ("backward = 2/3 C", "C"),
        ("C/(6ND) = 1", "C"),
        ("C/(B T) = 6N", "C"),
        ("3 forward = C", "C"),
        ("P = N", "P"),
    ],
)
def test_a_letter_read_as_a_formula_is_said(claim, read):
    found = ledger().check(claim)
    assert found.names[read] == {"C": "flops.step", "P": "params.total"}[read]
