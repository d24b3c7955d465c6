"""Sums of few monomials that take given values at given points, by exact arithmetic in integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import prod
from operator import mul

Point = tuple[int, ...]
Powers = tuple[int, ...]  # of each size, in a monomial
Sum = tuple[tuple[Powers, Fraction], ...]
Column = tuple[Powers, list[int]]  # a monomial and its values at the points


@lru_cache(maxsize=64)
def monomials(points: tuple[Point, ...], degree: int) -> list[Column]:
    """Every monomial up to this degree, from the lowest, and its values at the points."""
    made: list[Column] = []
    width = len(points[0])
    for total in range(degree + 1):
        for chosen in combinations_with_replacement(range(width), total):
            powers = tuple(chosen.count(k) for k in range(width))
            made.append((powers, [prod(point[c] for c in chosen) for point in points]))
    return made


def combined(basis: list[Column], targets: Sequence[int], terms: int, most: int) -> Iterator[Sum]:
    """Sums of so many of these monomials that give the targets, no denominator of a coefficient above `most`.

    On the first terms + 1 points the columns and the targets are dependent, or no sum gives all.
    """
    heads = [column[: terms + 1] for _, column in basis]
    normals: dict[tuple[int, ...], list[int]] = {}
    for chosen in combinations(range(len(basis)), terms):
        rest = chosen[1:]
        if rest not in normals:
            normals[rest] = _normal([*(heads[c] for c in rest), list(targets[: terms + 1])])
        if sum(map(mul, heads[chosen[0]], normals[rest])):
            continue
        solved = solve([basis[c][1] for c in chosen], targets)
        if solved is not None and all(c and c.denominator <= most for c in solved):
            yield tuple((basis[k][0], c) for k, c in zip(chosen, solved, strict=True))


def _normal(vectors: list[list[int]]) -> list[int]:
    """The vector whose product with any other is the determinant of that one and these."""
    return [(-1) ** k * _determinant([v[:k] + v[k + 1 :] for v in vectors]) for k in range(len(vectors) + 1)]


def _determinant(rows: list[list[int]]) -> int:
    if len(rows) == 1:
        return rows[0][0]
    minors = [[row[:k] + row[k + 1 :] for row in rows[1:]] for k in range(len(rows))]
    return sum((-1) ** k * n * _determinant(minors[k]) for k, n in enumerate(rows[0]) if n)


def solve(columns: Sequence[Sequence[int]], targets: Sequence[int]) -> list[Fraction] | None:
    """Coefficients with Σ cⱼ·columnⱼ = targets at every point, by elimination; None if none or many are."""
    width = len(columns)
    rows = [[*(Fraction(c[i]) for c in columns), Fraction(target)] for i, target in enumerate(targets)]
    for pivot in range(width):
        found = next((r for r in range(pivot, len(rows)) if rows[r][pivot]), None)
        if found is None:
            return None
        rows[pivot], rows[found] = rows[found], rows[pivot]
        lead = rows[pivot][pivot]
        rows[pivot] = [a / lead for a in rows[pivot]]
        for r, row in enumerate(rows):
            if r != pivot and row[pivot]:
                factor = row[pivot]
                rows[r] = [a - factor * b for a, b in zip(row, rows[pivot], strict=True)]
    if any(row[-1] for row in rows[width:]):
        return None
    return [rows[j][-1] for j in range(width)]
