"""Two models' formulas against each other: cost(A) − cost(B), and the sizes at which its sign turns.

A sign is read off terms: sizes are positive, so a sum whose terms have one sign has it too. Where both occur,
the difference is solved for one size if it is linear or quadratic in it with coefficients of one sign each;
else, and where it rounds, the region is left: the terms that are added exceed those that are taken away. What
the models assume of their sizes decides more: with `h_kv | h`, `h < h_kv` is no region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import sympy as sp
from sympy import Expr

from symacct.comparisons import slack
from symacct.expressions import canonical
from symacct.graph import Assumption

Verdict = Literal["equal", "more", "less", "never less", "never more", "depends"]
_FUNCTIONS = (sp.floor, sp.ceiling, sp.Max, sp.Min, sp.Mod)


@dataclass(frozen=True, slots=True)
class Crossover:
    """A costs more where `size` is above `bound` (`above`) or below it; at the bound both cost the same.

    Where A never costs more, the sizes on the other side of the bound are those at which it costs less.
    """

    size: sp.Symbol
    bound: Expr
    above: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A's formula less B's. `verdict` is what holds of A at all sizes; where it depends, A costs more where
    `more` > `less`, which have no term in common, and if they could be solved the crossover says where.
    """

    key: str
    a: Expr
    b: Expr
    difference: Expr
    verdict: Verdict
    more: Expr = sp.Integer(0)
    less: Expr = sp.Integer(0)
    crossover: Crossover | None = None


def differences(
    a: Mapping[str, Expr],
    b: Mapping[str, Expr],
    order: Iterable[sp.Symbol],
    solve: sp.Symbol | None = None,
    conditions: Iterable[Assumption] = (),
) -> list[Difference]:
    """The differences of the formulas that both have, where the sizes meet the `conditions`.

    They are solved for a size in `order`, or for `solve`.
    """
    sizes, assumed = [solve] if solve is not None else list(order), _free(conditions)
    return [_difference(key, a[key], b[key], sizes, assumed) for key in a if key in b]


def _difference(
    key: str, a: Expr, b: Expr, sizes: list[sp.Symbol], assumed: Mapping[sp.Symbol, Expr]
) -> Difference:
    rest = _less(a, b)
    if rest == 0:
        return Difference(key, a, b, rest, "equal")
    if rest.has(sp.Max, sp.Min, sp.Mod):
        return Difference(key, a, b, rest, "depends")
    more, less = _apart(_without_common(rest))
    if (less == 0 or more == 0) and not rest.has(*_FUNCTIONS):  # a floor may be 0 or less
        return Difference(key, a, b, rest, "more" if less == 0 else "less")
    sign = _from_one(more - less) or _from_one(_moved(more - less, assumed))
    if sign:
        return Difference(key, a, b, rest, "more" if sign > 0 else "less")
    least = _from_one(_moved(more - less, assumed), strict=False)
    verdict: Verdict = "never less" if least > 0 else "never more" if least < 0 else "depends"
    return Difference(key, a, b, rest, verdict, more, less, crossover(more - less, sizes))


def _less(a: Expr, b: Expr) -> Expr:
    """A − B; of two maxima as it stands, for there is no shorter form."""
    if a.has(sp.Max) or b.has(sp.Max):
        return sp.Integer(0) if a == b else sp.Add(a, -b)
    return canonical(a - b)


def _without_common(expr: Expr) -> Expr:
    """The expression without the factors that all its terms share; they are positive and turn no sign."""
    if expr.has(*_FUNCTIONS):
        return expr
    parts = [part.as_coeff_Mul() for part in sp.Add.make_args(expr)]
    powers = [body.as_powers_dict() for _, body in parts]
    shared = {s: min(p.get(s, 0) for p in powers) for s in expr.free_symbols}
    number = sp.gcd_list([abs(n) for n, _ in parts])
    return sp.expand(expr / (number * sp.Mul(*(s**power for s, power in shared.items()))))


def _apart(expr: Expr) -> tuple[Expr, Expr]:
    """The terms that are added and those that are taken away."""
    parts = sp.Add.make_args(expr)
    more = [part for part in parts if part.as_coeff_Mul()[0] > 0]
    return sp.Add(*more), sp.Add(*(-part for part in parts if part not in more))


