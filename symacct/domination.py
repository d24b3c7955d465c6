"""Which of several expanded expressions can be the largest: those that no other is proved to reach."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import sympy as sp
from sympy import Expr

Exponents = tuple[int, ...]
_SAMPLES = 8
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Candidate:
    expr: Expr
    terms: dict[Exponents, Fraction]
    samples: tuple[Fraction, ...]


def undominated(exprs: Iterable[Expr], sign: int = 1) -> list[Expr]:
    """The candidates for the maximum (with sign -1: the minimum), in a fixed order. Arguments are expanded.

    >>> from symacct.symbols import symbol
    >>> undominated([symbol("d"), 2 * symbol("d"), symbol("h"), sp.Integer(1)])
    [2*d, h]
    """
    ordered = sorted(exprs, key=sp.default_sort_key)
    polynomials = [list(_terms(expr)) for expr in ordered]
    bases = sorted({base for terms in polynomials for m, _ in terms for base in m}, key=sp.default_sort_key)
    points = _points(len(bases))
    kept: list[_Candidate] = []
    for expr, powers in zip(ordered, polynomials, strict=True):
        terms = {tuple(m.get(base, 0) for base in bases): sign * coeff for m, coeff in powers}
        new = _Candidate(expr, terms, tuple(_at(terms, point) for point in points))
        if not any(_reaches(other, new, bases) for other in kept):
            kept = [other for other in kept if not _reaches(new, other, bases)] + [new]
    return [candidate.expr for candidate in kept]


def _terms(expr: Expr) -> Iterator[tuple[dict[Expr, int], Fraction]]:
    for term in sp.Add.make_args(expr):
        coeff, body = term.as_coeff_Mul()
        factors = [factor for factor in sp.Mul.make_args(body) if factor != 1]
        powers = (f.as_base_exp() if f.is_Pow and f.exp.is_Integer else (f, sp.S.One) for f in factors)
        yield {base: exponent.p for base, exponent in powers}, Fraction(coeff.p, coeff.q)


def _points(width: int) -> list[tuple[int, ...]]:
    """Values for the bases, from 1: one of them large, then random ones."""
    rng = random.Random(0)
    single = [tuple(_LARGE if i == j else 1 for j in range(width)) for i in range(width)]
    numbers = iter(lambda: rng.randint(1, 1 << rng.randint(0, 12)), None)
    return single + [tuple(islice(numbers, width)) for _ in range(_SAMPLES)]


def _at(terms: dict[Exponents, Fraction], point: tuple[int, ...]) -> Fraction:
    """The value at a point; terms of one denominator are added as whole numbers, for speed."""
    groups: dict[int, int] = {}
    for exponents, coeff in terms.items():
        above, below = coeff.numerator, coeff.denominator
        for base, e in zip(point, exponents, strict=True):
            if e > 0:
                above *= base**e
            elif e < 0:
                below *= base**-e
        groups[below] = groups.get(below, 0) + above
    return sum((Fraction(whole, below) for below, whole in groups.items()), Fraction(0))


def _reaches(a: _Candidate, b: _Candidate, bases: list[Expr]) -> bool:
    """Whether a ≥ b is proved: each negative monomial of a - b divides positive ones that cover it.

    The samples settle most pairs: the proof holds for any values of the bases from 1, so for those too.
    """
    if any(x < y for x, y in zip(a.samples, b.samples, strict=True)):
        return False
    monomials = sorted(a.terms.keys() | b.terms.keys(), reverse=True)
    difference = {m: coeff for m in monomials if (coeff := a.terms.get(m, Fraction(0)) - b.terms.get(m, Fraction(0)))}
    if not all(base.is_nonnegative for m in difference for base, e in zip(bases, m, strict=True) if e):
        return False
    sizes = [base.is_Symbol and base.is_positive for base in bases]
    spare = {m: coeff for m, coeff in difference.items() if coeff > 0}
    return all(_covered(m, -coeff, spare, sizes) for m, coeff in difference.items() if coeff < 0)


def _covered(
    monomial: Exponents, need: Fraction, spare: dict[Exponents, Fraction], sizes: list[bool]
) -> bool:
    for larger in spare:
        if _at_least(larger, monomial, sizes):
            taken = min(need, spare[larger])
            spare[larger] -= taken
            need -= taken
    return need <= 0


def _at_least(larger: Exponents, smaller: Exponents, sizes: list[bool]) -> bool:
    """Whether the quotient is a product of sizes, hence at least 1."""
    return all(x == y or (x > y and size) for x, y, size in zip(larger, smaller, sizes, strict=True))
