"""Finding a size as an expression from its values at concrete points: exact, or refused.

Sizes in networks are constants, monomials and short sums of monomials (`n² + 1`, `2d + 3h`). Candidates are tried from
the simplest; one is taken only when it gives every observed value, and there are more observations than it has
coefficients, distinct in the symbols that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import comb, lcm

import sympy as sp
from sympy import Expr

Row = Mapping[sp.Symbol, int]
Number = int | Fraction
_PARTS = 64  # the finest denominator of a monomial's coefficient; one size may divide it too
_FINEST = 4  # the denominators of an affine form; finer ones are met by chance


def lift(rows: Sequence[Row], values: Sequence[Number | float], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """The simplest expression in `symbols` with these values at these rows; None when there is none.

    `rows[i]` gives each symbol a number at the i-th observation. Rows that repeat add nothing.
    """
    seen: dict[tuple[int, ...], Number | float] = {}
    for row, value in zip(rows, values, strict=True):
        key = tuple(int(row[s]) for s in symbols)
        if seen.setdefault(key, value) != value:
            return None
    points = _spread(seen, symbols)
    values = [seen[point] for point in points]
    if len(set(values)) == 1:
        return sp.Integer(values[0]) if _tells([(0,) * len(symbols)], points) else None
    targets = [value if isinstance(value, int) else Fraction(value) for value in values]  # a scale is a float
    if any(t.denominator > _PARTS * max(map(max, points)) for t in targets):
        return None
    found = _monomial(points, targets, symbols)
    if found is None and not all(s.is_positive for s in symbols):
        found = _in_indices(points, targets, symbols)
    return _sum(points, targets, symbols) if found is None else found


def observed(seen: Iterable[tuple[int, Mapping[str, int]]], symbols: Iterable[sp.Symbol]) -> str:
    """Values with the sizes at which they were seen, in words: `16 (d = 16, f = 24), 2 (d = 3, f = 12)`."""
    names = [str(s) for s in symbols]
    return ", ".join(f"{value} ({', '.join(f'{name} = {row[name]}' for name in names if name in row)})" for value, row in seen)


def _spread(seen: Mapping[tuple[int, ...], Number | float], symbols: Sequence[sp.Symbol]) -> list[tuple[int, ...]]:
    """The points, those that differ in sizes first: iterations of one run rarely refute a candidate."""
    met: dict[tuple[int, ...], int] = {}
    order: list[tuple[int, int, tuple[int, ...]]] = []
    for point in seen:
        sizes = tuple(n for n, s in zip(point, symbols, strict=True) if s.is_positive)
        met[sizes] = met.get(sizes, 0) + 1
        order.append((met[sizes], len(order), point))
    return [point for _, _, point in sorted(order)]


def _tells(terms: Sequence[tuple[int, ...]], points: Sequence[tuple[int, ...]]) -> bool:
    """Whether the points can tell a sum of these monomials from others: each symbol takes more values than it has powers.

    At two values of h, `7h - h²` is no other than 12.
    """
    return all(len({p[k] for p in points}) > len({t[k] for t in terms}) for k in range(len(terms[0])))


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
    above, below = 1, 1
    for power, base in zip(powers, point, strict=True):
        if power > 0:
            above *= base**power
        elif power:
            below *= base**-power
    return Fraction(above, below)


def _columns(basis: Sequence[tuple[int, ...]], points: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The values of monomials without divisors at the points."""
    return [[int(_value(powers, point)) for point in points] for powers in basis]


def _expression(powers: tuple[int, ...], symbols: Sequence[sp.Symbol]) -> Expr:
    return sp.Mul(*(s**p for s, p in zip(symbols, powers, strict=True) if p))


def _enough(points: list[tuple[int, ...]], used: Sequence[tuple[int, ...]]) -> bool:
    """Whether the observations can tell a sum of these monomials from all as simple ones in the symbols that it uses.

    One observation for each coefficient, one more, and one for each power of ten of rivals.
    """
    places = [k for k in range(len(points[0])) if any(powers[k] for powers in used)]
    distinct = len({tuple(p[k] for k in places) for p in points})
    degree = max(sum(map(abs, powers)) for powers in used)
    rivals = comb(comb(len(places) + degree, degree), len(used))
    return _tells(used, points) and distinct >= len(used) + 1 + len(str(rivals))


def _monomial(points: list[tuple[int, ...]], targets: list[Number], symbols: Sequence[sp.Symbol]) -> Expr | None:
    divisors = [i for i in range(len(symbols)) if all(point[i] for point in points)]
    pivot = next(k for k, target in enumerate(targets) if target)  # not all are 0: that is a constant
    for powers in _exponents(len(symbols), 4):
        for lowered in [None, *(i for i in divisors if not powers[i])]:
            trial = powers if lowered is None else tuple(-1 if i == lowered else p for i, p in enumerate(powers))
            unit = _value(trial, points[pivot])
            if not unit:  # a power of an index that is 0 here
                continue
            ratio = Fraction(targets[pivot]) / unit
            if ratio.denominator <= _PARTS and all(t == ratio * _value(trial, p) for t, p in zip(targets, points, strict=True)):
                if not _enough(points, [trial]):
                    return None
                return sp.Rational(ratio.numerator, ratio.denominator) * _expression(trial, symbols)
    return None


