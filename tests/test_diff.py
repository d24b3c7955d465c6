"""Differences of two models: subtracted exactly, and the sign turns where the crossover says."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from symacct import cli
from symacct.account import Ledger
from symacct.diff import crossover, differences
from symacct.errors import SizeError
from symacct.expressions import Proved, compare, evaluate, parse
from symacct.report.differing import as_json, bound, said
from symacct.report.paired import pair
from symacct.report.relations import relations
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
    if found.verdict in ("equal", "more", "less"):
        assert {"equal": value == 0, "more": value > 0, "less": value < 0}[found.verdict]
        return
    assert {"never less": value >= 0, "never more": value <= 0, "depends": True}[found.verdict]
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
    two = pair(of("mamba"), of("mlp"), at=["B=1,T=10,V=100,L=1,d=8,N=4,R=2,f=3,c=5"])
    assert two.values("bytes.saved")[0] == 18_964
    saved = next(found for found in two.differences if found.key == "bytes.saved")
    assert "here" not in said(two, saved)  # the bound is that of more than one sequence
    assert "bytes.saved of mamba is -8·L·T·d more where B = 1" in two.exceptions  # 8·1·10·8 = 640


# What a model keeps at T = 1 is 4·B·L·h·d_h less than elsewhere, by a run: see test_claims_sizes.
def test_a_relation_that_sets_a_size_to_1_takes_what_is_there():
    two, general = (pair(of("mlp"), of("llama"), [], known, ["f=g,d=w"]) for known in (["T = 1"], []))
    there, elsewhere = (next(d for d in one.differences if d.key == "bytes.saved") for one in (two, general))
    one = elsewhere.difference.xreplace({symbol("T"): parse("1")})
    assert compare(there.difference, one + parse("4*B*L*h*d_h")) == Proved()
    assert "bytes.peak of llama is left out: where T = 1 only a run tells" in two.exceptions
    assert not any("bytes.saved" in text and "T = 1" in text for text in two.exceptions)


def test_no_crossover_that_the_conditions_exclude():
    """BERT's table of P >= T positions has no fewer rows than GPT-2's, and d·(d + 3) weights come on top."""
    found = {one.key: one for one in pair(of("gpt2"), of("bert")).differences}
    for key in ("params.total", "params.embedding", "bytes.optimizer"):
        assert found[key].verdict == "less"
        assert found[key].crossover is None


def test_queries_that_share_keys_never_cost_more():
    """h_kv | h: the keys of grouped queries are as many as those of all heads at h_kv = h, else fewer."""
    two = pair(of("llama"), of("llama"), mapping=["h_kv=h"])
    assert [c.short for c in two.conditions] == ["2 | d_h", "h_kv | h"]
    found = {one.key: one for one in two.differences}
    for key in ("params.total", "flops.step", "bytes.saved"):
        assert found[key].verdict == "never more"
        assert said(two, found[key]) == "less while h > h_kv, never more"
    crossover = json.loads(as_json(two))["differences"]["params.total"]["crossover"]
    assert crossover == {"symbol": "h", "bound": "h_kv", "less": "above"}


def test_a_size_that_breaks_a_condition_of_b_is_refused():
    with pytest.raises(SizeError, match=r"--map d_h = 3 contradicts 2 \| d_h"):
        assert pair(of("llama"), of("llama"), mapping=["d_h=3"]).conditions


# Relations and, for the truth, what each says of T, P, d, h.
RELATIONS = {
    "T <= P": lambda t, p, d, h: t <= p,
    "T < P": lambda t, p, d, h: t < p,
    "P > 3": lambda t, p, d, h: p > 3,
    "T > 1": lambda t, p, d, h: t > 1,
    "h | d": lambda t, p, d, h: d % h == 0,
    "2 | h": lambda t, p, d, h: h % 2 == 0,
    "T | P": lambda t, p, d, h: p % t == 0,
}
BODIES = {
    "T": lambda t, p, d, h: t,
    "P": lambda t, p, d, h: p,
    "d": lambda t, p, d, h: d,
    "h": lambda t, p, d, h: h,
    "P*h": lambda t, p, d, h: p * h,
    "T*d": lambda t, p, d, h: t * d,
    "1": lambda t, p, d, h: 1,
}
SOME = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(sorted(BODIES))), min_size=1, max_size=2)


@given(st.lists(st.sampled_from(sorted(RELATIONS)), max_size=3, unique=True), SOME, SOME)
def test_a_sign_that_conditions_give_is_so_at_all_sizes_that_meet_them(texts, mine, theirs):
    a, b = ({"x": parse(" + ".join(f"{n}*{body}" for n, body in side))} for side in (mine, theirs))
    known = relations(texts, ["T", "P", "d", "h"]).conditions
    verdict = differences(a, b, [symbol("T")], conditions=known)[0].verdict
    for at in product(range(1, 5), repeat=4):
        if all(RELATIONS[text](*at) for text in texts):
            costs = [sum(n * BODIES[body](*at) for n, body in side) for side in (mine, theirs)]
            more = costs[0] - costs[1]
            true = {"equal": more == 0, "more": more > 0, "less": more < 0, "never less": more >= 0}
            assert {**true, "never more": more <= 0, "depends": True}[verdict]
