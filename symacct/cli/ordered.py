"""Orders among `--given`: apart from the relations, and what they leave of the formulas as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from symacct.latex.blocks import Block
    from symacct.report.answer import Answer


def apart(options: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The orders, and the options with the relations alone."""
    from symacct.report.orders import split_orders

    relations, orders = split_orders(options["given"])
    return orders, options | {"given": tuple(relations)}


def blocks(answer: Answer, orders: Sequence[str]) -> list[Block]:
    """Formulas to leading order, for LaTeX and Markdown; nothing without orders."""
    if not orders:
        return []
    from symacct.claims.dropped import leading
    from symacct.latex.orders import leading_order

    return list(leading_order(answer, leading(answer, orders), orders))
