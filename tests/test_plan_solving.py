"""Solving for a size: every answer and every closed form against brute force over the integers."""

from __future__ import annotations

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from symacct.errors import SizeError
from symacct.evaluation import evaluate
from symacct.expressions import parse
from symacct.plan.direction import direction
from symacct.plan.solving import Ceiling, fewest, inverse, largest
from symacct.symbols import symbol

B, T, n = symbol("B"), symbol("T"), symbol("n")
REACH = 400

small = st.integers(1, 40)
signed = st.integers(-30, 30)
rising = st.builds(lambda a, b, c: a * B**2 + b * B + c, st.integers(0, 5), small, st.integers(0, 300))
floored = st.builds(
    lambda a, b, q: a * sp.floor(B / q) + b * sp.ceiling(B * 2 / (q + 1)), small, small, st.integers(2, 9)
)
wavy = st.builds(
    lambda a, b, c, e: a * B**3 + b * B**2 + c * B + e, st.integers(1, 3), signed, signed, st.integers(0, 300)
)
limits = st.integers(1, 5000)


def brute(ceilings, allowed=lambda x: True):
    """Every allowed size up to REACH at which all ceilings hold."""
    return [
        x
        for x in range(1, REACH)
        if allowed(x) and all(evaluate(c.bytes, {"B": x}) <= c.limit for c in ceilings)
    ]


def agrees(ceilings, allowed=lambda x: True):
    found, truth = largest(ceilings, B, allowed), brute(ceilings, allowed)
    if found.number is not None and found.number >= REACH:
        return  # beyond what was tried by hand
    assert found.number == (truth[-1] if truth else None)
    if found.next is not None and found.next < REACH:
        assert found.next not in truth
        assert all(not allowed(x) for x in range((found.number or 0) + 1, found.next)) or not truth
    if truth:
        missing = [x for x in range(1, truth[-1]) if allowed(x) and x not in set(truth)]
        assert bool(found.gaps) == bool(missing) and set(found.gaps) <= set(missing)
        assert found.gaps[:1] == tuple(missing[:1])
    else:
        worst = max(evaluate(c.bytes, {"B": found.smallest}) - c.limit for c in ceilings)
        assert found.short == worst > 0


