"""LaTeX and Markdown: goldens, what is printed reads back, every text is escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

import symacct
from symacct import cli
from symacct.account import Ledger, add
from symacct.claims.judging import check
from symacct.errors import FormulaError
from symacct.expressions import Proved, compare, parse
from symacct.graph import SymbolInfo
from symacct.latex import appendix, display, document, markdown, short_markdown
from symacct.latex.blocks import Code, Equations, Math, Table
from symacct.latex.closed import equation, shown
from symacct.latex.escaping import code, escaped
from symacct.latex.formula import latex, lines, pieces, spelled
from symacct.latex.marked import mathematics
from symacct.latex.reader import read
from symacct.latex.widths import width
from symacct.report.answer import Answer, answer
from symacct.report.readable import readable
from symacct.rules import RULES
from symacct.symbols import is_name, symbol
from symacct.targets import catalogue, graph_of

PUBLISHED = "B=1,T=1024,V=50257,L=12,d=768,h=12"
CERTIFICATE = {
    "verified": True,
    "target": "mlp",
    "mode": "train",
    "device": "cuda",
    "notes": [],
    "points": [{"d": 2}],
}
CHECK = {
    "quantity": "params.total",
    "oracle": "module",
    "point": {"d": 2},
    "formula": "d",
    "observed": 2,
    "expected": 2,
    "equal": True,
}


@cache
def of(name: str) -> Answer:
    return answer(Ledger(graph_of(name)))


@cache
def blocks(name: str) -> tuple:
    return tuple(appendix(of(name)))


def same(text: str, expr: sp.Expr, **reading: object) -> bool:
    return compare(read(text, **reading), expr) == Proved()


# What it looks like


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_appendix(name, golden):
    golden(document(of(name)), "tex")


def test_appendix_with_numbers(golden):
    golden(document(answer(Ledger(graph_of("gpt2")), [PUBLISHED], ["f=4*d"]), standalone=True), "tex")


def test_markdown(golden):
    golden(markdown(of("mlp")) + "\n" + short_markdown(of("mlp"), ("phase", "op")), "md")


def test_a_notebook_shows_the_closed_forms():
    shown_ = symacct.derive("mlp")._repr_latex_()
    assert shown_ == display(of("mlp"))
    assert shown_.startswith("$$\\begin{aligned}\nP &= d\\,f + f\\,c + f + c \\\\\n")


def test_the_ledger_writes_what_the_command_writes(capsys):
    assert cli.main(["latex", "gpt2", "--given", "f=4*d", "--at", PUBLISHED, "--standalone"]) == 0
    written = symacct.derive("gpt2").latex(at=PUBLISHED, given="f=4*d", standalone=True)
    assert capsys.readouterr().out == written


# What is printed reads back


@pytest.mark.parametrize("name", catalogue())
def test_every_equation_reads_back(name):
    symbols = of(name).ledger.graph.symbols
    found = [line for block in blocks(name) if isinstance(block, Equations) for line in block.lines]
    for line in found:
        assert same(" ".join(line.pieces), line.value, names={*symbols}, definitions=line.names), line.left
        if line.key:
            assert line.value == of(name).formulas[line.key]
    maxima = {"bytes.peak"} if len(of(name).ledger.graph.peak or ()) > 1 else set()
    assert {line.key for line in found if line.key} == {*shown(of(name))} - maxima


def cells(name: str, heading: str) -> list[sp.Expr]:
    """The formulas in the columns of this heading, read back."""
    found = []
    for table in (block for block in blocks(name) if isinstance(block, Table)):
        at = [i for i, column in enumerate(table.columns) if column.heading == heading]
        found += [read(row[i][0].latex, {*of(name).ledger.graph.symbols}) for row in table.rows for i in at]
    return found


@pytest.mark.parametrize("name", catalogue())
def test_the_lines_of_the_tables_add_up_as_printed(name):
    formulas = of(name).formulas
    assert compare(add(cells(name, "FLOPs of the step")), formulas["flops.step"]) == Proved()
    again = formulas["flops.hardware"] - formulas["flops.step"]
    repeated = add(e.recomputed for e in of(name).ledger.entries)
    assert compare(add(cells(name, "comes to")), formulas["flops.step"] + again - repeated) == Proved()
    if "bytes.saved" in formulas:
        assert compare(add(cells(name, "bytes")), formulas["bytes.saved"]) == Proved()


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_the_peak_as_printed(name):
    live = [live for _, live in of(name).ledger.graph.peak]
    for made, wanted in zip(cells(name, "bytes alive"), live, strict=True):
        assert compare(made, wanted) == Proved()


def test_where_a_formula_repeats_an_earlier_one_it_says_so():
    made = equation(of("gpt2"), "flops.backward")
    assert made.pieces == (r"2\,F_{\mathrm{forward}}",)
    assert same(made.pieces[0], of("gpt2").formulas["flops.backward"], definitions=made.names)


SIZES = st.sampled_from(
    ["B", "T", "L", "d", "h", "h_kv", "d_h", "d_model", "n_heads", "cap", "x_1", "a__b", "c_", "d2"]
)
NUMBERS = st.one_of(
    st.integers(0, 40),
    st.fractions(-3, 3, max_denominator=12).map(lambda f: sp.Rational(f.numerator, f.denominator)),
)


def grown(inner: st.SearchStrategy) -> st.SearchStrategy:
    over = st.integers(2, 32).map(sp.Integer)
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(2, 3)).map(lambda p: p[0] ** p[1]),
        st.tuples(inner, SIZES).map(lambda p: p[0] / symbol(p[1])),
        st.tuples(inner, over).map(lambda p: sp.floor(p[0] / p[1], evaluate=False)),
        st.tuples(inner, over).map(lambda p: sp.ceiling(p[0] / p[1], evaluate=False)),
        st.tuples(inner, inner).map(lambda p: sp.Max(*p, evaluate=False)),
        st.tuples(inner, inner).map(lambda p: sp.Min(*p, evaluate=False)),
        st.tuples(inner, over).map(lambda p: sp.Mod(*p, evaluate=False)),
    )


FORMULAS = st.recursive(st.one_of(SIZES.map(symbol), NUMBERS.map(sp.Rational)), grown, max_leaves=6)


@given(FORMULAS)
def test_latex_reads_back(expr):
    assert same(latex(expr), expr)


@given(FORMULAS)
def test_broken_latex_and_markdown_read_back(expr):
    broken = " \\\\\n&\\quad ".join(lines(pieces(readable(expr), 60.0), 60.0)) or "0"
    assert same(broken, expr)
    assert same(mathematics(latex(expr)).strip("$"), expr)


@pytest.mark.parametrize("name", ["beta", "lambda", "Omega", "mu_x", "sigma_max", "beta1"])
def test_greek_letters_are_letters(name):
    written = spelled(name)
    assert written.startswith(r"\mathrm") == (name == "beta1")
    assert read(rf"2\,{written}^{{2}}\,d + {written}") == parse(f"2*{name}**2*d + {name}")


def test_meanings_that_only_a_name_suggests_are_said_to_be_such():
    graph = graph_of("mlp")
    usual = {"B": "batch size", "d": "model width", "f": "feed-forward width", "c": ""}
    known = {name: SymbolInfo(usual[name], 4) for name in graph.symbols}
    said = "The model tells no meanings"
    assert said in document(answer(Ledger(replace(graph, symbols=known))))
    told = known | {"d": SymbolInfo("pixels", 4)}
    assert said not in document(answer(Ledger(replace(graph, symbols=told))))


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}", fullmatch=True).filter(is_name))
def test_names_read_back(name):
    assert read(spelled(name)) == symbol(name)
    assert read(f"2{spelled(name)}^{{3}}") == 2 * symbol(name) ** 3


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        (r"6\,N\,D", "6*N*D"),
        (r"\frac{d}{h} \times 2", "2*d/h"),
        (r"\left( V + d \right) B", "(V + d)*B"),
        (r"2 \cdot d_{\text{model}}", "2*d_model"),
        (r"(B\,T \bmod 8)", "Mod(B*T, 8)"),
        (r"d^2 - -1", None),
        (r"\max(d, \lceil f/8 \rceil)", "Max(d, ceiling(f/8))"),
    ],
)
def test_reader(text, formula):
    if formula is None:
        with pytest.raises(FormulaError):
            read(text)
    else:
        assert same(text, parse(formula))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d +",
        r"\frac{d}",
        r"\input{x}",
        "(" * 99,
        "d_{",
        "9^{9^{9^{9}}}",
        "é",
        r"\lfloor d",
        "x" * 10**5,
        r"\mathrm{\write18}",
    ],
)
def test_reader_refuses(text):
    with pytest.raises(FormulaError):
        read(text)


# Lines


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet50"])
def test_lines_are_no_wider_than_the_measure(name):
    for key, value in of(name).formulas.items():
        if not value.has(sp.Max):
            made = lines(pieces(of(name).terms(value), 265.0), 265.0)
            assert all(width(line) <= 265.0 for line in made), key


def test_a_long_sum_has_lines_of_about_one_length():
    made = lines([f"+ x_{{{i}}}" for i in range(12)], 12 * 25.0)
    assert len({len(line) for line in made}) <= 2


# Escaping

SPECIAL = re.compile(r"\\(?:[A-Za-z]+|[{}$&#%_^'`\"~=])|[{}]|(?P<raw>[$&#%_^~\\])")


def unescaped(text: str) -> str:
    """What LaTeX prints for an escaped text of printable ASCII."""
    words = {"textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~", "textless": "<"}
    words |= {"textgreater": ">", "textbar": "|", "textasciigrave": "`"}
    text = text.replace(r"{\char34}", '"')
    text = re.sub(r"\\(text[a-z]+)\{\}", lambda m: f"\\[{words[m[1]]}]", text)
    text = re.sub(r"(?<!\\)\{\}", "", text)
    return re.sub(r"\\\[(.)\]|\\(.)", lambda m: m[1] or m[2], text)


@given(st.text(max_size=40))
def test_escaped_text_has_nothing_that_tex_acts_on(text):
    for made in (escaped(text), code(text)):
        assert made.isascii()
        assert "\n" not in made
        bare = re.sub(r"\\ensuremath\{(?:\^?\{?\\?[a-zA-Z0-9{}\\]+\}?|-)\}", "", made)
        assert not any(found["raw"] for found in SPECIAL.finditer(bare)), made
        plain = re.sub(r"\\[{}]", "", made)
        assert plain.count("{") == plain.count("}")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_escaped_text_prints_what_was_given(text):
    assert unescaped(escaped(text)) == text


def test_every_law_has_signs_for_all_its_characters():
    unknown = [rule.op for rule in RULES.values() if "[U+" in escaped(rule.law)]
    assert not unknown


def test_code_breaks_after_dots_and_inside_underscores():
    assert code("aten._log_softmax") == r"\texttt{aten.\allowbreak{}\_log\_\allowbreak{}softmax}"


def test_markdown_keeps_names_of_several_letters_apart():
    assert mathematics(r"2\,\mathrm{ab}\,\mathrm{cd}") == r"$2 \mathrm{ab} \cdot \mathrm{cd}$"


def test_no_two_formulas_touch():
    for block in blocks("gpt2"):
        texts = (
            [block.text] if hasattr(block, "text") else [c for row in getattr(block, "rows", ()) for c in row]
        )
        for text in texts:
            assert all(not (isinstance(a, Math) and isinstance(b, Math)) for a, b in pairwise(text))
            assert all(isinstance(span, str | Code | Math) for span in text)


# The command line


def test_the_command_writes_a_file(tmp_path, capsys):
    assert cli.main(["latex", "mlp", "-o", str(tmp_path / "a.tex")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a.tex").read_text() == document(of("mlp"))


def test_the_command_says_what_a_certificate_proves(tmp_path, capsys):
    (tmp_path / "c.json").write_text(json.dumps(CERTIFICATE | {"checks": [CHECK]}))
    assert cli.main(["latex", "mlp", "--certificate", str(tmp_path / "c.json")]) == 0
    said = "Compared with executions at 1 point, 1 check (params.total): all of them agree exactly."
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("form", ["latex", "markdown"])
def test_derive_writes_the_short_form(form, capsys):
    assert cli.main(["derive", "mlp", "--format", form]) == 0
    made = capsys.readouterr().out
    assert ("\\begin{align*}" if form == "latex" else "| $P$ | $= d f + f c + f + c$ |") in made
    assert "Derivation" not in made


@pytest.mark.parametrize(
    "words",
    [
        ["mlp", "--certificate", "{file}"],
        ["mlp", "-o", "{folder}/none/a.tex"],
        ["mlp", "--standalone", "--format", "markdown"],
    ],
)
def test_bad_input(words, tmp_path, capsys):
    (tmp_path / "x.json").write_text('{"checks": 3}')
    filled = [word.format(file=tmp_path / "x.json", folder=tmp_path) for word in words]
    assert cli.main(["latex", *filled]) == 2
    made = capsys.readouterr()
    assert made.out == ""
    assert made.err.startswith("error: ")


@pytest.mark.parametrize("key", ["params.total", "flops.step", "flops.hardware", "bytes.saved"])
@pytest.mark.parametrize("name", ["mlp", "llama", "resnet50"])
def test_check_finds_what_was_printed_equal(name, key):
    claim = f"{key} = {latex(of(name).formulas[key], of(name).reading)}"
    assert check(of(name).ledger, claim).verdict == "equal"


def test_an_appendix_says_where_kept_bytes_are_others():
    """At T = 1 the heads of each of L layers are turned without a copy, 4·B·h·d_h bytes: see test_claims_sizes."""
    for page in (document(of("llama")), short_markdown(of("llama"))):
        said = page.replace("\\,", " ")
        assert "$T = 1$, $-4 B L h d_h$ is to be added to" in said and "which only a run tells" in said
