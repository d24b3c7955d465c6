"""Claims at known sizes and under stated orders: what is proved, where, and what is left open."""

from __future__ import annotations

from functools import cache

import pytest

from symacct.api import derive

SMALL = {"B": 1, "T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
WEIGHTS = 124439808  # of GPT-2 small: sum of the shapes of its checkpoint, the tied table once


@cache
def ledger(name):
    return derive(name)


def check(target, claim, **options):
    return ledger(target).check(claim, **options)


# Known sizes


def test_a_number_is_equal_at_the_sizes_that_it_speaks_of():
    found = check("gpt2", f"params = {WEIGHTS}", at=SMALL)
    told = tuple(f"{n} = {SMALL[n]}" for n in ("T", "V", "L", "d", "f"))  # B and h say nothing of weights
    assert (found.verdict, found.conditions, found.difference) == ("equal-under", told, 0)
    same = check("gpt2", f"params = {WEIGHTS}", given=list(told))
    assert same.verdict == "equal-under"


def test_a_wrong_number_is_refuted_with_its_error():
    found = check("gpt2", f"params = {WEIGHTS + 1}", at=SMALL)
    assert found.verdict == "refuted"
    assert any(note.endswith("+8.0e-07 %") for note in found.notes)  # 1 of 124 million
    other = check("gpt2", f"params = {WEIGHTS}", at=SMALL | {"V": 50304})
    assert other.verdict == "refuted"


def test_a_published_number_is_equal_at_the_sizes_in_multiply_adds():
    sizes = {"B": 1, "H": 224, "W": 224, "w": 64, "C": 1000}
    found = check("resnet50", "forward = 4089184256", at=sizes)  # torchvision and fvcore: 4.09 GMac
    assert found.verdict == "equal-under"
    assert "unit = MAC" in found.conditions


def test_what_holds_for_all_sizes_needs_none():
    assert check("gpt2", "flops.step = 3*flops.forward", at=SMALL).verdict == "equal"
    assert check("gpt2", "params = 12Ld² + 13Ld + Vd + Td + 2d", at=SMALL).conditions == ("f = 4*d",)


def test_the_peak_in_bytes_is_equal_at_its_sizes():
    claimed = check("gpt2", "bytes.peak = 4BT", at=SMALL)
    (number,) = [n for n in claimed.notes if n.startswith("at the sizes")]
    peak = int(number.split("derived ")[1].split(", claim")[0].replace(",", ""))
    found = check("gpt2", f"bytes.peak = {peak}", at=SMALL)
    assert found.verdict == "equal-under"
    assert check("gpt2", f"bytes.peak = {peak + 1}", at=SMALL).verdict == "refuted"
