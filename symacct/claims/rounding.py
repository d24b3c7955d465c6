"""One form of rounded sizes, in which both sides of a claim cancel: `rounded_up`, `halved_alike`."""

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


def halved_alike(derived: Expr, claim: Expr) -> tuple[Expr, Expr]:
    """Two sides in that half of a size which the first speaks of: `⌊n/2⌋ + ⌈n/2⌉ = n` for whole numbers n.

    >>> from symacct.expressions import parse
    >>> halved_alike(parse("ceiling(H/2)"), parse("H - floor(H/2)"))
    (ceiling(H/2), ceiling(H/2))
    """
    if not (derived.has(sp.floor, sp.ceiling) or claim.has(sp.floor, sp.ceiling)):
        return derived, claim
    if derived.has(sp.Max, sp.Min) or claim.has(sp.Max, sp.Min):
        return derived, claim
    ups, downs = (
        {node for side in (derived, claim) for node in side.atoms(kind)} for kind in (sp.ceiling, sp.floor)
    )
    table = {}
    for up in ups:
        down, whole = sp.floor(up.args[0]), sp.expand(2 * up.args[0])
        if down not in downs or not whole.is_integer:
            continue
        gone = up if derived.has(down) and not derived.has(up) else down
        table[gone] = whole - (down if gone == up else up)
    if not table:
        return derived, claim
    return canonical(derived.xreplace(table)), canonical(claim.xreplace(table))
