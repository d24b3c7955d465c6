"""Formulas: text there and back, one form, three-valued comparison, exact numbers."""

from __future__ import annotations

import subprocess
import sys
import time
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symacct.errors import FormulaError, SizeError, UnknownSymbol
from symacct.expressions import (
    Proved,
    Refuted,
    Unsettled,
    canonical,
    compare,
    evaluate,
    evaluator,
    parse,
    to_text,
)
from symacct.symbols import GLOSSARY, symbol

ROOT = Path(__file__).parents[1]
B, T, d, f, h = map(symbol, "BTdfh")

names = st.sampled_from(["B", "T", "d", "h", "S", "lambda"])
atoms = st.one_of(names.map(symbol), st.integers(-9, 9).map(sp.Integer))


def _grown(inner: st.SearchStrategy[sp.Expr]) -> st.SearchStrategy[sp.Expr]:
    """Expressions that sympy builds and evaluates itself, as a trace does."""
    pair = st.tuples(inner, inner)
    positive = inner.map(lambda e: e**2 + 1)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: p[0] - p[1] / 2),
        st.tuples(inner, st.integers(2, 3)).map(lambda p: p[0] ** p[1]),
        st.tuples(inner, st.one_of(names.map(symbol), positive)).map(lambda p: p[0] / p[1]),
        st.tuples(inner, st.integers(2, 8)).map(lambda p: sp.floor(p[0] / p[1])),
        st.tuples(inner, names.map(symbol)).map(lambda p: sp.ceiling(p[0] / p[1])),
        st.tuples(inner, names.map(symbol)).map(lambda p: sp.Mod(p[0], p[1])),
        pair.map(lambda p: sp.Max(*p)),
        pair.map(lambda p: sp.Min(*p)),
    )


expressions = st.recursive(atoms, _grown, max_leaves=6)
points = st.fixed_dictionaries({name: st.integers(1, 40) for name in ["B", "T", "d", "h", "S", "lambda"]})


# Text


@given(expressions)
@settings(max_examples=150)
def test_text_reads_back_to_the_same_expression(expr):
    try:
        text = to_text(expr)
    except FormulaError:  # sympy can make powers that formulas do not have
        assume(False)
    assert parse(text) == expr


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (12 * d**2 + 13 * d + 2, "12*d**2 + 13*d + 2"),
        (sp.Rational(3, 2) * d, "3*d/2"),
        (d / (2 * h), "d/(2*h)"),
        (-d / h**2, "-d/h**2"),
        (1 / (d + h), "1/(d + h)"),
        (h - d, "-d + h"),
        (sp.Mod(d, h), "Mod(d, h)"),
        (3 * sp.Mod(d, 2 * h), "3*Mod(d, 2*h)"),
        (h * sp.floor(d / 2 + sp.Rational(1, 2)), "floor(d/2 + 1/2)*h"),
        (sp.ceiling(d / h) ** 2, "ceiling(d/h)**2"),
        (sp.Max(d, h, 2), "Max(d, h, 2)"),
        (sp.factor(2 * d + 2 * h), "2*(d + h)"),
        (sp.Rational(-1, 2), "-1/2"),
        (7, "7"),
    ],
)
def test_formula_strings(expr, text):
    assert to_text(expr) == text
    assert parse(text) == expr


STRANGE = [d**h, sp.sqrt(d), sp.Float(1.5) * d, sp.oo, sp.log(d), sp.Symbol("a b"), d**65]


@pytest.mark.parametrize("expr", STRANGE, ids=str)
def test_what_formulas_do_not_have_has_no_text(expr):
    with pytest.raises(FormulaError, match="no formula string"):
        to_text(expr)


def test_text_is_the_same_under_every_hash_seed():
    code = (
        "from symacct.expressions import canonical, parse, to_text\n"
        "print(to_text(canonical(parse('(B+T*d)*(h+lambda/d)**2 + Max(B, T, d*h, floor(S/2), 3)'))))"
    )
    command = [sys.executable, "-c", code]
    first, second = (
        subprocess.check_output(command, cwd=ROOT, env={"PYTHONHASHSEED": seed}, text=True) for seed in "12"
    )
    assert first == second


