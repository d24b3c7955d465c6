"""The house style: blocks as LaTeX, a fragment for `\\input` or a document that compiles as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from symacct.latex.blocks import (
    Block,
    Code,
    Column,
    Equation,
    Equations,
    Heading,
    Math,
    Paragraph,
    Span,
    Table,
)
from symacct.latex.escaping import code, escaped
from symacct.latex.formula import lines
from symacct.latex.widths import width

MEASURE = 345.0  # points: article's own text width at 10 pt; every wider page has room
_GAP = 3.0  # points between the columns of a table, on either side of each
_HEADINGS = {1: "section", 2: "subsection", 3: "paragraph"}
_PACKAGES = "amsmath,array,booktabs,longtable"
_NEEDS = rf"% \input this file in a document with \usepackage{{{_PACKAGES}}}; it is made by symacct."
_BEFORE = rf"""\documentclass[10pt]{{article}}
\usepackage{{{_PACKAGES}}}
\begin{{document}}
"""


def fragment(blocks: Iterable[Block]) -> str:
    """What a paper can `\\input`."""
    return "\n".join([_NEEDS, "", *map(_block, blocks)])


def standalone(blocks: Iterable[Block]) -> str:
    """A whole document."""
    return "\n".join([_BEFORE, *map(_block, blocks), "\\end{document}\n"])


def display(found: Sequence[Equation]) -> str:
    """Equations that a notebook shows, one below the other."""
    rows = " \\\\\n".join(f"{equation.left} &= {' '.join(equation.pieces)}" for equation in found)
    return f"$$\\begin{{aligned}}\n{rows}\n\\end{{aligned}}$$"


def line(text: Sequence[Span]) -> str:
    """Running text in LaTeX."""
    return "".join(map(_span, text))


def _span(span: Span) -> str:
    if isinstance(span, Math):
        return f"${span.latex}$"
    return code(span.text) if isinstance(span, Code) else escaped(span)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"\\{_HEADINGS[block.depth]}{{{line(block.text)}}}\n"
    if isinstance(block, Paragraph):
        return f"{{{_spacing(block.text)}\\noindent\n{line(block.text)}\\par}}\\medskip\n"
    return _equations(block) if isinstance(block, Equations) else _table(block)


def _spacing(text: Sequence[Span]) -> str:
    """How lines are filled: ragged beside a formula, which does not stretch."""
    ragged = any(isinstance(span, Math) and " " in span.latex for span in text)
    return r"\raggedright" if ragged else r"\emergencystretch=3em"


def _equations(block: Equations) -> str:
    """An alignment in which every line fits the measure; the widest left side moves all of them."""
    indent = max(width(equation.left) for equation in block.lines) + width("=")
    rows = []
    for equation in block.lines:
        first, *rest = lines(equation.pieces, MEASURE - indent - 10.0)
        rows.append(rf"  {equation.left} &= {first}")
        rows += [rf"    &\quad {later}" for later in rest]
    body = " \\\\\n".join(rows)
    return f"{{\\allowdisplaybreaks\n\\begin{{align*}}\n{body}\n\\end{{align*}}}}\n"


def _table(table: Table) -> str:
    columns = "".join(map(_column, table.columns))
    head = " & ".join(escaped(column.heading) for column in table.columns)
    rows = "\n".join(rf"  {' & '.join(map(line, row))} \\" for row in table.rows)
    return "\n".join(
        [
            rf"{{\footnotesize\setlength{{\tabcolsep}}{{{_GAP:g}pt}}\renewcommand{{\arraystretch}}{{1.15}}",
            r"\setlength{\LTleft}{0pt}\setlength{\LTpre}{\smallskipamount}\setlength{\LTpost}{\medskipamount}",
            rf"\begin{{longtable}}{{@{{}}{columns}@{{}}}}",
            rf"  \toprule {head} \\ \midrule \endhead",
            r"  \bottomrule \endfoot",
            rows,
            "\\end{longtable}}\n",
        ]
    )


def _column(column: Column) -> str:
    if not column.share:
        return "r" if column.right else "l"
    side = r"\raggedleft" if column.right else r"\raggedright"
    room = rf"\dimexpr 0.{column.share:02}\linewidth-{2 * _GAP:g}pt\relax"
    return rf">{{{side}\arraybackslash}}p{{{room}}}"
