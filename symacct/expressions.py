"""What formulas can do: be written, read, brought to one form, compared, given numbers. All of it exact."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Literal

import sympy as sp
from sympy import Expr

from symacct.canonical import canonical, in_floors
from symacct.errors import FormulaError
from symacct.evaluation import UndefinedHere, evaluate
from symacct.formula_reader import parse
from symacct.formula_text import to_text

if TYPE_CHECKING:
    from symacct.vectorised import Evaluator

__all__ = [
    "Comparison",
    "Proved",
    "Refuted",
    "UndefinedHere",
    "Unsettled",
    "canonical",
    "compare",
    "evaluate",
    "evaluator",
    "parse",
    "to_text",
]

_MAX_POINTS = 300
_LOWERED = 33
_REACHES = ((3, 60), (16, 60), (200, 60), (10**6, 20))


def evaluator(expr: Expr | int, exact: Literal["any", "int64"] = "any") -> Evaluator:
    """A function of integer arrays, one a size by name, that broadcast together. Its values are integers.

    Where int64 might not do, the result is an object array of Python integers; `exact="int64"` refuses that.

    >>> evaluator(parse("d**2/h"))(d=[4, 6], h=2)
    array([ 8, 18])
    """
    from symacct.vectorised import evaluator_of  # imports numpy, a quarter of the time of an answer

    return evaluator_of(expr, exact)


@dataclass(frozen=True, slots=True)
class Proved:
    """Both expressions are equal wherever both have a value."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """A witness: sizes at which the two expressions differ, and their values there."""

    point: dict[str, int]
    left: int | Fraction
    right: int | Fraction


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Not proved, and equal at all points that were tried."""

    tried: int


Comparison = Proved | Refuted | Unsettled


def compare(
    a: Expr | int, b: Expr | int, domain_points: Iterable[Mapping[str, int]] | None = None, seed: int = 0
) -> Comparison:
    """Whether two expressions are equal. `domain_points`, maybe endless, are the only sizes that may refute.

    >>> compare(parse("12*d**2"), parse("12*d**2 + 13*d"))
    Refuted(point={'d': 1}, left=12, right=25)
    """
    names = sorted({size.name for side in (a, b) for size in getattr(side, "free_symbols", ())})
    a, b = canonical(a), canonical(b)
    if _is_zero(a - b):
        return Proved()
    points = _points(names, seed) if domain_points is None else islice(domain_points, _MAX_POINTS)
    tried = 0
    for point in sorted(({name: p[name] for name in names if name in p} for p in points), key=_size):
        verdict = _at(a, b, point)
        if isinstance(verdict, Refuted):
            return verdict if domain_points is not None else _smallest(a, b, verdict)
        tried += verdict
    return Unsettled(tried)


def _at(a: Expr, b: Expr, point: dict[str, int]) -> Refuted | int:
    """A refutation at this point, else how many points were tried: 0 where an expression has no value."""
    try:
        left, right = evaluate(a, point), evaluate(b, point)
    except UndefinedHere:
        return 0
    return 1 if left == right else Refuted(point, left, right)


def _smallest(a: Expr, b: Expr, found: Refuted) -> Refuted:
    """The witness with each size lowered, one after another, as far as it still refutes."""
    for name in found.point:
        for value in range(1, min(found.point[name], _LOWERED)):
            lower = _at(a, b, found.point | {name: value})
            if isinstance(lower, Refuted):
                found = lower
                break
    return found


def _is_zero(difference: Expr) -> bool:
    """Whether the difference vanishes when multiplied out, then with floors united, then over one divisor."""
    difference = canonical(difference)
    if difference == 0:
        return True
    try:
        difference = in_floors(difference)
        has_divisor = any(power.exp.is_negative and power.base.is_Add for power in difference.atoms(sp.Pow))
        return difference == 0 or (has_divisor and canonical(sp.fraction(sp.together(difference))[0]) == 0)
    except FormulaError:  # too large to multiply out: no proof this way
        return False


def _points(names: list[str], seed: int) -> Iterator[dict[str, int]]:
    """Small points, then random ones that reach farther: the same for the same names and seed."""
    rng = random.Random(seed)
    yield from (dict.fromkeys(names, value) for value in (1, 2, 3, 4, 8))
    yield from (dict.fromkeys(names, 1) | {name: value} for name in names for value in (2, 3, 5))
    for reach, count in _REACHES:
        yield from ({name: rng.randint(1, reach) for name in names} for _ in range(count))


def _size(point: Mapping[str, int]) -> tuple[int, int, list[int]]:
    return max(point.values(), default=0), sum(point.values()), list(point.values())