# Reading


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("2*d^2", 2 * d**2),
        ("-d**2", -(d**2)),
        ("2**3**2", sp.Integer(512)),
        ("d/h/2", d / h / 2),
        ("1/2 - -+d", sp.Rational(1, 2) + d),
        ("2*-d", -2 * d),
        (" ( d )\n", d),
        ("a_1*h_kv", symbol("a_1") * symbol("h_kv")),
        ("Max(3, 5)", sp.Integer(5)),
        ("floor(7/2) + ceiling(7/2) + Mod(7, 4)", sp.Integer(10)),
        ("Max*d", symbol("Max") * d),
        ("6" + "0" * 12, sp.Integer(6 * 10**12)),
    ],
)
def test_reading(text, expr):
    assert parse(text) == expr


NAMES = [*"SENIOQC", "beta", "gamma", "lambda", "zeta", "pi", "oo", "if", "None", *GLOSSARY]


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_every_name_is_a_size(name):
    assert parse(name) == symbol(name)


def test_loop_indices_may_be_zero():
    expr = parse("d*i1 + d")
    assert to_text(expr) == "d*i1 + d"
    assert evaluate(expr, {"d": 3, "i1": 0}) == 3
    assert evaluator(expr)(d=3, i1=[0, 1]).tolist() == [3, 6]
    assert canonical(parse("Max(d*i1, d)")) == parse("Max(d*i1, d)")
    assert canonical(parse("Max(d*i1, 0)")) == parse("d*i1")


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "expected a number, a name or a bracket, found the end", 0),
        ("2*(d", "expected an operator or ')', found the end", 4),
        ("d)", "expected an operator, found ')'", 1),
        ("2d", "write * to multiply", 1),
        ("1.5*d", "only exact numbers", 1),
        ("1e6", "only exact numbers", 1),
        ("d**-1", "write 1/x", 3),
        ("d**h", "an exponent is an integer", 3),
        ("d/(h - h)", "division by zero", 2),
        ("Mod(d, 0)", "Mod by zero", 0),
        ("Mod(d)", "Mod takes 2 arguments, not 1", 0),
        ("2*max(d, h)", "did you mean 'Max'?", 2),
        ("ceil(d)", "did you mean 'ceiling'?", 0),
        ("E(d)", "write * to multiply", 0),
        ("d if d else h", "expected an operator", 2),
        ("_d", "names begin with a letter", 0),
    ],
)
def test_a_caret_shows_what_cannot_be_read(text, message, column):
    with pytest.raises(FormulaError) as caught:
        parse(text)
    first, shown, caret = str(caught.value).split("\n")
    assert message in first
    assert caret == " " * (2 + column) + "^"
    assert shown == "  " + text


def test_an_unknown_name_has_a_near_match_and_a_caret():
    with pytest.raises(UnknownSymbol) as caught:
        parse("2*d_modle", names=("d_model", "B"))
    assert str(caught.value) == "unknown symbol 'd_modle'; did you mean 'd_model'?\n  2*d_modle\n    ^"
    with pytest.raises(UnknownSymbol, match="known are B, T"):
        parse("x - x", names=("T", "B"))
    assert parse("T*B", names=("T", "B")) == T * B


HOSTILE = [
    "__import__('os').getcwd()",
    "d.__class__.__mro__",
    "(lambda: 1)()",
    "[d]",
    "'x'",
    "d; h",
    "d = 1",
    "9**9**9",
    "9**999**9",
    "(9**9*d)**999",
    "*".join(["9**999"] * 5000),
    "((d**64 + 1)**64 + 1)**64",
    "*".join("d" * 2000),
    "9" * 5000,
    "(" * 5000 + "d" + ")" * 5000,
    "**".join("d" * 2000),
    "Max(" * 500 + "d" + ", 1)" * 500,
    "1/(d + " * 30 + "d" + ")" * 30,
    "Max(" + ",".join(f"a{i}" for i in range(1000)) + ")",
    "x + " * 50_000,
    "d\0h",
    "d\u202eh",
    "\u05d0 + d",
    "d\u00a0+ h",
    "²",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_at_once(text):
    begin = time.perf_counter()
    with pytest.raises(FormulaError) as caught:
        parse(text)
    assert time.perf_counter() - begin < 1
    message = str(caught.value)
    assert len(message) < 400
    assert message.replace("²", "").isascii()  # a sign of formulas, shown as it is
    assert all(c.isprintable() or c == "\n" for c in message)


@given(st.text(alphabet="dh12+-*/^(), .Maxfloor_%\0é", max_size=30))
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text):
    try:
        expr = parse(text)
    except FormulaError:
        return
    assert not expr.has(sp.zoo, sp.nan, sp.oo, sp.Float)


