"""Expressions as one line of text: `to_text`. `formula_reader.parse` reads it back to the same expression.

Terms stand by falling degree, then by name; factors by name. Nothing depends on a hash seed.
"""

from __future__ import annotations

from functools import lru_cache

import sympy as sp
from sympy import Expr

from symacct.errors import FormulaError

MAX_POWER = 64
FUNCTIONS: dict[str, type[Expr]] = {
    "floor": sp.floor,
    "ceiling": sp.ceiling,
    "Max": sp.Max,
    "Min": sp.Min,
    "Mod": sp.Mod,
}
_NAMES = {function: name for name, function in FUNCTIONS.items()}


def to_text(expr: Expr | int) -> str:
    """The formula string of an expression, in `+ - * / **`, exact numbers, names and the five functions."""
    return _text(sp.Integer(expr) if isinstance(expr, int) else expr)


def is_readable(name: str) -> bool:
    """Whether a formula may hold this name, of a size or a loop index."""
    return name.isascii() and name.isidentifier() and not name.startswith("_")


@lru_cache(maxsize=1 << 15)
def _text(expr: Expr) -> str:
    if isinstance(expr, sp.Add):
        return _sum(expr)
    if isinstance(expr, sp.Mul | sp.Pow | sp.Rational):
        return _product(expr)
    if expr.is_Symbol and is_readable(expr.name):
        return expr.name
    if expr.func in _NAMES:
        args = expr.args if isinstance(expr, sp.Mod) else sorted(expr.args, key=_order)
        return f"{_NAMES[expr.func]}({', '.join(map(_text, args))})"
    raise FormulaError(f"{expr} has no formula string: formulas do not have {expr.func.__name__}")


def _sum(expr: Expr) -> str:
    first, *rest = (_bracketed(term) for term in sorted(expr.args, key=_order))
    return first + "".join(f" - {text[1:]}" if text.startswith("-") else f" + {text}" for text in rest)


def _product(expr: Expr) -> str:
    """A product as sign, numerators and at most one division."""
    coeff = sp.Integer(1)
    over: list[tuple[bool, str]] = []
    under: list[tuple[bool, str]] = []
    for factor in _factors(expr):
        if isinstance(factor, sp.Rational):
            coeff *= factor
            continue
        base, power = (factor.base, factor.exp) if isinstance(factor, sp.Pow) else (factor, sp.Integer(1))
        if not isinstance(power, sp.Integer) or abs(power) > MAX_POWER:
            raise FormulaError(f"{factor} has no formula string: powers are integers up to {MAX_POWER}")
        text = _bracketed(base) + (f"**{abs(power)}" if abs(power) != 1 else "")
        (over if power > 0 else under).append((base.is_Add, text))
    numbers = [str(abs(coeff.p))] if abs(coeff.p) != 1 or not over else []
    above = "*".join(numbers + [text for _, text in sorted(over)])
    below = ([str(coeff.q)] if coeff.q != 1 else []) + [text for _, text in sorted(under)]
    sign = "-" if coeff.p < 0 else ""
    if not below:
        return sign + above
    return f"{sign}{above}/{below[0]}" if len(below) == 1 else f"{sign}{above}/({'*'.join(below)})"


def _factors(expr: Expr) -> list[Expr]:
    if not isinstance(expr, sp.Mul):
        return [expr]
    return [factor for arg in expr.args for factor in _factors(arg)]


def _bracketed(expr: Expr) -> str:
    return f"({_text(expr)})" if isinstance(expr, sp.Add) else _text(expr)


def _order(expr: Expr) -> tuple[int, str]:
    return -_degree(expr), _text(expr).lstrip("-0123456789*")


def _degree(expr: Expr) -> int:
    """The degree by which terms are put in order; a quotient counts its numerator less its denominator."""
    if isinstance(expr, sp.Pow):
        return _degree(expr.base) * (int(expr.exp) if isinstance(expr.exp, sp.Integer) else 1)
    if isinstance(expr, sp.Mul):
        return sum(map(_degree, expr.args))
    if expr.is_Symbol:
        return 1
    return max(map(_degree, expr.args), default=0)
