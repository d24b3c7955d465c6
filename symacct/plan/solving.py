"""The largest size, or the fewest devices, with which a number of bytes stays within a limit: exact, over
integers.

Asked is max {x : every form(x) <= limit, x allowed} with all other sizes known. Where each form never falls
as x grows, that is a bisection. Polynomials that rise and fall have finitely many places where they cross the
limit; these are isolated exactly. What x may be (`allowed`) comes from the model: divisors, multiples, a
table's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.domination import undominated
from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.plan.direction import direction

_FAR = 1 << 128  # what fits at this size fits at every one that is meant
_STEPS = 1 << 12  # how many sizes beside the solution are tried for an allowed one
_SCANNED = 1 << 14
_MARGIN = 1 << 20


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An expression in one size that may not exceed `limit`."""

    bytes: Expr
    limit: Number


@dataclass(frozen=True, slots=True)
class Solved:
    """The largest `size`, and what stops the next.

    `number` is None where not even the `smallest` allowed size fits; then `short` says by how much. `next` is
    the allowed size behind `number`, None where there is none, and `binding` the index of the ceiling that
    stops it, or any size behind; None where every size fits, however large. `gaps` are sizes below `number`
    that do not fit, of each stretch of them the first. `tried`: no size beyond this one was looked at.
    """

    size: str
    smallest: int
    number: int | None
    next: int | None
    binding: int | None
    short: Number = 0
    gaps: tuple[int, ...] = ()
    tried: int | None = None


def largest(
    ceilings: Sequence[Ceiling], size: sp.Symbol, allowed: Callable[[int], bool] = lambda x: True
) -> Solved:
    """The largest allowed `size`, a positive integer, at which each of the ceilings holds.

    Raises SizeError when a ceiling depends on another size, or no allowed size is found.
    """
    for ceiling in ceilings:
        others = sorted(s.name for s in ceiling.bytes.free_symbols - {size})
        if others:
            raise SizeError(f"to solve for {size.name}, give numbers for {', '.join(others)}")
    problem = _Problem(tuple(ceilings), size, allowed)
    smallest = problem.smallest()
    if all(direction(c.bytes, size) in (0, 1) for c in ceilings):
        return _rising(problem, smallest)
    return _crossing(problem, smallest)


def fewest(ceilings: Sequence[Ceiling], count: sp.Symbol) -> int | None:
    """The smallest positive integer for which each ceiling holds, of expressions that never rise as it grows.

    None where no number is enough. Raises SizeError for an expression that may rise.
    """
    for ceiling in ceilings:
        if direction(ceiling.bytes, count) not in (0, -1):
            raise SizeError(
                f"{ceiling.bytes} may grow with {count.name}, so the fewest cannot be found by halving"
            )
    problem = _Problem(tuple(ceilings), count, lambda x: True)
    high = 1
    while not problem.fits(high):
        if high > _FAR:
            return None
        high *= 2
    low = high // 2  # does not fit, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if problem.fits(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class _Problem:
    ceilings: tuple[Ceiling, ...]
    size: sp.Symbol
    allowed: Callable[[int], bool]

    def over(self, x: int) -> list[Number]:
        """By how much each ceiling is exceeded; what fits is 0 or less."""
        return [evaluate(c.bytes, {self.size.name: x}) - c.limit for c in self.ceilings]

    def fits(self, x: int) -> bool:
        return all(over <= 0 for over in self.over(x))

    def smallest(self) -> int:
        found = next((x for x in range(1, _SCANNED) if self.allowed(x)), None)
        if found is None:
            raise SizeError(
                f"no {self.size.name} below {_SCANNED:,} meets the model's conditions at these sizes"
            )
        return found

    def after(self, x: int) -> int | None:
        """The next allowed size; None where none is near."""
        return next((y for y in range(x + 1, x + _STEPS) if self.allowed(y)), None)

    def begins(self, x: int) -> bool:
        """Whether an allowed size does not fit, and the allowed one before it does, if there is one near."""
        last = next((y for y in range(x - 1, max(0, x - _STEPS), -1) if self.allowed(y)), None)
        return not self.fits(x) and (last is None or self.fits(last))

    def before(self, x: int, least: int) -> int | None:
        """The largest allowed size up to x that fits. Raises SizeError where none is near."""
        for y in range(x, max(least, x - _STEPS) - 1, -1):
            if self.allowed(y) and self.fits(y):
                return y
        if x - _STEPS > least:
            raise SizeError(
                f"none of the {_STEPS:,} values of {self.size.name} up to {x:,} meets the model's conditions"
            )
        return None

    def solved(self, smallest: int, number: int | None, **more: Any) -> Solved:
        """The answer with what stops the next size."""
        stop = smallest if number is None else self.after(number)
        over = self.over(stop if stop is not None else (number or 0) + 1)
        worst = max(range(len(over)), key=lambda k: over[k])
        short = max(0, over[worst]) if number is None else 0
        return Solved(
            self.size.name, smallest, number, stop, worst if over[worst] > 0 else None, short, **more
        )


def _rising(problem: _Problem, smallest: int) -> Solved:
    if not problem.fits(smallest):
        return problem.solved(smallest, None)
    low = smallest
    while problem.fits(2 * low):
        low *= 2
        if low > _FAR:
            return Solved(problem.size.name, smallest, low, None, None)
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if problem.fits(middle) else (low, middle)
    return problem.solved(smallest, problem.before(low, smallest))


