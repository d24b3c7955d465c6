"""Numbers from formulas: `evaluate` at one point, `evaluator` at many. Both are exact.

An `Evaluator` computes integer polynomials over the formula's sizes and functions. Before it runs, it bounds
every value on the way by the same polynomials in absolute values at the largest sizes; only when all fit is
int64 used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import Any, Literal

import numpy as np
import sympy as sp

from symacct.canonical import canonical
from symacct.errors import FormulaError, SizeError
from symacct.formula_text import to_text
from symacct.integer_program import Pole, Program, program_of

Expr = sp.Expr
Number = int | Fraction
_CHUNK = 1 << 13  # 64 KiB of int64: what is computed stays in cache
_MAX_BITS = 1 << 22


def evaluate(expr: Expr | int, sizes: Mapping[str, int]) -> Number:
    """The exact value at these sizes, an int when it is whole. Names that the formula lacks are ignored."""
    if isinstance(expr, int):
        return expr
    symbols = sorted(expr.free_symbols, key=str)
    _require(symbols, sizes)
    try:
        value = _value(expr, {s.name: _checked(s, sizes[s.name]) for s in symbols})
    except ZeroDivisionError:
        at = ", ".join(f"{s.name}={sizes[s.name]}" for s in symbols)
        raise UndefinedHere(f"{to_text(expr)} divides by zero at {at}") from None
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


class UndefinedHere(SizeError, ZeroDivisionError):
    """A formula that has no value at these sizes."""


def _require(symbols: Iterable[sp.Symbol], given: Mapping[str, Any]) -> None:
    names = [symbol.name for symbol in symbols]
    missing = [name for name in names if name not in given]
    if missing:
        raise SizeError(f"no number for {', '.join(missing)}; give one for each of {', '.join(names)}")


def _checked(symbol: sp.Symbol, size: Any) -> int:
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


# Many points at once


def evaluator(expr: Expr | int, exact: Literal["any", "int64"] = "any") -> Evaluator:
    """A function of integer arrays, one a size by name, that broadcast together. Its values are integers.

    Where int64 might not do, the result is an object array of Python integers; `exact="int64"` refuses that.

    >>> from symacct.symbols import symbol
    >>> evaluator(symbol("d") ** 2 / symbol("h"))(d=[4, 6], h=2)
    array([ 8, 18])
    """
    expr = canonical(expr)
    return Evaluator(expr, tuple(sorted(expr.free_symbols, key=str)), program_of(expr), exact)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """The formula and the integer arithmetic that computes it. Arrays that it has no name for are ignored."""

    expr: Expr
    symbols: tuple[sp.Symbol, ...]
    program: Program
    exact: str = "any"

    def __call__(self, **arrays: Any) -> np.ndarray:
        _require(self.symbols, arrays)
        given = [np.asarray(arrays[s.name]) for s in self.symbols]
        shape = np.broadcast_shapes(*(a.shape for a in given))
        if math.prod(shape) == 0:
            return np.empty(shape, np.int64)
        bound = self.program.bound({s: _largest(s, a) for s, a in zip(self.symbols, given, strict=True)})
        if bound >= 1 << 63 and self.exact == "int64":
            bits = bound.bit_length() + 1
            raise SizeError(f"{to_text(self.expr)} may need {bits} bits at these sizes, not int64's 64")
        dtype = np.int64 if bound < 1 << 63 else object
        flat = [_flat(array, shape).astype(dtype, copy=False) for array in given]
        out = np.empty(math.prod(shape), dtype)
        for begin in range(0, out.size, _CHUNK):
            here = slice(begin, begin + _CHUNK)
            piece = {s: a if a.size == 1 else a[here] for s, a in zip(self.symbols, flat, strict=True)}
            out[here] = self._values(piece)
        return out.reshape(shape)

    def _values(self, sizes: dict[Expr, np.ndarray]) -> Any:
        try:
            over, under = self.program.run(sizes)
        except Pole as pole:
            raise UndefinedHere(f"{to_text(self.expr)} divides by zero{_spot(sizes, pole.args[0])}") from None
        if under is None:
            return over
        quotient = over // under
        ragged = quotient * under != over
        if np.any(ragged):
            raise SizeError(f"{to_text(self.expr)} is not a whole number{_spot(sizes, ragged)}")
        return quotient


def _flat(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array.reshape(1) if array.size == 1 else np.broadcast_to(array, shape).reshape(-1)


def _largest(symbol: sp.Symbol, sizes: np.ndarray) -> int:
    kind = sizes.dtype.kind
    if kind not in "iuO" or (kind == "O" and any(type(size) is not int for size in sizes.flat)):
        raise SizeError(f"{symbol.name} holds {sizes.dtype}, not integers")
    _checked(symbol, sizes.min())
    return int(sizes.max())


def _spot(sizes: Mapping[Expr, np.ndarray], where: Any) -> str:
    at = int(np.argmax(where))
    found = ", ".join(f"{s.name}={a[at if a.size > 1 else 0]}" for s, a in sizes.items())
    return f" at {found}" if found else ""
