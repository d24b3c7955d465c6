"""Finding a size as an expression from its values at concrete points: exact, or refused.

Sizes in networks are constants, monomials and short sums of monomials (`n² + 1`, `2d + 3h`). Candidates are tried from
the simplest; one is taken only when it gives every observed value, and there are more observations than it has
coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement

import sympy as sp

Expr = sp.Expr
Row = Mapping[sp.Symbol, int]
_SPARE = 2


def lift(rows: Sequence[Row], values: Sequence[int], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """The simplest expression in `symbols` with these values at these rows; None when there is none.

    `rows[i]` gives each symbol a number at the i-th observation. Rows that repeat add nothing.
    """
    seen: dict[tuple[int, ...], int] = {}
    for row, value in zip(rows, values, strict=True):
        key = tuple(row[s] for s in symbols)
        if seen.setdefault(key, value) != value:
            return None
    points, targets = list(seen), list(seen.values())
    if len(set(targets)) == 1:
        return sp.Integer(targets[0]) if len(points) > 1 or not symbols else None
    return _monomial(points, targets, symbols) or _sum(points, targets, symbols)


def _exponents(count: int, degree: int) -> list[tuple[int, ...]]:
    found = []
    for total in range(degree + 1):
        for chosen in combinations_with_replacement(range(count), total):
            powers = [0] * count
            for c in chosen:
                powers[c] += 1
            found.append(tuple(powers))
    return found


def _value(powers: tuple[int, ...], point: tuple[int, ...]) -> Fraction:
    value = Fraction(1)
    for power, base in zip(powers, point, strict=True):
        if power:
            value *= Fraction(base) ** power
    return value


def _expression(powers: tuple[int, ...], symbols: Sequence[sp.Symbol]) -> Expr:
    return sp.Mul(*(s**p for s, p in zip(symbols, powers, strict=True) if p))


def _monomial(points: list[tuple[int, ...]], targets: list[int], symbols: Sequence[sp.Symbol]) -> Expr | None:
    if len(points) < 1 + _SPARE or any(0 in point for point in points):
        return None
    for powers in _exponents(len(symbols), 4):
        for lowered in [None, *(i for i, p in enumerate(powers) if p == 0)]:
            trial = powers if lowered is None else tuple(-1 if i == lowered else p for i, p in enumerate(powers))
            ratio = Fraction(targets[0]) / _value(trial, points[0])
            if all(t == ratio * _value(trial, p) for t, p in zip(targets[1:], points[1:], strict=True)):
                return sp.Rational(ratio.numerator, ratio.denominator) * _expression(trial, symbols)
    return None


def _sum(points: list[tuple[int, ...]], targets: list[int], symbols: Sequence[sp.Symbol]) -> Expr | None:
    for terms, degree in ((2, 1), (3, 1), (2, 2), (2, 3), (3, 2)):
        basis = _exponents(len(symbols), degree)
        if len(basis) > 40 and terms > 2 or len(basis) > 130 or len(points) < terms + _SPARE:
            continue
        columns = [[_value(powers, point) for point in points] for powers in basis]
        for chosen in combinations(range(len(basis)), terms):
            solved = _solve([columns[c] for c in chosen], targets)
            if solved is not None and all(solved):
                return sp.Add(*(sp.Rational(c.numerator, c.denominator) * _expression(basis[b], symbols) for c, b in zip(solved, chosen, strict=True)))
    return _affine(points, targets, symbols)


def _affine(points: list[tuple[int, ...]], targets: list[int], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """A full affine form, when there are points enough to tell it."""
    basis = _exponents(len(symbols), 1)
    if len(points) < len(basis) + _SPARE:
        return None
    solved = _solve([[_value(powers, point) for point in points] for powers in basis], targets)
    if solved is None:
        return None
    return sp.Add(*(sp.Rational(c.numerator, c.denominator) * _expression(b, symbols) for c, b in zip(solved, basis, strict=True)))


def _solve(columns: list[list[Fraction]], targets: list[int]) -> list[Fraction] | None:
    """Coefficients with Σ cⱼ·columnⱼ = targets at every point, by exact elimination; None if there are none or many."""
    width = len(columns)
    rows: list[list[Fraction]] = []
    for i, target in enumerate(targets):
        row = [column[i] for column in columns] + [Fraction(target)]
        for pivot, known in enumerate(rows):
            if row[pivot]:
                factor = row[pivot]
                row = [a - factor * b for a, b in zip(row, known, strict=True)]
        if len(rows) == width:
            if row[-1]:
                return None
            continue
        lead = row[len(rows)]
        if not lead:
            if not any(row[:-1]):
                if row[-1]:
                    return None
                continue
            return _solve_plain(columns, targets)
        row = [a / lead for a in row]
        rows.append(row)
    if len(rows) < width:
        return None
    answer = [Fraction(0)] * width
    for i in reversed(range(width)):
        answer[i] = rows[i][-1] - sum(rows[i][j] * answer[j] for j in range(i + 1, width))
    return answer


def _solve_plain(columns: list[list[Fraction]], targets: list[int]) -> list[Fraction] | None:
    matrix = sp.Matrix(len(targets), len(columns), lambda i, j: sp.Rational(columns[j][i].numerator, columns[j][i].denominator))
    unknowns = sp.symbols(f"c:{len(columns)}")
    found = sp.linsolve((matrix, sp.Matrix(targets)), *unknowns)
    for solution in found:
        if not any(c.free_symbols for c in solution):
            return [Fraction(int(c.p), int(c.q)) for c in solution]
    return None
