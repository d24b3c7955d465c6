"""Formulas to leading order as a table: what orders leave, what is left out, what that costs at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symacct.latex.blocks import Block, Column, Math, Paragraph, Table, Text, listed, spans
from symacct.latex.closed import name_of
from symacct.latex.formula import latex, spelled
from symacct.report.answer import Answer
from symacct.report.orders import Leading
from symacct.symbols import symbol

_EPSILON = symbol("ε")


def leading_order(answer: Answer, found: Sequence[Leading], orders: Sequence[str]) -> Iterator[Block]:
    """A sentence and a table; a sentence alone where the orders prove no term small."""
    if not orders:
        return
    if not found:
        told = ", ".join(order.strip() for order in orders)
        yield Paragraph((f"The given orders ({told}) alone prove no term of these formulas small.",))
        return
    own = symbol("epsilon" if "epsilon" not in answer.ledger.graph.symbols else "eta")
    small = spelled(own.name)
    asked = [(Math(rf"{latex(a)} \ll {latex(b)}"),) for a, b in found[0].orders]
    meant = [(Math(rf"{latex(a)} \le {latex(own * b)}"),) for a, b in found[0].orders]
    yield Paragraph(
        spans(
            "To leading order where ",
            listed(asked),
            ", which is read as ",
            listed(meant),
            " for some ",
            Math(f"{small} < 1"),
            ". The last column is a proven bound on the relative error of leaving terms out.",
        )
    )
    rows: list[tuple[Text, ...]] = []
    for one in found:
        bound = latex(one.most.xreplace({_EPSILON: own})) if one.most is not None else ""
        rows.append(
            (
                (Math(name_of(answer, one.key)),),
                (Math(latex(one.kept, answer.reading)),),
                (Math(latex(one.rest, answer.reading)),),
                (Math(bound),) if bound else ("none proven",),
            )
        )
    columns = (Column("quantity"), Column("leading order", 35), Column("left out", 32), Column("error", 12))
    yield Table(columns, tuple(rows))
