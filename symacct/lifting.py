"""Finding a size as an expression from its values at concrete points: exact, or refused.

Sizes in networks are constants, monomials and short sums of monomials (`n² + 1`, `2d + 3h`). Candidates are
tried from the simplest; the first that gives all values observed ends the search. From few observations a
wrong one may: `d/B` gives what `d·g/h` does wherever B is h/g. So it is settled only by more observations
than chance allows, and when no other expression about as simple gives the same values. Else whoever asks must
observe more, best where two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import comb

import sympy as sp
from sympy import Expr

from symacct.monomials import Point, Powers, Sum, combined, monomials, solve

Row = Mapping[sp.Symbol, int]

_DEGREE, _DENOMINATOR = 4, 64  # of monomials and their coefficients, at most
_FEWEST = 4  # observations apart, where there are other symbols
_RIVALS = 3  # of a candidate, that are named
_WIDEST = 130  # monomials of which pairs are tried
_SUMS = ((2, 1), (3, 1), (2, 2), (2, 3), (3, 2))  # terms, and their degree


@dataclass(frozen=True, slots=True)
class Fit:
    """Expressions that give all values observed, from the simplest; whether these suffice for the first."""

    found: tuple[Expr, ...]
    enough: bool

    @property
    def settled(self) -> bool:
        """Whether the first is the one."""
        return self.enough and len(self.found) == 1


def lift(rows: Sequence[Row], values: Sequence[int], symbols: Sequence[sp.Symbol]) -> Expr | None:
    """The simplest expression in `symbols` with these values at these rows; None when none is settled.

    `rows[i]` gives each symbol a number at the i-th observation. Rows that repeat add nothing.
    """
    fit = fitted(rows, values, symbols)
    return fit.found[0] if fit is not None and fit.settled else None


def fitted(rows: Sequence[Row], values: Sequence[int], symbols: Sequence[sp.Symbol]) -> Fit | None:
    """What gives these values at these rows, settled or not; None when nothing as simple as a size does."""
    if not values or any(not isinstance(value, int) for value in values):
        return None
    seen: dict[Point, int] = {}
    for row, value in zip(rows, values, strict=True):
        key = tuple(row[s] for s in symbols)
        if seen.setdefault(key, value) != value:
            return None
    points = _spread(seen, symbols)
    targets = [seen[point] for point in points]
    return _Search(tuple(points), tuple(targets), tuple(symbols)).fit()


def _spread(seen: Mapping[Point, int], symbols: Sequence[sp.Symbol]) -> list[Point]:
    """The points, those that differ in sizes first: iterations of one run rarely refute a candidate."""
    met: dict[Point, int] = {}
    order: list[tuple[int, int, Point]] = []
    for point in seen:
        sizes = tuple(n for n, s in zip(point, symbols, strict=True) if s.is_positive)
        met[sizes] = met.get(sizes, 0) + 1
        order.append((met[sizes], len(order), point))
    return [point for _, _, point in sorted(order)]


@dataclass(frozen=True)
class _Search:
    """Observations, and the search among expressions for what gives them."""

    points: tuple[Point, ...]
    targets: tuple[int, ...]
    symbols: tuple[sp.Symbol, ...]

    def fit(self) -> Fit | None:
        """The simplest expressions that give all targets."""
        monomial = self._monomial()
        if monomial is not None:
            return monomial
        indexed = None if all(s.is_positive for s in self.symbols) else self._in_indices()
        return indexed or self._sum() or self._affine() or self._shared()

    def _fit(self, found: Iterable[Sum], over: sp.Symbol | None = None) -> Fit | None:
        """These sums: the first is taken if the points suffice for it and refute all others."""
        sums = list(islice(found, _RIVALS))
        if not sums:
            return None
        named = [self._expression(terms) for terms in sums]
        return Fit(
            tuple(expr if over is None else sp.expand(expr / over) for expr in named),
            self._suffice([powers for powers, _ in sums[0]]),
        )

    def _expression(self, terms: Sum) -> Expr:
        return sp.Add(*(sp.Rational(c.numerator, c.denominator) * self._product(p) for p, c in terms))

    def _product(self, powers: Powers) -> Expr:
        return sp.Mul(*(s**p for s, p in zip(self.symbols, powers, strict=True) if p))

    # Whether the observations suffice

    def _suffice(self, terms: Sequence[Powers]) -> bool:
        """Whether there are observations enough to take a sum of these monomials for no other.

        One for each coefficient, one more, and one for each power of ten of sums as simple: of those in the
        same symbols by observations distinct in these, of those in all by ones that have little in common.
        """
        width = len(self.symbols)
        used = [k for k in range(width) if any(powers[k] for powers in terms)]
        sizes = [k for k, s in enumerate(self.symbols) if s.is_positive]
        degree = max(sum(map(abs, powers)) for powers in terms)

        def least(among: int) -> int:
            return len(terms) + 1 + len(str(comb(comb(among + degree, degree), len(terms))))

        return (
            self._tells(terms)
            and (not used or len({tuple(p[k] for k in used) for p in self.points}) >= least(len(used)))
            and (len(sizes) == len(used) or self._apart(sizes) >= max(_FEWEST, least(width)))
        )

    def _tells(self, terms: Sequence[Powers]) -> bool:
        """Whether each symbol takes more values than powers: at two values of h, `7h - h²` may be 12."""
        places = range(len(self.symbols))
        return all(len({p[k] for p in self.points}) > len({t[k] for t in terms}) for k in places)

    def _apart(self, places: Sequence[int]) -> int:
        """How many points differ from one another in half of these places."""
        chosen: list[Point] = []
        for point in self.points:
            if all(2 * sum(point[k] != other[k] for k in places) >= len(places) for other in chosen):
                chosen.append(point)
        return len(chosen)

    # Monomials

    def _monomial(self) -> Fit | None:
        if len(set(self.targets)) == 1:
            first: Sum | None = (((0,) * len(self.symbols), Fraction(self.targets[0])),)
        else:
            first = next(self._proportional(_DEGREE), None)
        if first is None:
            return None
        degree = sum(map(abs, first[0][0]))
        rivals = self._proportional(min(degree + 1, _DEGREE)) if any(self.targets) else iter(())
        return self._fit([first, *(other for other in islice(rivals, _RIVALS + 1) if other != first)])

    def _proportional(self, degree: int) -> Iterator[Sum]:
        """The monomials, over one symbol at most, that times a rational give the targets."""
        pivot = next(k for k, target in enumerate(self.targets) if target)
        over: dict[int | None, list[int]] = {None: list(self.targets)}
        for i in range(len(self.symbols)):
            if all(point[i] for point in self.points):
                over[i] = [target * point[i] for target, point in zip(self.targets, self.points, strict=True)]
        for powers, column in monomials(self.points, degree):
            unit = column[pivot]
            if not unit:  # a power of an index that is 0 here
                continue
            for divisor, scaled in over.items():
                if divisor is not None and powers[divisor]:
                    continue
                ratio = scaled[pivot]
                if all(s * unit == ratio * value for s, value in zip(scaled, column, strict=True)):
                    coefficient = Fraction(ratio, unit)
                    if coefficient.denominator <= _DENOMINATOR:
                        yield ((tuple(-1 if k == divisor else p for k, p in enumerate(powers)), coefficient),)

    # Sums

    def _sum(self) -> Fit | None:
        for terms, degree in _SUMS:
            basis = monomials(self.points, degree)
            if (len(basis) > 40 and terms > 2) or len(basis) > _WIDEST or len(self.points) < terms + 2:
                continue
            fit = self._fit(combined(basis, self.targets, terms, 2))
            if fit is not None:
                return fit
        return None

    def _affine(self) -> Fit | None:
        """A full affine form, when there are points enough to tell it."""
        basis = monomials(self.points, 1)
        if len(self.points) < len(basis) + 2:
            return None
        solved = solve([column for _, column in basis], self.targets)
        if solved is None:
            return None
        return self._fit([tuple((powers, c) for (powers, _), c in zip(basis, solved, strict=True) if c)])

    def _shared(self) -> Fit | None:
        """Two terms over one size, such as `d + 2·d·h_kv/h` for queries, keys and values in one tensor."""
        basis = monomials(self.points, 2)
        for k, size in enumerate(self.symbols):
            if not size.is_positive or len({point[k] for point in self.points}) < 2 or len(basis) > _WIDEST:
                continue
            whole = [target * point[k] for target, point in zip(self.targets, self.points, strict=True)]
            fit = self._fit(combined(basis, whole, 2, 1), size)
            if fit is not None:
                return fit
        return None

    # Loop indices

    def _in_indices(self) -> Fit | None:
        """Affine in the loop indices within each run, with coefficients that are expressions in the sizes."""
        loops = [k for k, s in enumerate(self.symbols) if not s.is_positive]
        sizes = [k for k, s in enumerate(self.symbols) if s.is_positive]
        runs: dict[Point, list[int]] = {}
        for number, point in enumerate(self.points):
            runs.setdefault(tuple(point[k] for k in sizes), []).append(number)
        rows: list[Row] = []
        coefficients: list[list[Fraction]] = []
        for run, numbers in runs.items():
            indices = [[self.points[n][k] for n in numbers] for k in loops]
            solved = solve([[1] * len(numbers), *indices], [self.targets[n] for n in numbers])
            if solved is not None:
                rows.append({self.symbols[k]: value for k, value in zip(sizes, run, strict=True)})
                coefficients.append(solved)
        if not rows or any(v.denominator != 1 for solved in coefficients for v in solved):
            return None
        starts, *others = zip(*coefficients, strict=True)
        slopes = [_lifted(rows, column) for column in others]
        steps = [self.symbols[k] for k in loops]
        for base in (None, *(self.symbols[k] for k in sizes)):
            if base is not None:  # a backward pass counts its layers from the last: by base - i
                starts = tuple(c[0] + c[1] * row[base] for row, c in zip(rows, coefficients, strict=True))
            back = steps if base is None else [steps[0] - base, *steps[1:]]
            parts = [part for part in (_lifted(rows, starts), *slopes) if part is not None]
            fit = _joined(parts, [sp.Integer(1), *back]) if len(parts) == 1 + len(slopes) else None
            if fit is not None and self._gives(fit.found[0]):
                return fit
        return None

    def _gives(self, expr: Expr) -> bool:
        numbers = [dict(zip(self.symbols, map(sp.Integer, point), strict=True)) for point in self.points]
        return all(expr.xreplace(at) == target for at, target in zip(numbers, self.targets, strict=True))


def _lifted(rows: Sequence[Row], values: Sequence[Fraction]) -> Fit | None:
    return fitted(rows, [int(v) for v in values], sorted(rows[0], key=str))


def _joined(parts: Sequence[Fit], steps: Sequence[Expr]) -> Fit:
    """The sum of each part times its step; rivals of it have one part otherwise."""
    firsts = [part.found[0] for part in parts]
    others = [(k, other) for k, part in enumerate(parts) for other in part.found[1:]]
    rivals = ([*firsts[:k], other, *firsts[k + 1 :]] for k, other in others)
    found = [
        sp.expand(sp.Add(*(c * step for c, step in zip(each, steps, strict=True))))
        for each in (firsts, *islice(rivals, _RIVALS))
    ]
    return Fit(tuple(found), all(part.enough for part in parts))