def _in_indices(points: list[tuple[int, ...]], targets: list[Number], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """Affine in the loop indices within each run, with coefficients that are expressions in the sizes."""
    loops = [k for k, s in enumerate(symbols) if not s.is_positive]
    sizes = [k for k, s in enumerate(symbols) if s.is_positive]
    runs: dict[tuple[int, ...], list[int]] = {}
    for number, point in enumerate(points):
        runs.setdefault(tuple(point[k] for k in sizes), []).append(number)
    rows: list[Row] = []
    coefficients: list[list[Fraction]] = []
    for run, numbers in runs.items():
        columns = [[1] * len(numbers), *([points[n][k] for n in numbers] for k in loops)]
        solved = _solve(columns, [targets[n] for n in numbers])
        if solved is not None:
            rows.append({symbols[k]: value for k, value in zip(sizes, run, strict=True)})
            coefficients.append(solved)
    if not rows or any(v.denominator != 1 for solved in coefficients for v in solved):
        return None
    slopes = [_lifted(rows, column) for column in zip(*(solved[1:] for solved in coefficients), strict=True)]
    for base in (None, *(symbols[k] for k in sizes)):  # a backward pass counts its layers from the last: by base - i
        starts = [solved[0] + (solved[1] * row[base] if base is not None else 0) for row, solved in zip(rows, coefficients, strict=True)]
        start = _lifted(rows, starts)
        if start is None or None in slopes:
            continue
        steps = [symbols[k] for k in loops]
        steps[0] = steps[0] if base is None else steps[0] - base
        whole = sp.expand(start + sp.Add(*(slope * step for slope, step in zip(slopes, steps, strict=True))))
        if all(whole.xreplace(dict(zip(symbols, map(sp.Integer, p), strict=True))) == t for p, t in zip(points, targets, strict=True)):
            return whole
    return None


def _lifted(rows: Sequence[Row], values: Sequence[Fraction]) -> Expr | None:
    return lift(rows, [int(v) for v in values], sorted(rows[0], key=str))


def _sum(points: list[tuple[int, ...]], targets: list[Number], symbols: Sequence[sp.Symbol]) -> Expr | None:
    for terms, degree in ((2, 1), (3, 1), (2, 2), (2, 3), (3, 2)):
        basis = _exponents(len(symbols), degree)
        if (len(basis) > 40 and terms > 2) or len(basis) > 130 or len(points) < terms + 2:
            continue
        columns = _columns(basis, points)
        for chosen in combinations(range(len(basis)), terms):
            solved = _solve([columns[c] for c in chosen], targets)
            if solved is not None and all(c and c.denominator <= 2 for c in solved):
                if not _enough(points, [basis[b] for b in chosen]):
                    return None
                return sp.Add(*(sp.Rational(c.numerator, c.denominator) * _expression(basis[b], symbols) for c, b in zip(solved, chosen, strict=True)))
    return _affine(points, targets, symbols) or _shared(points, targets, symbols)


def _shared(points: list[tuple[int, ...]], targets: list[Number], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """A sum of two terms over one size, such as `d + 2·d·h_kv/h` for queries, keys and values in one tensor."""
    for k, size in enumerate(symbols):
        if not size.is_positive or len({point[k] for point in points}) < 2:
            continue
        whole = [target * point[k] for target, point in zip(targets, points, strict=True)]
        basis = _exponents(len(symbols), 2)
        columns = _columns(basis, points)
        for chosen in combinations(range(len(basis)), 2) if len(basis) <= 130 else ():
            solved = _solve([columns[c] for c in chosen], whole)
            if solved is None or not all(c and c.denominator == 1 for c in solved):
                continue
            terms = [basis[b] for b in chosen]
            if not _enough(points, terms):
                return None
            return sp.Add(*(c.numerator * _expression(t, symbols) / size for c, t in zip(solved, terms, strict=True)))
    return None


def _affine(points: list[tuple[int, ...]], targets: list[Number], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """A full affine form, when there are points enough to tell it in the symbols that it uses: a plane meets any three."""
    basis = _exponents(len(symbols), 1)
    if len(points) < len(basis) + 2:
        return None
    solved = _solve(_columns(basis, points), targets)
    if solved is None or not all(c.denominator <= _FINEST for c in solved):
        return None
    terms = [(c, powers) for c, powers in zip(solved, basis, strict=True) if c]
    if not _enough(points, [powers for _, powers in terms]):
        return None
    return sp.Add(*(sp.Rational(c.numerator, c.denominator) * _expression(powers, symbols) for c, powers in terms))


def _solve(columns: list[list[int]], targets: list[Number]) -> list[Fraction] | None:
    """Coefficients with Σ cⱼ·columnⱼ = targets at every point, by exact elimination; None if there are none or many."""
    width = len(columns)
    solved = _through(columns, targets)
    if solved is None:
        return None
    scale = lcm(*(c.denominator for c in solved))
    whole = [int(c * scale) for c in solved]
    for i, target in enumerate(targets):
        if sum(whole[j] * columns[j][i] for j in range(width)) != scale * target:
            return None
    return solved


def _through(columns: list[list[int]], targets: list[Number]) -> list[Fraction] | None:
    """The one solution through the first points that leave no other, without fractions until the end."""
    width = len(columns)
    reduced: list[tuple[int, list[Number]]] = []
    for i, target in enumerate(targets):
        row = [*(column[i] for column in columns), target]
        for place, known in reduced:
            if row[place]:
                mine, other = known[place], row[place]
                row = [mine * a - other * b for a, b in zip(row, known, strict=True)]
        free = next((k for k in range(width) if row[k]), None)
        if free is not None:
            reduced.append((free, row))
        elif row[-1]:
            return None
        if len(reduced) == width:
            break
    else:
        return None
    solved = [Fraction(0)] * width
    for place, row in reversed(reduced):
        rest = row[-1] - sum(a * c for a, c in zip(row, solved, strict=False) if a and c)
        solved[place] = Fraction(rest, row[place])
    return solved
