"""The exact number that a formula is at one point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from operator import index
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.errors import FormulaError, SizeError
from symacct.formula_text import to_text

Number = int | Fraction
_MAX_BITS = 1 << 22


def evaluate(expr: Expr | int, sizes: Mapping[str, int]) -> Number:
    """The exact value at these sizes, an int when it is whole. Names that the formula lacks are ignored."""
    if isinstance(expr, int):
        return expr
    symbols = sorted(expr.free_symbols, key=str)
    require(symbols, sizes)
    try:
        value = _value(expr, {s.name: checked(s, sizes[s.name]) for s in symbols})
    except ZeroDivisionError:
        at = ", ".join(f"{s.name}={sizes[s.name]}" for s in symbols)
        raise UndefinedHere(f"{to_text(expr)} divides by zero at {at}") from None
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


class UndefinedHere(SizeError, ZeroDivisionError):
    """A formula that has no value at these sizes."""


def require(symbols: Iterable[sp.Symbol], given: Mapping[str, Any]) -> None:
    """Raise SizeError unless each symbol has a number in `given`."""
    names = [symbol.name for symbol in symbols]
    missing = [name for name in names if name not in given]
    if missing:
        raise SizeError(f"no number for {', '.join(missing)}; give one for each of {', '.join(names)}")


def checked(symbol: sp.Symbol, size: Any) -> int:
    """The size as an int. Raises SizeError unless the symbol can have it."""
    lowest = 1 if symbol.is_positive else 0
    try:
        number = index(size)
    except TypeError:
        number = -1
    if isinstance(size, bool) or number < lowest:
        raise SizeError(f"{symbol.name}={size} is not a {'positive' if lowest else 'nonnegative'} integer")
    return number


def _value(expr: Expr, sizes: Mapping[str, int]) -> Number:
    if expr.is_Symbol:
        return sizes[expr.name]
    if expr.is_Rational:
        return expr.p if expr.q == 1 else Fraction(expr.p, expr.q)
    args = [_value(arg, sizes) for arg in expr.args]
    if expr.is_Add:
        return sum(args)
    if expr.is_Mul:
        return math.prod(args)
    if expr.is_Pow:
        return _power(expr, *args)
    match expr:
        case sp.floor():
            return math.floor(args[0])
        case sp.ceiling():
            return math.ceil(args[0])
        case sp.Mod():
            return args[0] % args[1]
        case sp.Max():
            return max(args)
        case sp.Min():
            return min(args)
    raise FormulaError(f"{expr} has no exact value: formulas do not have {expr.func.__name__}")


def _power(expr: Expr, base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, int):
        raise FormulaError(f"{expr} has no exact value: its exponent is not an integer")
    if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > _MAX_BITS:
        raise SizeError(f"{expr} has more than {_MAX_BITS:,} bits at these sizes")
    return base**exponent if exponent >= 0 else 1 / Fraction(base) ** -exponent
