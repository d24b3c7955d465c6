"""One form of rounded sizes, in which both sides of a claim cancel: `rounded_up`."""

from __future__ import annotations

from functools import lru_cache

import sympy as sp
from sympy import Expr

from symacct.canonical import canonical, in_floors


@lru_cache(maxsize=1 << 14)
def rounded_up(expr: Expr) -> Expr:
    """The canonical form with `⌊(n - 1)/m⌋ + 1`, what a convolution's length is, as `⌈n/m⌉`.

    Other floors stay, as do maxima, whose arguments nobody compares term by term.
    """
    if not expr.has(sp.floor, sp.ceiling, sp.Mod) or expr.has(sp.Max, sp.Min):
        return expr
    united = in_floors(expr)
    table = {node: up for node in united.atoms(sp.floor) if (up := _up(node)) is not None}
    return canonical(united.xreplace(table)) if table else united


def _up(node: Expr) -> Expr | None:
    n, m = sp.fraction(sp.together(node.args[0]))
    n = sp.expand(n)
    if not (m.is_Integer and n.is_integer and (n.as_coeff_Add()[0] + 1) % m == 0):
        return None
    return sp.ceiling(sp.expand((n + 1) / m)) - 1
