"""What is shown equals what was derived: readable formulas, wrapping, numbers, relations, tables."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from symacct.account import Ledger
from symacct.certificate import Certificate, Check
from symacct.conventions import convention
from symacct.errors import SizeError, SymacctError
from symacct.expressions import parse
from symacct.latex import short_tex
from symacct.report.answer import answer
from symacct.report.breakdown import by_keys, by_module
from symacct.report.derived import as_json, as_text
from symacct.report.grids import Column, Grid, Page, markdown
from symacct.report.numbers import flops, share, size
from symacct.report.proved import as_text as proof_text
from symacct.report.readable import PLAIN, pieces, readable, shown, text, value
from symacct.report.relations import numbers, relations
from symacct.report.tokens import said, tokens_of
from symacct.report.wrapping import wrapped
from symacct.symbols import symbol
from symacct.targets import graph_of

NAMES = ["B", "T", "V", "L", "d", "h", "h_kv", "d_h", "f", "width"]
PUBLISHED = "B=1,T=1024,V=50257,L=12,d=768,h=12,f=3072"
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")

atoms = st.sampled_from([symbol(name) for name in NAMES])
floors = st.builds(lambda a, c, n: sp.floor((a + c) / n), atoms, st.integers(-3, 5), st.integers(2, 4))
factors = st.lists(st.tuples(st.one_of(atoms, atoms, floors), st.integers(1, 3)), max_size=4)
divisors = st.lists(atoms, max_size=1)
coefficients = st.one_of(st.integers(-40, 40), st.builds(sp.Rational, st.integers(1, 9), st.integers(2, 6)))
terms = st.builds(
    lambda number, over, under: number * sp.Mul(*(a**p for a, p in over)) / sp.Mul(*under),
    coefficients,
    factors,
    divisors,
)
expressions = st.lists(terms, max_size=7).map(lambda parts: sp.expand(sp.Add(*parts)))


@pytest.fixture(scope="module")
def gpt2() -> Ledger:
    return Ledger(graph_of("gpt2"))


def page_of(write, *arguments, width=116) -> str:
    stream = io.StringIO()
    with Page(stream, width) as page:
        write(*(page if argument is Page else argument for argument in arguments))
    return stream.getvalue()


def read_back(written: str) -> sp.Expr:
    """The expression of a readable formula: `·` is `*`, raised digits are powers, ⌊⌋ are floors."""
    plain = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: "**" + m[0].translate(RAISED), written)
    for shown_, meant in {
        "·": "*",
        "⌊": "floor(",
        "⌈": "ceiling(",
        "⌋": ")",
        "⌉": ")",
        "max(": "Max(",
        "min(": "Min(",
    }.items():
        plain = plain.replace(shown_, meant)
    return parse(plain)


# Readable formulas


@given(expressions)
def test_what_is_read_is_what_was_derived(expr):
    floorless = expr.replace(lambda e: isinstance(e, sp.floor), lambda e: symbol("width"))
    assert value(readable(floorless)) == sp.expand(floorless)


@given(expressions, st.fixed_dictionaries({name: st.integers(1, 30) for name in NAMES}))
def test_the_text_means_the_expression(expr, sizes):
    point = {symbol(name): sp.Integer(number) for name, number in sizes.items()}
    assert read_back(text(readable(expr))).xreplace(point).doit() == expr.xreplace(point).doit()
    assert value(readable(expr)).xreplace(point).doit() == expr.xreplace(point).doit()


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("0", "0"),
        ("7", "7"),
        ("-d", "-d"),
        ("V*d + T*d + 12*L*d**2 + 13*L*d + 2*d", "V·d + T·d + L·(12·d² + 13·d) + 2·d"),
        ("2*B*T*V*d + 24*B*L*T*d**2 + 4*B*L*T**2*d", "2·B·T·(V·d + 12·L·d²) + 4·B·L·T²·d"),
        ("8*B*L*T*d**2 + 4*B*L*T*d*f", "4·B·L·T·(2·d² + d·f)"),
        ("4*V*d + 8*d", "4·(V·d + 2·d)"),
        ("2*d**2*h_kv/h", "2·d²·h_kv/h"),
        ("B*T**2/2 + B*T/2", "B·T/2 + B·T²/2"),
        ("B*d/(2*h)", "B·d/(2·h)"),
        ("2*B*d*floor((T + 1)/2)", "2·B·d·⌈T/2⌉"),
        (
            "B*floor((T - 1)/2)*floor((S - 1)/2) + B*floor((T - 1)/2) + B*floor((S - 1)/2) + B",
            "B·⌈S/2⌉·⌈T/2⌉",
        ),
        ("B*floor((T + 2)/4)", "B·⌊(T + 2)/4⌋"),
        ("h*floor(d/(4*h))", "h·⌊d/(4·h)⌋"),
        ("Max(T*d, V)", "max(T·d, V)"),
        ("B*d - B*f", "B·(d - f)"),
    ],
)
def test_readable(formula, expected):
    assert shown(sp.expand(parse(formula))) == expected


@given(expressions, st.integers(20, 90))
def test_wrapping_loses_nothing(expr, width):
    whole = text(readable(expr))
    lines = wrapped(whole, width)
    assert " ".join(lines) == whole
    assert all(len(line) <= width or " + " not in re.sub("⌊[^⌋]*⌋", "", line) for line in lines)


def test_wrapping_keeps_brackets_whole_where_they_fit():
    assert wrapped("= 2·B·T·(V·d + 12·L·d²) + 4·B·L·T²·d", 30) == [
        "= 2·B·T·(V·d + 12·L·d²)",
        "  + 4·B·L·T²·d",
    ]


def test_pieces_carry_their_signs():
    assert pieces(readable(parse("2*B*T - d"), PLAIN)) == ["2·B·T", "- d"]


# Numbers


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 FLOP"), (999_999, "999,999 FLOP"), (10**6, "1.000 MFLOP"), (291_648_307_200, "291.6 GFLOP"),
        (999_950 * 10**6, "1.000 TFLOP"), (10**27 - 1, "1,000 YFLOP"), (18 * 10**60, "1.800·10⁶¹ FLOP"),
    ],
)  # fmt: skip
def test_flops(number, expected):
    assert flops(number) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (9999, "9,999 B"),
        (497_759_232, "497.8 MB (474.7 MiB)"),
        (2**40, "1.100 TB (1.000 TiB)"),
        (2**30 - 1, "1.074 GB (1.000 GiB)"),
    ],
)
def test_sizes(number, expected):
    assert size(number) == expected


def test_share():
    assert (share(1, 3), share(3, 3), share(1, 0)) == ("33.3 %", "100.0 %", "")


# Relations and sizes


def test_relations_replace_and_tell():
    known = relations(["f=4*d", "d = h*d_h", "2 | T"], NAMES)
    assert known.texts == ("f = 4*d", "d = d_h*h", "2 | T")
    assert known.replaced[symbol("f")] == 4 * symbol("d_h") * symbol("h")
    assert known.completed({"h": 2, "d_h": 8, "T": 4}) == {"h": 2, "d_h": 8, "T": 4, "f": 64, "d": 16}


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["f=4*d", "f=3*d"], "contradicts f = 4*d"),
        (["f=2*d", "d=2*f"], "contradicts"),
        (["d = d + 1"], "cannot hold"),
        (["3 | 4"], "is false"),
        (["f"], "write an equality"),
        (["f = 4*d = 8"], "write an equality"),
        (["d*f = h*T"], "no size can be read off"),
    ],
)
def test_relations_that_cannot_be(texts, what):
    with pytest.raises(SizeError, match=re.escape(what)):
        relations(texts, NAMES)


@pytest.mark.parametrize("texts", [["f=4*d", "f = 4*d"], ["f=4*d", "d = f/4"], ["2*f = 8*d"]])
def test_relations_that_repeat_are_one(texts):
    assert list(relations(texts, NAMES).replaced.values()) == [4 * symbol("d")]


@pytest.mark.parametrize(
    ("sizes", "what"),
    [({"f": 5, "d": 1}, "f = 5 breaks f = 4*d"), ({"d": 3, "h": 2}, "breaks h | d")],
)
def test_sizes_that_break_a_relation(sizes, what):
    with pytest.raises(SizeError, match=re.escape(what)):
        relations(["f=4*d", "h | d"], NAMES).completed(sizes)


@pytest.mark.parametrize("bad", ["B", "B=", "=3", "B=1.5", "B=1e3", "", "B=1,,T=2", "B=0", "B=-4", "B=1,B=2"])
def test_numbers_that_are_none(bad):
    with pytest.raises(SizeError):
        numbers([bad])


def test_numbers_add_up():
    assert numbers(["B=1, T=2", "V=1_000", "B=1"]) == {"B": 1, "T": 2, "V": 1000}


@given(st.text(max_size=20), st.text(alphabet="BTVLdhf=*+|/() 0123456789-", max_size=20))
def test_any_text_is_read_or_refused(at, relation):
    ledger = Ledger(graph_of("mlp"))
    for options in ({"at": [at]}, {"given": [relation]}):
        with contextlib.suppress(SymacctError):
            answer(ledger, **options)


# A ledger's answer


def test_published_sizes(gpt2):
    found = answer(gpt2, [PUBLISHED]).values
    assert found["params.total"] == 124_439_808
    assert found["flops.forward"] == 291_648_307_200
    assert found["flops.backward"] == 583_296_614_400


def test_given_sizes_are_told(gpt2):
    without_f = PUBLISHED.replace(",f=3072", "")
    assert answer(gpt2, [without_f], ["f=4*d"]).values == answer(gpt2, [PUBLISHED]).values


@pytest.mark.parametrize("length", [16, 67, 68, 352, 353, 744, 745, 1024])
def test_the_bounds_on_the_length_are_where_1_5_and_10_percent_are(gpt2, length):
    asked = answer(gpt2, [PUBLISHED.replace("T=1024", f"T={length}")], ["f=4*d"])
    tokens = tokens_of(asked, asked.formulas["flops.step"])
    rest, step = asked.number(tokens.rest), asked.values["flops.step"]
    assert tokens.number * asked.number(tokens.active) * asked.number(tokens.tokens) + rest == step
    lines = list(said(asked, tokens))
    assert "6·N′·D alone is within 1, 5, 10 % while T < N′/(n·L·d), n = 198, 38, 18" in lines
    assert "(here T < 68, 353, 745)" in lines
    for percent, limit in zip((1, 5, 10), (68, 353, 745), strict=True):
        assert (100 * rest <= percent * step) == (length < limit)


def test_what_another_count_of_parameters_leaves_over(gpt2):
    asked = answer(gpt2, [PUBLISHED], ["f=4*d"])
    tokens = tokens_of(asked, asked.formulas["flops.step"])
    assert tokens.meaning == "used in products"
    # Hugging Face's gpt2 has 124,439,808 parameters, 50,257 and 1,024 rows of 768 of them in two tables
    counted = {"all parameters": 124_439_808, "those outside tables": 124_439_808 - 51_281 * 768}
    rest, step = asked.number(tokens.rest), asked.values["flops.step"]
    assert [words for words, _ in tokens.others] == list(counted)
    for words, less in tokens.others:
        assert step - 6 * counted[words] * 1024 == rest + 6 * 1024 * asked.number(less)
    lines = list(said(asked, tokens))
    assert "all parameters for N′ leave 6·D·(T·d + 13·L·d + 2·d) less" in lines
    assert "those outside tables for N′ leave 6·D·(V·d - 13·L·d - 2·d) more" in lines


def test_a_mixture_of_experts_says_which_parameters_it_uses():
    asked = answer(Ledger(graph_of("mixtral")))
    tokens = tokens_of(asked, asked.formulas["flops.step"])
    assert tokens.meaning == "used in products on one token"
    assert "those used in products for N′ leave 6·D·3·L·(d·f·k - E·d·f) more" in list(said(asked, tokens))


def test_a_size_named_n_keeps_its_name(gpt2):
    graph = replace(gpt2.graph, symbols={**gpt2.graph.symbols, "N": gpt2.graph.symbols["d"]})
    written = page_of(as_text, answer(Ledger(graph)), Page)
    assert "N′" not in written
    assert "4·N" not in written


def test_values_of_a_config_show_without_being_asked(gpt2):
    graph = replace(gpt2.graph, values={"V": 50257, "T": 1024, "L": 12, "d": 768, "h": 12, "f": 3072})
    known = answer(Ledger(graph))
    assert known.values["params.total"] == 124_439_808
    assert "flops.forward" not in known.values
    written = page_of(as_text, known, Page)
    assert "124,439,808" in written
    assert "values need numbers for B" in written
    assert "values" not in as_json(known)
    assert answer(Ledger(graph), ["B=1"]).values["flops.forward"] == 291_648_307_200


def test_shares_and_groups_add_up(gpt2):
    asked = answer(gpt2, [PUBLISHED])
    grid = by_module(asked)
    assert sum(float(row[-1].split()[0]) for row in grid.rows) == pytest.approx(100, abs=0.3)
    assert [row[-1] for row in by_keys(asked, ["phase"]).rows] == ["66.7 %", "33.3 %"]


def test_rows_of_the_table_multiply_out_to_the_forward_pass(gpt2):
    asked = answer(gpt2)
    total = sum(read_back(row[1]) * read_back(row[2]) for row in by_module(asked).rows)
    assert sp.expand(total - asked.formulas["flops.forward"]) == 0


def test_layers_that_repeat_beside_time_cost_what_one_step_of_one_costs():
    """A layer's inputs cost 2·B·T·d·4d at once, its states 2·B·d·4d a step of T; the head 2·B·T·d·V."""
    found = by_module(answer(Ledger(graph_of("lstm")))).rows
    runs = [("1", "8·B·T·d²"), ("T·(L - 1)", "8·B·d²"), ("L - 1", "8·B·T·d²"), ("T", "8·B·d²")]
    assert [row[1:3] for row in found] == [*runs, ("1", "2·B·T·V·d")]
    latex = "".join(short_tex(answer(Ledger(graph_of("lstm")))).split())
    assert r"&$T\,(L-1)$&$8\,B\,d^{2}$" in latex



