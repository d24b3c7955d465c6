"""A canonical formula as integer arithmetic: polynomials, each function once, and one division at the end.

    Program := steps, over / under
    Step    := an atom (floor, Mod, Max, a sum in a divisor, …) from polynomials over sizes and earlier atoms

Every divisor is an integer times a monomial in atoms, since formulas are expanded before they get here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.errors import FormulaError

Monomial = tuple[tuple[Expr, int], ...]
Values = dict[Expr, Any]


class Pole(ZeroDivisionError):
    """A divisor is zero at the places that the only argument, a mask, says."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """An integer polynomial in atoms, computed by Horner's rule on the atom that most terms share."""

    terms: dict[Monomial, int]
    run: Callable[[Values], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _horner([(c, dict(m)) for m, c in self.terms.items()]))

    def bound(self, sizes: Mapping[Expr, int]) -> int:
        """No value on the way is larger in magnitude while atoms stay within `sizes`, each at least 1."""
        terms = self.terms.items()
        return sum(abs(c) * math.prod(sizes[atom] ** power for atom, power in m) for m, c in terms)

    def times(self, coeff: int, monomial: Mapping[Expr, int]) -> Polynomial:
        extra = Counter(monomial)
        return Polynomial({_monomial(Counter(dict(m)) + extra): c * coeff for m, c in self.terms.items()})


@dataclass(frozen=True, slots=True)
class Step:
    """One atom: what makes it, of which polynomials."""

    atom: Expr
    kind: str
    operands: tuple[Polynomial, ...]

    def run(self, values: Values) -> Any:
        args = [operand.run(values) for operand in self.operands]
        if self.kind in ("floor", "ceiling", "Mod") and np.any(poles := np.equal(args[1], 0)):
            raise Pole(poles)
        return _KINDS[self.kind](args)


_KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda args: args[0],
    "floor": lambda args: args[0] // args[1],
    "ceiling": lambda args: -(-args[0] // args[1]),
    "Mod": lambda args: args[0] % args[1],
    "Max": lambda args: reduce(np.maximum, args),
    "Min": lambda args: reduce(np.minimum, args),
}


@dataclass(frozen=True, slots=True)
class Program:
    """The steps in order, then the formula's numerator and divisor."""

    steps: tuple[Step, ...]
    over: Polynomial
    under: Polynomial | None

    def run(self, sizes: Mapping[Expr, Any]) -> tuple[Any, Any]:
        """Numerator and divisor (None for 1) at these sizes. Raises Pole."""
        values = dict(sizes)
        for step in self.steps:
            values[step.atom] = step.run(values)
        over = self.over.run(values)
        if self.under is None:
            return over, None
        under = self.under.run(values)
        if np.any(poles := np.equal(under, 0)):
            raise Pole(poles)
        return over, under

    def bound(self, largest: Mapping[Expr, int]) -> int:
        """No value on the way is larger in magnitude, for sizes up to these."""
        values = {atom: max(1, size) for atom, size in largest.items()}
        highest = 0
        for step in self.steps:
            bounds = [operand.bound(values) for operand in step.operands]
            highest = max(highest, *bounds)
            values[step.atom] = max(1, bounds[0] if step.kind in ("floor", "ceiling", "sum") else max(bounds))
        return max(highest, *(p.bound(values) for p in (self.over, self.under) if p is not None))


def program_of(expr: Expr) -> Program:
    """The integer arithmetic of a canonical expression."""
    builder = _Builder()
    over, divisor, monomial = builder.ratio(expr)
    under = Polynomial({_monomial(monomial): divisor}) if divisor != 1 or monomial else None
    return Program(tuple(builder.steps), over, under)


Ratio = tuple[Polynomial, int, Counter]