@given(st.lists(st.tuples(st.one_of(rising, floored), limits), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_rising_forms(rows):
    agrees([Ceiling(form, limit) for form, limit in rows])


@given(st.lists(st.tuples(wavy, limits), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_forms_that_rise_and_fall(rows):
    agrees([Ceiling(form, limit) for form, limit in rows])


@given(rising, limits, st.integers(1, 12), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_only_allowed_sizes(form, limit, step, table):
    allowed = lambda x: x % step == 0 and x <= table * step  # noqa: E731
    agrees([Ceiling(form, limit), Ceiling(B, table * step)], allowed)


@given(st.integers(0, 6), st.integers(0, 50), st.integers(0, 4000), limits, st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_closed_forms_agree_with_brute_force(a, b, c, limit, q):
    form = sp.Rational(a, q) * B**2 + sp.Rational(b, q) * B + c
    solved = inverse(form, B)
    if a == b == 0:
        assert solved is None
        return
    truth = [x for x in range(1, limit * q + 2) if evaluate(form, {"B": x}) <= limit]
    number = solved.number(limit, {})
    assert max(number, 0) == (truth[-1] if truth else 0)
    exact = solved.bound(sp.Integer(limit))  # the written formula says the same
    if truth:
        assert truth[-1] <= exact < truth[-1] + 1


def test_a_symbolic_closed_form():
    d, h, M = symbol("d"), symbol("h"), symbol("M")
    form = 16 * d**2 + B * T * (34 * d + 5 * h * T)
    assert inverse(form, B).bound(M) == (M - 16 * d**2) / sp.expand(T * (34 * d + 5 * h * T))
    root = inverse(form, T)
    assert (root.a, root.b, root.c) == (5 * B * h, 34 * B * d, 16 * d**2)
    back = form.xreplace({T: root.bound(M)})  # put back in, the bytes are the limit
    assert (
        sp.expand(back.xreplace({B: sp.Integer(2), d: sp.Integer(8), h: sp.Integer(2), M: sp.Integer(10**6)}))
        == 10**6
    )
    assert inverse(form - 40 * B * T * d, T) is None  # the sign of b depends on sizes
    assert inverse(B**3, B) is None
    assert inverse(d, B) is None
    assert inverse(sp.floor(B / 2), B) is None


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 50), limits)
@settings(max_examples=40, deadline=None)
def test_a_closed_form_with_numbers_of_ranks(stages, parts, c, limit):
    """What an interleaved first stage keeps, B·(p·v + p - 1)/(p·v), is positive whatever p and v are."""
    p, v = symbol("p"), symbol("v")
    form = 6 * B * (p * v + p - 1) / (p * v) + c
    solved = inverse(form, B)
    numbers = {"p": stages, "v": parts}
    truth = [x for x in range(1, limit + 1) if evaluate(form, {"B": x, **numbers}) <= limit]
    found = solved.number(limit, {p: sp.Integer(stages), v: sp.Integer(parts)})
    assert max(found, 0) == (truth[-1] if truth else 0)
    assert inverse(B * (p - 1), B) is None  # nothing moves at p = 1
    assert inverse(B * (p - v), B) is None


def test_a_divisor_of_a_width():
    # heads for d = 96: 1, 2, 3, 4, 6, 8, 12, …; 5·h·64 bytes within 3000 allow up to 9 heads, so 8
    found = largest([Ceiling(320 * B, 3000), Ceiling(B, 96)], B, lambda x: 96 % x == 0)
    assert (found.number, found.next, found.binding) == (8, 12, 0)


def test_a_table_that_ends_first():
    found = largest([Ceiling(B * 2, 10**15), Ceiling(B, 512)], B)
    assert (found.number, found.next, found.binding) == (512, 513, 1)


def test_nothing_fits():
    found = largest([Ceiling(B + 10, 5), Ceiling(100 * B, 7)], B)
    assert (found.number, found.smallest, found.short, found.binding) == (None, 1, 93, 1)
    found = largest([Ceiling(2 * B, 5)], B, lambda x: x % 8 == 0)
    assert (found.number, found.smallest, found.short) == (None, 8, 11)


def test_everything_fits():
    found = largest([Ceiling(sp.Integer(5), 7)], B)
    assert found.next is None
    assert found.number > 10**18


def test_exact_beyond_floats():
    limit = 10**30 + 7
    assert largest([Ceiling(3 * B + 1, limit)], B).number == (limit - 1) // 3
    assert inverse(B**2, B).number(limit**2 - 1, {}) == limit - 1  # a float's square root says `limit`


def test_a_gap_is_said():
    # x³ - 12x² + 36x: 25, 32, 27, 16, 5, 0, 7, 32: within 20 at 4, 5, 6, 7 but not at 1, 2, 3
    found = largest([Ceiling(B**3 - 12 * B**2 + 36 * B, 20)], B)
    assert (found.number, found.gaps) == (7, (1,))


def test_a_gap_between_sizes_that_are_allowed():
    # (x - 12)·(x - 47)·x + 9000 is within 9000 from 12 to 47: of multiples of 10 not at 10, but from 20 to 40
    form = (B - 12) * (B - 47) * B + 9000
    tens = largest([Ceiling(sp.expand(form), 9000)], B, lambda x: x % 10 == 0)
    assert (tens.number, tens.next, tens.binding, tens.gaps) == (40, 50, 0, (10,))
    # of 10 - (x - 20)², within 0 but from 17 to 23: of multiples of 9 only 18 is over
    dip = [Ceiling(10 - (B - 20) ** 2, 0), Ceiling(B, 60)]
    assert largest(dip, B, lambda x: x % 9 == 0).gaps == (18,)
    assert largest(dip, B, lambda x: x % 8 == 0).gaps == ()  # 16 and 24 fit
    assert largest(dip, B).gaps == (17,)


@given(st.lists(st.tuples(wavy, limits), min_size=1, max_size=3), st.integers(2, 12))
@settings(max_examples=30, deadline=None)
def test_forms_that_rise_and_fall_at_allowed_sizes(rows, step):
    agrees([Ceiling(form, limit) for form, limit in rows], lambda x: x % step == 0)


def test_sizes_that_end_before_any_ceiling_have_none_that_binds():
    found = largest([Ceiling(B, 100)], B, lambda x: x <= 5)
    assert (found.number, found.next, found.binding) == (5, None, None)


def test_closed_forms_of_unlike_fractions_and_of_no_room():
    assert inverse(B**2 + 100 * B / 3, B).number(5000, {}) == 55  # 55·55 + 5500/3 = 4858.3; 56: 5002.7
    assert inverse(B**2 + 10, B).number(5, {}) == 0
    assert inverse(2 * B + 10, B).bound(symbol("M")) == (symbol("M") - 10) / 2


def test_what_cannot_be_proved_is_scanned():
    # B mod 7 within 3: every allowed size up to the bound that the answer names
    found = largest([Ceiling(sp.Mod(B, 7) * 10 + B, 5000)], B)
    assert found.number == max(x for x in range(1, 6000) if x % 7 * 10 + x <= 5000)
    assert found.tried is not None
    assert found.gaps


def test_another_size_must_be_given():
    with pytest.raises(SizeError, match="give numbers for T"):
        largest([Ceiling(B * T, 5)], B)


@given(st.integers(1, 5000), st.integers(0, 200), limits)
@settings(max_examples=60, deadline=None)
def test_fewest_devices(static, rest, limit):
    form = sp.ceiling(static / n) + rest
    found = fewest([Ceiling(form, limit)], n)
    truth = next((k for k in range(1, static + 1) if -(-static // k) + rest <= limit), None)
    assert found == truth


def test_fewest_refuses_what_grows():
    with pytest.raises(SizeError, match="may grow with n"):
        fewest([Ceiling(100 / n + n, 5)], n)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("B", 1), ("7", 0), ("d*B + T", 1), ("T/B", -1), ("ceiling(d/B) + 3", -1), ("B*T - T*B**2", -1),
        ("Max(B, 3)", 1), ("Max(B, d/B)", None), ("Mod(B, 3)", None), ("B**2 - 9*B", None),
        ("floor(B/3)*B", 1),
        ("d*B - h*B", None), ("Min(2*B, T)", 1), ("-floor(B/2)", -1), ("3/B**2", -1),
    ],
)  # fmt: skip
def test_direction(text, truth):
    assert direction(parse(text), B) == truth
