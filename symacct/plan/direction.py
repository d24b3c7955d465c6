"""Whether an expression can only rise, or only fall, as one size grows: proved, or unknown."""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp
from sympy import Expr


def direction(expr: Expr, size: sp.Symbol) -> int | None:
    """1 if the expression never falls as the size grows over positive integers, -1 if it never rises, 0 if it
    is the same; None if neither is proved.

    >>> from symacct.symbols import symbol
    >>> direction(symbol("B") ** 2 - symbol("B"), symbol("B"))
    1
    """
    if size not in expr.free_symbols:
        return 0
    if expr.is_polynomial(size):
        return _of_polynomial(sp.expand(expr), size)
    return _of_parts(expr, size)


def _of_polynomial(expr: Expr, size: sp.Symbol) -> int | None:
    """By the coefficients of f(x + 2) - f(x + 1), which is of one sign for x >= 0 if all of them are."""
    step = expr.xreplace({size: size + 2}) - expr.xreplace({size: size + 1})
    signs = {_sign(coefficient) for coefficient in sp.Poly(sp.expand(step), size).coeffs()} - {0}
    return signs.pop() if len(signs) == 1 else None


def _sign(number: Expr) -> int | None:
    if number.is_nonnegative:
        return 0 if number.is_zero else 1
    return -1 if number.is_nonpositive else None


def _of_parts(expr: Expr, size: sp.Symbol) -> int | None:
    if expr.is_Symbol:
        return 1
    if expr.is_Add or isinstance(expr, sp.Max | sp.Min):
        return _together(direction(arg, size) for arg in expr.args)
    if isinstance(expr, sp.floor | sp.ceiling):
        return direction(expr.args[0], size)
    if expr.is_Pow and expr.exp.is_Integer and expr.base.is_nonnegative:
        inner = direction(expr.base, size)
        return inner if inner is None or expr.exp > 0 else -inner
    if expr.is_Mul:
        constant, rest = expr.as_independent(size)
        factors = sp.Mul.make_args(rest)
        if not all(factor.is_nonnegative for factor in factors):
            return None
        sign, found = _sign(constant), _together(direction(factor, size) for factor in factors)
        return None if sign is None or found is None else sign * found
    return None


def _together(found: Iterable[int | None]) -> int | None:
    signs = set(found) - {0}
    return 0 if not signs else signs.pop() if len(signs) == 1 else None
