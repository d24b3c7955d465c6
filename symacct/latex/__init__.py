"""A target's cost as a paper prints it: an appendix in LaTeX, a whole document, or Markdown with `$…$`."""

from __future__ import annotations

from collections.abc import Sequence

from symacct.certificate import Certificate
from symacct.latex import marked, tex
from symacct.latex.appendix import appendix, short
from symacct.latex.blocks import Block
from symacct.latex.closed import equations
from symacct.report.answer import Answer

__all__ = ["display", "document", "markdown", "short_markdown", "short_tex"]


def document(
    answer: Answer,
    standalone: bool = False,
    certificate: Certificate | None = None,
    more: Sequence[Block] = (),
) -> str:
    """The appendix in LaTeX, to be `\\input` or to be compiled as it is; `more` follows its closed forms."""
    blocks = appendix(answer, certificate, more)
    return tex.standalone(blocks) if standalone else tex.fragment(blocks)


def markdown(
    answer: Answer, certificate: Certificate | None = None, more: Sequence[Block] = ()
) -> str:
    """The appendix in Markdown."""
    return marked.markdown(appendix(answer, certificate, more))


def short_tex(answer: Answer, by: Sequence[str] = (), more: Sequence[Block] = ()) -> str:
    """Notation, conditions, closed forms and a table of parts, by module or by these keys, in LaTeX."""
    return tex.fragment(short(answer, by, more))


def short_markdown(answer: Answer, by: Sequence[str] = (), more: Sequence[Block] = ()) -> str:
    """The same in Markdown."""
    return marked.markdown(short(answer, by, more))


def display(answer: Answer) -> str:
    """The closed forms alone, as a notebook shows them."""
    return tex.display(
        [*equations(answer, "params."), *equations(answer, "flops."), *equations(answer, "bytes.")]
    )