def _free(conditions: Iterable[Assumption]) -> dict[sp.Symbol, Expr]:
    """Sizes that the conditions tell, in sizes that are free: each of these is any integer from 1.

    A multiple of h is h·q, and P is T + q - 1 where T <= P: all sizes that meet the conditions are so.
    """
    found: dict[sp.Symbol, Expr] = {}
    for condition in conditions:
        told = _told(condition, found)
        if told is not None:
            last = dict([told])
            found = {size: sp.expand(value.xreplace(last)) for size, value in found.items()} | last
    return found


def _told(condition: Assumption, known: Mapping[sp.Symbol, Expr]) -> tuple[sp.Symbol, Expr] | None:
    """One size that a condition tells; None where it tells none as a polynomial."""
    new = sp.Dummy(integer=True, positive=True)
    if condition.kind == "branch":
        room = slack(condition.left)
        room = None if room is None else sp.expand(room.xreplace(dict(known)))
        if room is None or not room.is_polynomial(*room.free_symbols):
            return None
        for size in sorted(room.free_symbols, key=str):
            rest = sp.expand(size - room)
            if size not in rest.free_symbols:
                return size, rest + new - 1
        return None
    left, right = (side.xreplace(dict(known)) for side in (condition.left, condition.right))
    whole = right.is_polynomial(*right.free_symbols) and not right.has(*_FUNCTIONS)
    if not left.is_Symbol or left in right.free_symbols or not whole:
        return None
    return left, right * new if condition.kind == "divides" else right


def _moved(expr: Expr, assumed: Mapping[sp.Symbol, Expr]) -> Expr:
    """The expression in free sizes."""
    return sp.expand(expr.xreplace(dict(assumed))) if not expr.free_symbols.isdisjoint(assumed) else expr


def _from_one(expr: Expr, strict: bool = True) -> int:
    """1 or −1 where that is the sign at all sizes, which are at least 1; 0 where that is not plain.

    If not `strict`, the expression may be 0 at some.
    """
    if expr.has(*_FUNCTIONS) or not expr.is_polynomial(*expr.free_symbols):
        return 0
    moved = sp.expand(expr.xreplace({size: size + 1 for size in expr.free_symbols}))
    return (_sign(moved) or 0) if not strict or moved.as_coeff_Add()[0] != 0 else 0


def crossover(expr: Expr, sizes: Iterable[sp.Symbol]) -> Crossover | None:
    """Where the expression turns its sign, for the first of these sizes that it can be solved for."""
    if expr.has(*_FUNCTIONS):
        return None
    spoken = [size for size in sizes if size in expr.free_symbols]
    for solved in (_turned, _split):
        for size in spoken:
            found = solved(expr, size)
            if found is not None:
                return found
    return None


def _split(expr: Expr, size: sp.Symbol) -> Crossover | None:
    """The root of an expression that is linear with a factor of one sign; it may lie below 0."""
    low, middle, high = _coefficients(expr, size)
    sign = _sign(middle)
    return Crossover(size, sp.cancel(-low / middle), sign > 0) if sign and high == 0 else None


def _coefficients(expr: Expr, size: sp.Symbol) -> tuple[Expr, Expr, Expr]:
    """Those of the powers 0, 1 and 2; all 0 where the expression is no such polynomial."""
    scaled = sp.expand(expr * sp.denom(sp.together(expr)))
    poly = sp.Poly(scaled, size) if scaled.is_polynomial(size) else None
    if poly is None or poly.degree() not in (1, 2):
        return (sp.S.Zero,) * 3
    return tuple(poly.coeff_monomial(size**power) for power in range(3))


def _turned(expr: Expr, size: sp.Symbol) -> Crossover | None:
    """The one positive root of a linear or quadratic expression whose coefficients turn their sign once."""
    low, middle, high = _coefficients(expr, size)
    found = [_sign(coefficient) for coefficient in (low, middle, high)]
    signs = [sign for sign in found if sign]
    if None in found or sum(x != y for x, y in pairwise(signs)) != 1:
        return None
    above = signs[-1] > 0
    if high == 0:
        return Crossover(size, sp.cancel(-low / middle), above)
    if low == 0:
        return Crossover(size, sp.cancel(-middle / high), above)
    root = sp.sqrt(sp.expand(middle**2 - 4 * high * low))
    return Crossover(size, (-middle + (root if above else -root)) / (2 * high), above)


def _sign(expr: Expr) -> int | None:
    """1, 0 or −1 where the terms agree, else None."""
    if expr == 0:
        return 0
    signs = {1 if part.as_coeff_Mul()[0] > 0 else -1 for part in sp.Add.make_args(sp.expand(expr))}
    return signs.pop() if len(signs) == 1 else None
