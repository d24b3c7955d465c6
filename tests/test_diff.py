"""Differences of two models: subtracted exactly, and the sign turns where the crossover says."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from symacct import cli
from symacct.account import Ledger
from symacct.diff import crossover, differences
from symacct.errors import SizeError
from symacct.expressions import Proved, compare, evaluate, parse
from symacct.report.differing import as_json, bound, pair, said
from symacct.symbols import symbol
from symacct.targets import graph_of

AT = "B=1,T=1024,V=32000,L=12,d=768,h=12,h_kv=4,d_h=64"
GIVEN = ["f=4*d", "d=h*d_h"]


def of(name: str) -> Ledger:
    return Ledger(graph_of(name))


def one(a: str, b: str, *order: str, solve: str | None = None):
    """The difference of two formulas."""
    sizes = [symbol(name) for name in order]
    return differences({"x": parse(a)}, {"x": parse(b)}, sizes, symbol(solve) if solve else None)[0]


# What a difference says


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ("2*d*f", "f*d + d*f", "equal"),
        ("3*d*f", "2*d*f", "more"),
        ("12*d**2", "12*d**2 + 13*d", "less"),
        ("3*d*f", "2*d*h", "depends"),
        ("floor(H/2)*d", "0", "depends"),
        ("Max(a, b)", "Max(b, a)", "equal"),
        ("Max(a, b)", "a", "depends"),
    ],
)
def test_verdict(a, b, verdict):
    assert one(a, b, "d").verdict == verdict


@pytest.mark.parametrize(
    ("a", "b", "size", "turns", "above"),
    [
        ("4*T**2*d", "12*T*d**2", "T", "3*d", True),
        ("8*d**2", "2*d*f", "f", "4*d", False),
        ("2*T + d", "V", "T", "(V - d)/2", True),
        ("T**2 + T*d", "6*d**2", "T", "2*d", True),
        ("6*d**2", "T**2 + T*d", "T", "2*d", False),
        ("T**2/d", "T*h", "T", "d*h", True),
    ],
)
def test_crossover(a, b, size, turns, above):
    found = one(a, b, size).crossover
    assert found.size == symbol(size)
    assert found.above is above
    for at in ({"d": 8, "V": 50, "h": 2}, {"d": 3, "V": 17, "h": 7}):
        values = {symbol(n): v for n, v in at.items()}
        assert found.bound.xreplace({s: parse(str(v)) for s, v in values.items()}) == evaluate(
            parse(turns), at
        )


def test_no_crossover_where_the_coefficients_have_no_sign():
    assert crossover(parse("T**2*(d - f) + T - h"), [symbol("T")]) is None
    assert crossover(parse("T**3 - d"), [symbol("T")]) is None
    assert crossover(parse("T - floor(d/2)"), [symbol("T")]) is None


def test_a_size_that_cannot_be_solved_for_leaves_the_region():
    found = one("T**3", "d*T + h", solve="T")
    assert found.crossover is None
    assert (found.more, found.less) == (parse("T**3"), parse("d*T + h"))


TERMS = st.tuples(st.integers(1, 9), st.sampled_from(["T**2*d", "T*d", "T", "d*f", "d", "f**2", "1"]))
SUMS = st.lists(TERMS, min_size=1, max_size=3).map(
    lambda terms: " + ".join(f"{n}*{body}" for n, body in terms)
)


@given(SUMS, SUMS, st.dictionaries(st.sampled_from("Tdf"), st.integers(1, 30), min_size=3))
def test_the_sign_is_as_the_crossover_says(a, b, at):
    found = one(a, b, "T", "d", "f")
    value = evaluate(parse(a), at) - evaluate(parse(b), at)
    if found.verdict != "depends":
        assert {"equal": value == 0, "more": value > 0, "less": value < 0}[found.verdict]
        return
    assert (evaluate(found.more, at) > evaluate(found.less, at)) == (value > 0)
    assume(found.crossover is not None)
    turn = found.crossover
    here = turn.bound.xreplace({symbol(n): parse(str(v)) for n, v in at.items()})
    size = at[turn.size.name]
    assert bool(size > here if turn.above else size < here) == (value > 0)


# Two models


def test_grouped_queries_save_the_key_and_value_projections():
    """MHA with an MLP of 4·d against GQA with SwiGLU of 8·d/3, which has as many parameters."""
    two = pair(of("gpt2"), of("llama"), [AT], GIVEN, ["f=8*d/3"])
    step = next(found for found in two.differences if found.key == "flops.step")
    assert compare(step.difference, parse("12*B*L*T*(h**2*d_h**2 - h*h_kv*d_h**2)")) == Proved()
    assert said(two, step) == "more while h > h_kv  (here 4)"
    assert two.number(step.a) - two.number(step.b) == 12 * 12 * 1024 * (768**2 - 12 * 4 * 64**2)


def test_a_crossover_below_every_size_is_none():
    """One expert with a router is more than no router: 3·E·d·f + E·d > 3·d·f from E = 1 on."""
    two = pair(of("llama"), of("mixtral"))
    found = {one.key: one for one in two.differences}
    for key in ("params.total", "flops.step", "bytes.params"):
        assert (found[key].verdict, said(two, found[key])) == ("less", "always less")


def test_a_model_less_itself_is_nothing():
    for found in pair(of("gpt2"), of("gpt2")).differences:
        assert found.verdict == "equal"


def test_a_size_may_be_renamed_and_solved_for():
    two = pair(of("mlp"), of("mlp"), mapping=["f=g"], solve="g")
    params = next(found for found in two.differences if found.key == "params.total")
    assert params.crossover.size == symbol("g")
    assert (bound(two, params.crossover), params.crossover.above) == ("f", False)


def test_values_are_those_of_both_models():
    sizes = {"B": 2, "d": 3, "f": 5, "c": 7}
    two = pair(of("mlp"), of("mlp"), [",".join(f"{n}={v}" for n, v in sizes.items())], [], ["f=2*d"])
    made = json.loads(as_json(two))["differences"]
    mine, theirs = of("mlp").at(**sizes), of("mlp").at(**{**sizes, "f": 6})
    for key, found in made.items():
        assert found["values"] == {"a": mine[key], "b": theirs[key], "difference": mine[key] - theirs[key]}
        assert evaluate(parse(found["difference"]), sizes) == mine[key] - theirs[key]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mapping": ["x=3"]}, "B has B, d, f, c"),
        ({"mapping": ["f"]}, "--map 'f'"),
        ({"mapping": ["f=d/2"], "at": ["B=1,d=3,f=2,c=2"]}, "would be 3/2"),
        ({"solve": "Q"}, "--solve Q"),
        ({"at": ["Q=2"]}, "Q: not a size"),
        ({"at": ["B=1"]}, "leaves out"),
        ({"given": ["f=4*d", "f=3*d"]}, "contradicts"),
    ],
)
def test_bad_input(options, named):
    with pytest.raises(SizeError, match=named.replace("(", r"\(")):
        pair(of("mlp"), of("mlp"), **options)


def test_text(capsys, monkeypatch, golden):
    monkeypatch.setenv("COLUMNS", "116")
    words = ["gpt2", "llama", "--given", GIVEN[0], "--given", GIVEN[1], "--map", "f=8*d/3", "--at", AT]
    assert cli.main(["diff", *words]) == 0
    golden(capsys.readouterr().out)


def test_json(capsys):
    assert cli.main(["diff", "mlp", "mlp", "--map", "f=g", "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["differences"]["params.total"] == {
        "a": "c*f + d*f + c + f",
        "b": "c*g + d*g + c + g",
        "difference": "c*f - c*g + d*f - d*g + f - g",
        "a_is": "depends",
        "where": "more while f > g",
        "crossover": {"symbol": "f", "bound": "g", "more": "above"},
    }


def test_numbers_at_a_batch_of_one_are_those_that_each_model_has_there():
    """Runs keep 18,964 bytes in mamba (saved_tensors_hooks) where its formula says 640 more."""
    two = pair(Ledger(graph_of("mamba")), Ledger(graph_of("mlp")), at=["B=1,T=10,V=100,L=1,d=8,N=4,R=2,f=3,c=5"])
    found = next(d for d in two.differences if d.key == "bytes.saved")
    assert two.values(found)[0] == 18_964
    assert any("bytes.saved of mamba is another where B = 1" in text for text in two.exceptions)