@pytest.mark.parametrize("width", [30, 60, 80, 116])
def test_text_at_widths(gpt2, golden, width):
    golden(page_of(as_text, answer(gpt2, [PUBLISHED], ["f=4*d"]), Page, width=width))


@pytest.mark.parametrize("width", [30, 60, 80])
def test_text_is_as_wide_as_asked(gpt2, width):
    written = page_of(as_text, answer(gpt2, [PUBLISHED], ["f=4*d"]), Page, width=width)
    assert max(map(len, written.split("\n"))) <= width


def test_text_without_numbers(gpt2, golden):
    golden(page_of(as_text, answer(gpt2), Page, ("op",)))


@pytest.mark.parametrize("name", ["palm", "kaplan", "timm", "electra"])
def test_text_in_conventions(gpt2, golden, name):
    golden(page_of(as_text, answer(Ledger(gpt2.graph, convention(name)), [PUBLISHED]), Page))


def test_markdown_escapes():
    grid = Grid((Column("a|b"), Column("n", "right")), (("x_1*", "2"),))
    assert markdown(grid).splitlines()[1:] == ["| --- | ---: |", "| x\\_1\\* | 2 |"]


def test_no_half_of_an_answer_before_an_error():
    stream = io.StringIO()

    def fail() -> None:
        with Page(stream) as page:
            page.line("the first half")
            raise SizeError("no")

    with pytest.raises(SizeError):
        fail()
    assert stream.getvalue() == ""


# Certificates


def proof(*checks: Check) -> Certificate:
    return Certificate("mlp", "train", "cuda", ({"B": 2, "d": 3},), checks, ("a note",))


RIGHT = Check("flops.forward", "torch.utils.flop_counter", {"B": 2, "d": 3}, "2*B*d", 12, 12, True)
WRONG = replace(RIGHT, observed=13, equal=False, where="aten.mm in l (mlp.py:3)")


@pytest.mark.parametrize("checks", [(), (RIGHT,), (RIGHT, WRONG)], ids=["nothing", "verified", "refuted"])
def test_certificate(golden, checks):
    golden(page_of(proof_text, proof(*checks), Page))
