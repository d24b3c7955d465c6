"""Where 6·N′·D alone is near a whole step: a condition on the length of the inputs, by bound in percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.symbols import symbol

BOUNDS = (1, 5, 10)  # percent
Interval = tuple[int, int | None]  # the first length and the first that is too long; None where none is


@dataclass(frozen=True, slots=True)
class Near:
    """`number·N′·D` is within BOUNDS percent of the step while n·`left` < N′·`right`, n by bound.

    `below` and `above` say the same where it is plain: length < N′/(n·below), length > n·above/N′.
    `here` are the intervals of lengths, by bound, where the other sizes are known; None where there are none.
    """

    length: sp.Symbol
    left: Expr
    right: Expr
    numbers: tuple[sp.Rational, ...]
    below: Expr | None
    above: Expr | None
    here: tuple[Interval | None, ...]


def near(
    active: Expr, number: int, rest: Expr, batch: sp.Symbol, length: sp.Symbol, sizes: Mapping[str, int]
) -> Near | None:
    """The region; None where nothing is left, or what is left is no polynomial or changes its sign.

    With `number·N′·D` = P and what is left r: where r > 0, P is within p % while r <= p/(100 - p)·P; where
    r < 0, while -r <= p/(100 + p)·P.
    """
    if rest == 0 or not rest.is_polynomial(*rest.free_symbols):
        return None
    scales = {part.as_coeff_Mul()[0] for part in sp.Add.make_args(rest)}
    signs = {bool(scale > 0) for scale in scales}
    if len(signs) != 1:
        return None
    sign = 1 if signs == {True} else -1
    scale = sp.gcd_list([abs(one) for one in scales])
    left, right = sp.expand(sign * rest / scale), batch * length
    for size in (batch, length):
        if sp.expand(left / size).is_polynomial(*left.free_symbols, size):
            left, right = sp.expand(left / size), right / size
    numbers = tuple(sp.Rational(100 - sign * bound, bound) * scale / number for bound in BOUNDS)
    width = sp.expand(left / length)
    below = width if right == 1 and length not in width.free_symbols else None
    above = left if right == length and length not in left.free_symbols else None
    known = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != length.name}
    slacks = [sp.expand((active * right - n * left).xreplace(known)) for n in numbers]
    plain = all(s.free_symbols <= {length} and sp.degree(s, length) <= 2 for s in slacks)
    here = tuple(_positive(s, length) for s in slacks) if plain else ()
    return Near(length, left, right, numbers, below, above, here)


def _positive(slack: Expr, length: sp.Symbol) -> Interval | None:
    """The lengths from 1 at which a polynomial of degree 2 (bent downwards) or less is above 0."""
    bend, slope, constant = (slack.coeff(length, power) for power in (2, 1, 0))
    if bend == 0 and slope == 0:
        return (1, None) if constant > 0 else None
    if bend == 0:
        root = -constant / slope
        first, end = (1, sp.ceiling(root)) if slope < 0 else (sp.floor(root) + 1, None)
    else:
        inside = slope**2 - 4 * bend * constant
        if inside <= 0:
            return None
        low, high = ((-slope + side * sp.sqrt(inside)) / (2 * bend) for side in (1, -1))
        first, end = sp.floor(low) + 1, sp.ceiling(high)
    first = max(int(first), 1)
    return None if end is not None and int(end) <= first else (first, None if end is None else int(end))


def condition(region: Near, length: str, prime: str, times: Callable[[str, Expr], str]) -> str:
    """The region as a comparison, in any notation: the names of the length and of N′, and how a product is written."""
    if region.below is not None:
        return f"{length} < {prime}/({times('n', region.below)})"
    if region.above is not None:
        return f"{length} > {times('n', region.above)}/{prime}"
    right = prime if region.right == 1 else times(prime, region.right)
    return f"{times('n', region.left)} < {right}"


def spoken(length: str, here: tuple[Interval | None, ...]) -> str:
    """The intervals in words: `T < 68, 353, 745`, or each of its own where they do not begin at 1."""
    if all(one is not None and one[0] == 1 and one[1] is not None for one in here):
        return f"{length} < {', '.join(f'{one[1]:,}' for one in here if one is not None)}"
    if all(one is not None and one[1] is None for one in here):
        return f"{length} >= {', '.join(f'{one[0]:,}' for one in here if one is not None)}"
    return "; ".join(_interval(length, one) for one in here)


def _interval(length: str, one: Interval | None) -> str:
    if one is None:
        return "nowhere"
    first, end = one
    return f"{length} >= {first:,}" if end is None else f"{first:,} <= {length} < {end:,}"
