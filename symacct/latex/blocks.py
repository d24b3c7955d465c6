"""What an appendix consists of, before it becomes LaTeX or Markdown: headings, text, equations, tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import sympy as sp


@dataclass(frozen=True, slots=True)
class Code:
    """A name of the program: a module, an op, a file."""

    text: str


@dataclass(frozen=True, slots=True)
class Math:
    """A formula in LaTeX that TeX may break between its terms."""

    latex: str


Span = str | Code | Math
Text = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows; depth 1 is the appendix itself, 3 a paragraph."""

    text: Text
    depth: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: Text


@dataclass(frozen=True)
class Equation:
    """`left = pieces`, a formula that fills lines piece by piece. `value` is what all of it stands for.

    `names` are the names on the right that stand for expressions of their own, such as N'.
    """

    left: str
    pieces: tuple[str, ...]
    value: sp.Expr
    names: dict[str, sp.Expr] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Equations:
    """Formulas one below the other, aligned at their signs."""

    lines: tuple[Equation, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: `share` of the text's width in percent, 0 for as wide as its cells."""

    heading: str
    share: int = 0
    right: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table over as many pages as it needs."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Text, ...], ...]


Block = Heading | Paragraph | Equations | Table


def spans(*parts: Span | Iterable[Span]) -> Text:
    """Spans and rows of spans as one text."""
    made: list[Span] = []
    for part in parts:
        made += [part] if isinstance(part, str | Code | Math) else part
    return tuple(made)


def listed(texts: Iterable[Text], joint: str = ", ") -> Text:
    """Texts one after the other with a joint between them."""
    made: list[Span] = []
    for text in texts:
        made += ([joint] if made else []) + list(text)
    return tuple(made)
