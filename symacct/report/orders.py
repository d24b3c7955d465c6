"""A formula to leading order, as stated orders such as `T << d` leave it: what a report says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sympy import Expr

ORDER = re.compile(r"<<|>>|≪|≫|\\ll|\\gg")


@dataclass(frozen=True, slots=True)
class Leading:
    """A formula to leading order: `kept` + `rest` is all of it, `bound` what leaving out `rest` costs.

    `most` is the bound as a polynomial in ε, where small ≤ ε·large for each of the `orders`; None where those
    prove none.
    """

    key: str
    kept: Expr
    rest: Expr
    bound: str
    most: Expr | None = None
    orders: tuple[tuple[Expr, Expr], ...] = ()


def split_orders(given: Iterable[str]) -> tuple[list[str], list[str]]:
    """Relations of `--given`, and orders such as `T << d` apart from them."""
    texts = list(given)
    return [t for t in texts if not ORDER.search(t)], [t for t in texts if ORDER.search(t)]