class _Builder:
    """Collects steps while it brings expressions to integer polynomials over common divisors."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.known: dict[Expr, tuple[Fraction, Counter]] = {}

    def ratio(self, expr: Expr) -> Ratio:
        """Polynomial, integer and monomial: the expression is the first over the product of the others."""
        terms = [self.term(term) for term in sp.Add.make_args(expr)]
        divisor = math.lcm(*(coeff.denominator for coeff, _ in terms))
        monomial: Counter = Counter()
        for _, powers in terms:
            monomial |= Counter({atom: -power for atom, power in powers.items()})
        cleared: Counter = Counter()
        for coeff, powers in terms:
            lifted = Counter(monomial)
            lifted.update(powers)
            cleared[_monomial(lifted)] += int(coeff * divisor)
        return Polynomial(dict(cleared)), divisor, monomial

    def term(self, expr: Expr) -> tuple[Fraction, Counter]:
        coeff = Fraction(1)
        powers: Counter = Counter()
        for factor in sp.Mul.make_args(expr):
            if factor.is_Rational:
                coeff *= Fraction(factor.p, factor.q)
                continue
            base, exponent = (factor.base, factor.exp) if factor.is_Pow else (factor, sp.S.One)
            if not exponent.is_Integer:
                raise FormulaError(f"{factor} is not in the language of formulas: its exponent is no integer")
            scale, atoms = self.atom(base)
            coeff *= scale**exponent.p
            for atom, power in atoms.items():
                powers[atom] += power * exponent.p
        return coeff, powers

    def atom(self, base: Expr) -> tuple[Fraction, Counter]:
        """A base as a fraction times a product of atoms; makes the step that computes it."""
        if base.is_Symbol:
            return Fraction(1), Counter({base: 1})
        if base not in self.known:
            self.known[base] = self.made(base)
        return self.known[base]

    def made(self, base: Expr) -> tuple[Fraction, Counter]:
        kind = "sum" if base.is_Add else base.func.__name__
        if kind not in _KINDS:
            raise FormulaError(f"{base} is outside the language of formulas")
        args = (base,) if kind == "sum" else base.args
        operands, divisor, monomial = self.common(args, signed=kind in ("Max", "Min"))
        if kind in ("floor", "ceiling"):
            self.steps.append(Step(base, kind, (*operands, Polynomial({_monomial(monomial): divisor}))))
            return Fraction(1), Counter({base: 1})
        self.steps.append(Step(base, kind, operands))
        return Fraction(1, divisor), Counter({base: 1, **{atom: -power for atom, power in monomial.items()}})

    def common(self, exprs: Sequence[Expr], signed: bool) -> tuple[tuple[Polynomial, ...], int, Counter]:
        """The expressions over one divisor; `signed` makes it positive, by even powers of all but sizes."""
        ratios = [self.ratio(expr) for expr in exprs]
        divisor = math.lcm(*(d for _, d, _ in ratios))
        monomial: Counter = reduce(lambda a, b: a | b, (m for _, _, m in ratios))
        if signed:
            even = {a: power if a.is_Symbol else power + power % 2 for a, power in monomial.items()}
            monomial = Counter(even)
        return tuple(p.times(divisor // d, monomial - m) for p, d, m in ratios), divisor, monomial


def _monomial(powers: Mapping[Expr, int]) -> Monomial:
    present = [(atom, power) for atom, power in powers.items() if power]
    return tuple(sorted(present, key=lambda pair: sp.default_sort_key(pair[0])))


def _horner(terms: list[tuple[int, dict[Expr, int]]]) -> Callable[[Values], Any]:
    shared = Counter(atom for _, powers in terms for atom in powers).most_common(1)
    if len(terms) == 1 or not shared or shared[0][1] == 1:
        return _sum([_product(coeff, powers) for coeff, powers in terms])
    atom = shared[0][0]
    inside = _horner([(c, _divided(m, atom)) for c, m in terms if atom in m])
    outside = [(c, m) for c, m in terms if atom not in m]
    if not outside:
        return lambda values: inside(values) * values[atom]
    outer = _horner(outside)
    return lambda values: inside(values) * values[atom] + outer(values)


def _divided(powers: dict[Expr, int], atom: Expr) -> dict[Expr, int]:
    lower = powers | {atom: powers[atom] - 1}
    return {a: power for a, power in lower.items() if power}


def _product(coeff: int, powers: dict[Expr, int]) -> Callable[[Values], Any]:
    first, *rest = [atom for atom, power in powers.items() for _ in range(power)] or [None]
    if first is None:
        return lambda values: coeff

    def run(values: Values) -> Any:
        result = values[first] if coeff == 1 else values[first] * coeff
        for atom in rest:
            result = result * values[atom]
        return result

    return run


def _sum(parts: list[Callable[[Values], Any]]) -> Callable[[Values], Any]:
    first, *rest = parts
    if not rest:
        return first
    return lambda values: reduce(lambda total, part: total + part(values), rest, first(values))