def _crossing(problem: _Problem, smallest: int) -> Solved:
    """With ceilings that rise and fall: the sizes just before a crossing are the only ends of what fits."""
    ends: set[int] | None = set()
    for ceiling in problem.ceilings:
        found = _ends(ceiling, problem.size)
        ends = None if ends is None or found is None else ends | found
    if ends is None:
        return _scanned(problem, smallest)
    ends = {x for x in ends | {smallest} if x >= smallest}
    if problem.fits(max(ends) + 1):
        return Solved(problem.size.name, smallest, _FAR, None, None, gaps=_gaps(problem, ends, _FAR))
    for end in sorted(ends, reverse=True):
        number = problem.before(end, smallest) if problem.fits(end) else None
        if number is not None:
            return problem.solved(smallest, number, gaps=_gaps(problem, ends, number))
    return problem.solved(smallest, None)


def _gaps(problem: _Problem, ends: Iterable[int], number: int) -> tuple[int, ...]:
    """Where what does not fit begins: at the smallest size, or at the first allowed one behind a crossing."""
    begins = {problem.smallest(), *(x for end in ends if (x := problem.after(end)) is not None)}
    return tuple(x for x in sorted(begins) if x < number and problem.begins(x))


def _ends(ceiling: Ceiling, size: sp.Symbol) -> set[int] | None:
    """The integers just before the expression crosses its limit; None where it is no polynomial."""
    excess = sp.expand(ceiling.bytes - sp.Rational(ceiling.limit))
    if not excess.is_polynomial(size):
        return None
    poly = sp.Poly(excess, size)
    if poly.degree() <= 0:
        return set()
    return set(_floors(poly))


def _floors(poly: sp.Poly) -> Iterator[int]:
    """Integers around each positive root: its floor and the one above."""
    poly = poly.sqf_part()
    largest = max(abs(c) for c in poly.all_coeffs()) / abs(poly.LC()) + 1  # Cauchy's bound
    yield from _cells(poly, 0, int(sp.ceiling(largest)))


def _cells(poly: sp.Poly, low: int, high: int) -> Iterator[int]:
    if not poly.count_roots(low, high):
        return
    if high - low <= 1:
        yield from (low, high)
        return
    middle = (low + high) // 2
    yield from _cells(poly, low, middle)
    yield from _cells(poly, middle, high)


def _scanned(problem: _Problem, smallest: int) -> Solved:
    """With expressions of which nothing is known: every size up to a bound, which the answer names."""
    fitting = [x for x in range(smallest, _SCANNED) if problem.allowed(x) and problem.fits(x)]
    number = fitting[-1] if fitting else None
    known = set(fitting)
    gaps = tuple(x for x in range(smallest, number or smallest) if x not in known and problem.allowed(x))
    return problem.solved(smallest, number, gaps=gaps, tried=_SCANNED - 1)


# Closed forms


@dataclass(frozen=True, slots=True)
class Inverse:
    """`a·x² + b·x + c <= M` solved for x, with a > 0, or a = 0 and b > 0, whatever the other sizes are."""

    size: sp.Symbol
    a: Expr
    b: Expr
    c: Expr

    def bound(self, limit: Expr) -> Expr:
        """The real number that x may not exceed: an expression in the other sizes and the limit."""
        room = limit - self.c
        if self.a == 0:
            return room / self.b
        return (sp.sqrt(self.b**2 + 4 * self.a * room) - self.b) / (2 * self.a)

    def number(self, limit: Number, sizes: dict[sp.Symbol, sp.Integer]) -> int:
        """Its floor at these sizes, in integer arithmetic; below 1 nothing fits."""
        a, b, c = (sp.Rational(part.xreplace(sizes)) for part in (self.a, self.b, self.c))
        room = sp.Rational(limit) - c
        if a == 0:
            return int(sp.floor(room / b))
        if room < 0:
            return 0
        scale = sp.ilcm(a.q, b.q, room.q)
        a, b, room = (int(part * scale) for part in (a, b, room))
        return (isqrt(b * b + 4 * a * room) - b) // (2 * a)


def inverse(form: Expr, size: sp.Symbol) -> Inverse | None:
    """The closed form of `form <= M` for `size`; None where the degree is above 2 or a sign depends on other
    sizes.
    """
    form = sp.expand(form)
    if size not in form.free_symbols or not form.is_polynomial(size):
        return None
    poly = sp.Poly(form, size)
    if poly.degree() > 2:
        return None
    a, b, c = (sp.expand(poly.coeff_monomial(size**power)) for power in (2, 1, 0))
    leading = a if poly.degree() == 2 else b
    if not _positive(leading) or (a != 0 and b != 0 and not _positive(b)):
        return None
    return Inverse(size, a, b, c)


def _positive(expr: Expr) -> bool:
    """Whether an expanded expression is proved positive, whatever sizes from 1 are: its terms that are not
    stay below those that are, such as in p·v + p - 1.
    """
    if expr.is_positive:
        return True
    below = sp.Add(*(term for term in sp.Add.make_args(expr) if not term.is_positive))
    short = sp.expand(expr + below / _MARGIN)
    return below != expr and undominated([short, sp.Integer(0)]) == [short]
