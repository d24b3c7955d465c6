"""Where a claim about the peak holds: the conditions imply it, by evaluation at many sizes."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest

from symacct.api import derive
from symacct.expressions import parse, to_text
from symacct.symbols import symbol

NAMES = ("B", "T", "V", "L", "d", "h", "f")
LOSS = "bytes.peak = 4BT(4V + L(16d+h+4)+2d+4) + 4(3Vd+3Td+2T+L(36d²+39d+12)+6d+6)"
OUTSIDE = {"B": 1, "T": 2, "V": 2, "L": 2, "d": 1, "h": 1, "f": 4}  # only a long condition excludes it


@cache
def gpt2():
    return derive("gpt2")


def code(text):
    return text.replace("·", "*").replace("²", "**2")


@cache
def conditions(claim, given):
    """The verdict, and its inequalities as differences that are positive where they hold."""
    found = gpt2().check(claim, given)
    made = []
    for text in (text for text in found.conditions if " > " in text or " < " in text):
        left, sign, right = text.partition(" < " if " < " in text else " > ")
        sides = parse(code(left), NAMES), parse(code(right.split(" (always")[0]), NAMES)
        made.append(sides if sign == " > " else sides[::-1])
    return found, [(compiled(a), compiled(b)) for a, b in made]


@cache
def compiled(expr):
    """The value of a formula of sizes in exact fractions."""
    return lambda point: expr.xreplace({symbol(n): v for n, v in point.items()})


def points(count, wide):
    rng = random.Random(1)
    for _ in range(count):
        high = rng.choice([3, 8, 40, 300] if wide else [2, 3])
        point = {n: max(1, int(math.exp(rng.uniform(0, math.log(high))))) for n in NAMES}
        point["d"] = point["h"] * max(1, point["d"] // point["h"])
        yield point | {"f": 4 * point["d"]}


def claims():
    forms = [to_text(live) for _, live in gpt2().graph.peak]
    return [(LOSS, ("f = 4*d",)), *((f"bytes.peak = {forms[at]}", ("f = 4*d",)) for at in (0, 11, 26))]


@pytest.mark.parametrize("which", range(4))
def test_the_conditions_of_a_peak_imply_that_the_claim_is_equal(which):
    claim, given = claims()[which]
    found, inequalities = conditions(claim, given)
    assert found.verdict == "equal-under"
    assert found.as_json()["conditions"] == list(found.conditions)
    assert not any("conditions more" in text for text in found.conditions)
    forms = [compiled(live) for _, live in gpt2().graph.peak]
    claimed, inside = compiled(found.read_as), 0
    for point in [*points(700, True), *points(500, False), OUTSIDE]:
        if not all(one(point) - other(point) > 0 for one, other in inequalities):
            continue
        inside += 1
        assert max(form(point) for form in forms) == claimed(point)
    assert inside or which