def test_a_stored_graph_is_read_quickly():
    sizes = ["B", "T", "d", "h", "f", "V", "L", "d/h", "B*T"]
    texts = [f"{k}*{a}*{b}" for k, a, b in product((1, 2, 3, 6), sizes, sizes)]
    begin = time.perf_counter()
    for text in texts:
        parse(text, names=("B", "T", "d", "h", "f", "V", "L"))
    assert time.perf_counter() - begin < 1  # 324 expressions: 0.03 s alone on a machine


# One form


@given(expressions, points)
@settings(max_examples=100)
def test_the_canonical_form_keeps_every_value(expr, point):
    form = canonical(expr)
    assert canonical(form) == form
    try:
        expected = evaluate(expr, point)
    except SizeError:
        assume(False)
    assert evaluate(form, point) == expected


def test_the_canonical_form_multiplies_out_around_and_in_functions():
    assert canonical(parse("2*(d + h)*(d - h)")) == 2 * d**2 - 2 * h**2
    assert canonical(parse("floor((d + 2)/2)*(d + 1)")) == canonical(parse("(floor(d/2) + 1)*(d + 1)"))
    assert canonical(parse("Max(d, 2*d, h, 1)")) == sp.Max(2 * d, h)
    assert canonical(parse("Min(d, 2*d, 1)")) == 1
    assert canonical(parse("Max(d*T - d, 0)")) == d * T - d


@pytest.mark.parametrize("expr", [2.5 * d, sp.Float(2), sp.oo, sp.pi * d, sp.zoo + d])
def test_inexact_numbers_are_refused(expr):
    with pytest.raises(FormulaError, match="not an exact finite number"):
        canonical(expr)


def test_a_product_that_would_not_fit_is_refused_at_once():
    begin = time.perf_counter()
    with pytest.raises(FormulaError, match="multiplied out"):
        canonical(parse("(B + T + d + h + f)**30*(B + V)**20"))
    assert time.perf_counter() - begin < 1


# Comparison


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(d + h)**2", "d**2 + 2*d*h + h**2"),
        ("d - h*floor(d/h)", "Mod(d, h)"),
        ("ceiling(d/2)", "floor((d + 1)/2)"),
        ("ceiling(d/h)", "floor((d + h - 1)/h)"),
        ("floor(floor(d/2)/2)", "floor(d/4)"),
        ("floor((floor((d - 3)/2) + 1 - 3)/2) + 1", "floor((d - 7)/4) + 1"),
        ("floor((7*d + 5)/3)", "2*d + 1 + floor((d + 2)/3)"),
        ("Max(1, d)", "d"),
        ("Max(h, d, 1)", "Max(d, h)"),
        ("(d**2 - h**2)/(d + h)", "d - h"),
    ],
)
def test_equal_formulas_are_proved_equal(a, b):
    assert compare(parse(a), parse(b)) == Proved()


@given(expressions, expressions)
@settings(max_examples=40)
def test_a_verdict_is_true(a, b):
    try:
        verdict = compare(a, b)
    except FormulaError:
        assume(False)
    if isinstance(verdict, Refuted):
        assert (evaluate(a, verdict.point), evaluate(b, verdict.point)) == (verdict.left, verdict.right)
        assert verdict.left != verdict.right
    if isinstance(verdict, Proved):
        for value in (1, 2, 5, 12):
            point = {name: value + k for k, name in enumerate(["B", "T", "d", "h", "S", "lambda"])}
            try:
                assert evaluate(a, point) == evaluate(b, point)
            except SizeError:
                continue


def test_the_smallest_witness_is_shown():
    assert compare(12 * d**2, 12 * d**2 + 13 * d) == Refuted({"d": 1}, 12, 25)
    assert compare(d, d + sp.floor(h / 8)) == Refuted({"d": 1, "h": 8}, 1, 2)
    assert compare(sp.floor(d / h), d / h) == Refuted({"d": 1, "h": 2}, 0, Fraction(1, 2))


def test_only_points_of_the_domain_refute():
    multiples = ({"d": h * k, "h": h, "B": 1} for h in range(1, 10) for k in range(1, 10))
    assert compare(sp.floor(d / h), d / h, multiples) == Unsettled(81)
    endless = iter(lambda: {"d": 4, "h": 3}, None)
    assert compare(sp.floor(d / h), d / h, endless) == Refuted({"d": 4, "h": 3}, 1, Fraction(4, 3))


def test_what_is_not_proved_is_unsettled():
    verdict = compare(parse("Max(d, h) + Min(d, h)"), d + h)
    assert isinstance(verdict, Unsettled)
    assert verdict.tried > 100


# Numbers


