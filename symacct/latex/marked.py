"""Blocks as Markdown with `$…$`, as GitHub and notebooks show it.

GitHub takes a backslash before a sign for an escape, also within `$…$`: products are written with blanks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from symacct.latex.blocks import Block, Code, Equations, Heading, Math, Paragraph, Span
from symacct.latex.formula import TIMES

_SIGNS = "\\`*_{}[]<>|$#~"


def markdown(blocks: Iterable[Block]) -> str:
    """The blocks one after the other, a blank line between them."""
    return "\n\n".join(map(_block, blocks)) + "\n"


def escaped(text: str) -> str:
    """Any text as Markdown that shows it."""
    return "".join(f"\\{c}" if c in _SIGNS else " " if c in "\r\n\t" else c for c in text)


def mathematics(latex: str) -> str:
    """A formula between dollar signs; two names of several letters side by side are kept apart by a dot."""
    dotted = latex.replace(r"}\,\mathrm", r"} \cdot \mathrm")
    return f"${dotted.replace(TIMES, ' ')}$"


def _span(span: Span) -> str:
    if isinstance(span, Math):
        return mathematics(span.latex)
    return _code(span.text) if isinstance(span, Code) else escaped(span)


def _code(name: str) -> str:
    """A name between backticks; one that holds a backtick or a bar, or is empty, as text."""
    return f"`{name}`" if name.strip() and name.isprintable() and not set("`|") & set(name) else escaped(name)


def _text(text: Sequence[Span]) -> str:
    return "".join(map(_span, text))


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * (block.depth + 1)} {_text(block.text)}"
    if isinstance(block, Paragraph):
        return _text(block.text)
    if isinstance(block, Equations):
        return _bars(("quantity", "formula"), [_equation(line.left, line.pieces) for line in block.lines])
    return _bars(
        [column.heading for column in block.columns], [[_text(cell) for cell in row] for row in block.rows]
    )


def _equation(left: str, pieces: Sequence[str]) -> list[str]:
    return [mathematics(left), mathematics(f"= {' '.join(pieces)}")]


def _bars(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
