"""Claims at known sizes and under stated orders: what is proved, where, and what is left open."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import sympy as sp

from symacct.account import Ledger
from symacct.api import derive
from symacct.expressions import evaluate, parse, to_text
from symacct.graph import Limit
from symacct.symbols import symbol

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


# Orders that leave something open


ALONE = [
    ("gpt2", "params = 12 L d^2", ["f = 4*d", "T << d"], ["V << L·d"]),
    ("gpt2", "bytes.saved = 4BLT(8d+2f)", ["h << d", "V << L*d"], ["1 << L"]),
    ("vit", "forward = 8BL(n²+1)d² + 4BL(n²+1)df", ["n**2 << d", "C << d", "p << d"], ["p² << L·d"]),
    ("gpt2", "params = V*d", ["d << V"], ["L·d << V", "L·f << V", "T << V"]),
    ("llama", "forward = 2BTVd", ["d << V", "L*d << V"], ["L·h·d_h << V", "L·f << V"]),
]


@pytest.mark.parametrize(("target", "claim", "given", "missing"), ALONE)
def test_orders_that_bound_nothing_are_told_what_they_lack(target, claim, given, missing):
    found = check(target, claim, given=given)
    assert found.verdict == "leading-order"
    assert "→ ∞" in found.conditions[-1]
    assert found.conditions[-1].endswith(", the other sizes fixed")
    (note,) = [note for note in found.notes if "bound the error" in note]
    assert all(order in note for order in missing)


@pytest.mark.parametrize(("target", "claim", "given", "missing"), ALONE[:4])
def test_with_the_lacking_orders_there_is_a_bound_that_holds(target, claim, given, missing):
    orders = [text.replace("²", "**2").replace("·", "*") for text in missing]
    found = check(target, claim, given=[*given, *orders])
    assert "fixed" not in found.conditions[-1]
    (note,) = [note for note in found.notes if "at most" in note]
    told = note.split("at most ")[1].split(", wherever")[0]
    bound = parse(told.replace("·", "*").replace("²", "**2").replace("ε", "e"), ["e"])
    sides = [part.split("<<") for part in [*given, *orders] if "<<" in part]
    names = list(ledger(target).graph.symbols)
    pairs = [(parse(small, names), parse(large, names)) for small, large in sides]
    rng = random.Random(3)
    inside = 0
    for _ in range(400):
        sizes = {name: rng.choice([1, 2, 5, 30]) for name in names}
        sizes["d"] = rng.randint(1, 10 ** rng.randint(1, 5))
        sizes |= {name: rng.randint(1, 10**8) for name in "V" if name in sizes and given == ["d << V"]}
        sizes["f"] = 4 * sizes["d"]
        epsilon = max(sp.Rational(evaluate(a, sizes), evaluate(b, sizes)) for a, b in pairs)
        if epsilon < 1:
            derived, claimed = evaluate(found.derived, sizes), evaluate(found.read_as, sizes)
            assert abs(claimed - derived) <= bound.xreplace({symbol("e"): epsilon}) * derived
            inside += 1
    assert inside > 20


# What a run at these sizes keeps, by saved_tensors_hooks: 12,220 bytes. At T = 1 each layer's heads are
# turned without a copy: 4·B·h·d_h bytes a layer less than elsewhere, 4·2·6·8·2 = 768.
AT_ONE = {"B": 2, "T": 1, "V": 96, "L": 2, "d": 32, "h": 6, "h_kv": 3, "d_h": 8, "f": 80}
KEPT = "4*B*T*(V + L*(3*h*d_h + 2*h_kv*d_h + 6*d + h + 4*f + 2) + 3*d + 3) + 4*(T*d_h + 1)"


@pytest.mark.parametrize(("bytes_kept", "verdict"), [(12_220, "equal-under"), (12_220 + 768, "refuted")])
def test_kept_bytes_at_a_size_of_1_are_judged_as_they_are_there(bytes_kept, verdict):
    for given in ([], ["T = 1"]):
        found = check("llama", f"bytes.saved = {bytes_kept}", given=given, at=AT_ONE)
        assert (found.verdict, found.exceptions) == (verdict, ())


@pytest.mark.parametrize(("less", "verdict"), [(" - 4*B*L*h*d_h", "equal-under"), ("", "refuted")])
def test_kept_bytes_where_a_relation_sets_a_size_to_1(less, verdict):
    found = check("llama", f"bytes.saved = {KEPT}{less}", given=["T = 1"])
    assert found.verdict == verdict and not any("T = 1" in text for text in found.exceptions)
    assert found.conditions == ("T = 1",)
    assert check("llama", f"bytes.saved = {KEPT}").verdict == "equal"


@pytest.mark.parametrize(
    ("claim", "given", "at"), [("bytes.peak = 618472", [], AT_ONE), ("bytes.peak = 4*B*V", ["T = 1"], None)]
)
def test_a_peak_that_only_a_run_tells_is_neither_proved_nor_refuted(claim, given, at):
    found = check("llama", claim, given=given, at=at)
    assert (found.verdict, found.difference, found.witness) == ("unsettled", 0, {})
    assert found.notes[0].startswith("where T = 1, bytes.peak follows no formula: only a run there tells")


def test_a_general_claim_stays_general_where_numbers_are_those_of_a_size_of_1():
    """4·2·1·96 = 768 of the 12,220 bytes that a run keeps are the logits; no witness is at T = 1 or h = 1."""
    found = check("llama", "bytes.saved = 4*B*T*V", at=AT_ONE)
    assert found.verdict == "refuted"
    assert any("derived 12,220, claim 768," in note for note in found.notes)
    assert found.witness["point"]["T"] > 1 < found.witness["point"]["h"]
    peak = check("llama", "bytes.peak = 4*B*T*V", at=AT_ONE)
    assert peak.verdict == "refuted"
    assert any("only a run there tells" in note for note in peak.notes)


def test_a_relation_that_makes_two_sizes_equal_meets_a_limit_of_that():
    """Of a limit where two sizes are equal only a run tells: `B = L` makes it true, `B = 2*L` excludes it."""
    graph = ledger("gpt2").graph
    limit = Limit("bytes.saved", sp.Eq(symbol("B"), symbol("L"), evaluate=False), None)
    bounded = Ledger(replace(graph, limits=(limit,)))
    kept = f"bytes.saved = {to_text(bounded.formulas['bytes.saved'])}"
    assert bounded.check(kept, given=["B = L"]).verdict == "unsettled"
    assert bounded.check(kept, given=["B = 2*L"]).exceptions == ()
    assert "B = L" in bounded.check(kept).exceptions[0]