def test_numbers_are_exact_and_large():
    assert evaluate(12 * d**4, {"d": 10**12}) == 12 * 10**48
    assert evaluate(d / h, {"d": 3, "h": 6}) == Fraction(1, 2)
    assert type(evaluate(d / h, {"d": 6, "h": 3})) is int
    assert evaluate(d, {"d": np.int64(3), "unused": 1}) == 3
    assert evaluate(7, {}) == 7


def test_all_missing_numbers_are_named_at_once():
    with pytest.raises(SizeError, match="no number for T, h; give one for each of T, d, h"):
        evaluate(T * d * h, {"d": 1})
    with pytest.raises(SizeError, match="no number for T, h"):
        evaluator(T * d * h)(d=1)


@pytest.mark.parametrize("size", [0, -1, 1.0, 2.5, True, "4", None, Fraction(1, 2)])
def test_sizes_are_positive_integers(size):
    with pytest.raises(SizeError, match="is not a positive integer"):
        evaluate(d, {"d": size})


def test_a_formula_without_a_value_says_where():
    with pytest.raises(SizeError, match="divides by zero at d=2, h=2"):
        evaluate(1 / (d - h), {"d": 2, "h": 2})
    with pytest.raises(SizeError, match="divides by zero at d=2, h=2"):
        evaluator(1 / (d - h))(d=[3, 2], h=2)
    with pytest.raises(SizeError, match="divides by zero at d=1"):
        evaluator(sp.Mod(d, d - 1))(d=[3, 2, 1])


# Many points at once


@given(expressions, st.lists(points, min_size=1, max_size=4), st.sampled_from([1, 10**5, 10**12]))
@settings(max_examples=120)
def test_many_points_have_the_values_of_each_one(expr, rows, scale):
    rows = [{name: size * scale for name, size in row.items()} for row in rows]
    try:
        expected = [evaluate(expr, row) for row in rows]
    except SizeError:
        assume(False)
    run = evaluator(expr)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    if any(isinstance(value, Fraction) for value in expected):
        with pytest.raises(SizeError, match="not a whole number"):
            run(**columns)
        return
    try:
        found = run(**columns)
    except SizeError:  # the expanded form has a pole that the formula itself does not have
        assume(False)
    assert np.broadcast_to(found, len(rows)).tolist() == expected


def test_int64_is_used_only_when_every_step_fits():
    run = evaluator(B * T * d - B * T * h)
    assert run(B=[2, 3], T=5, d=7, h=1).dtype == np.int64
    large = run(B=np.array([2**31]), T=2**31, d=2**31, h=2**31 - 1)
    assert large.dtype == object
    assert large.tolist() == [2**62]
    with pytest.raises(SizeError, match="not int64's 64"):
        evaluator(B * T * d, exact="int64")(B=2**31, T=2**31, d=2)
    assert evaluator(B * T * d, exact="int64")(B=2**31, T=2**31, d=1) == 2**62
    assert run.symbols == (B, T, d, h)


def test_arrays_broadcast():
    grid = evaluator(B * d + sp.Max(B, 3))(B=np.arange(1, 5)[:, None], d=np.arange(1, 4))
    assert grid.shape == (4, 3)
    assert grid[3, 2] == 4 * 3 + 4
    assert evaluator(B)(B=np.empty(0, np.int64)).shape == (0,)
    assert evaluator(sp.Integer(5))() == 5


@pytest.mark.parametrize("sizes", [[1.0], [True], ["1"], [None]])
def test_arrays_hold_integers(sizes):
    with pytest.raises(SizeError, match="not integers"):
        evaluator(B)(B=sizes)


def test_arrays_hold_positive_integers():
    with pytest.raises(SizeError, match="B=0 is not a positive integer"):
        evaluator(B)(B=[1, 0])


def test_a_typical_formula_is_fast():
    formula = parse(
        "12*L*d**2 + 13*L*d + V*d + T*d + 2*d + 4*B*L*T**2*d + 24*B*L*T*d**2 + 2*B*T*V*d + 5*B*h*T**2*L"
        " + 34*B*T*d*L + 3*f*d*L + B*T*f*L + 2*B*T + 7*h*T*k + 16*f"
    )
    rng = np.random.default_rng(0)
    columns = {s.name: rng.integers(1, 60, 10**6) for s in formula.free_symbols}
    run = evaluator(formula)
    begin = time.perf_counter()
    values = run(**columns)
    assert time.perf_counter() - begin < 1  # a million configurations: 0.03 s alone on a machine
    assert values[123456] == evaluate(formula, {name: int(sizes[123456]) for name, sizes in columns.items()})
