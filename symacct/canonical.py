"""One form for equal expressions: `canonical` multiplies out, `in_floors` also unites the rounding functions.

Functions are generators: each is put in canonical form by itself, and the polynomial around it is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb, prod

import sympy as sp
from sympy import Expr

from symacct import formula_text
from symacct.domination import undominated
from symacct.errors import FormulaError

FUNCTIONS = tuple(formula_text.FUNCTIONS.values())
_MAX_TERMS = 4_000  # of one product; sympy needs about 1 ms a term
_MAX_TOTAL = 40_000


def canonical(expr: Expr | int) -> Expr:
    """The expanded form; equal polynomials have the same one. Refuses what is not exact or not finite."""
    return _canonical(sp.Integer(expr) if isinstance(expr, int) else expr)


@lru_cache(maxsize=1 << 14)
def _canonical(expr: Expr) -> Expr:
    if expr.is_Symbol or expr.is_Rational:
        return expr
    if not expr.args or expr.is_Float:
        raise _inexact(expr)
    if isinstance(expr, FUNCTIONS):
        return _function(expr)
    done = {node: _function(node) for node in _outermost(expr)}
    return _expanded(expr.xreplace(done) if done else expr)


def _expanded(expr: Expr) -> Expr:
    """The polynomial in sizes and functions, multiplied out. The functions are canonical already."""
    hidden = {node: sp.Dummy(integer=True) for node in _outermost(expr)}
    plain = expr.xreplace(hidden) if hidden else expr
    for leaf in plain.atoms():
        if not (leaf.is_Symbol or leaf.is_Rational):
            raise _inexact(leaf)
    if _terms(plain) > _MAX_TOTAL:
        raise FormulaError(f"the formula has more than {_MAX_TOTAL:,} terms when multiplied out")
    plain = sp.expand(plain)
    return plain.xreplace({dummy: node for node, dummy in hidden.items()}) if hidden else plain


def _inexact(leaf: Expr) -> FormulaError:
    return FormulaError(f"{leaf} is not an exact finite number; formulas hold integers, fractions and sizes")


def _outermost(expr: Expr) -> Iterator[Expr]:
    """The functions that stand in no other function, each once."""
    walk = sp.preorder_traversal(expr)
    seen = set()
    for node in walk:
        if isinstance(node, FUNCTIONS):
            walk.skip()
            if node not in seen:
                seen.add(node)
                yield node


def _terms(expr: Expr) -> int:
    """A bound on the number of terms after multiplying out; refuses a product that has too many."""
    if expr.is_Add:
        return sum(map(_terms, expr.args))
    bound = 1
    if expr.is_Mul:
        bound = prod(map(_terms, expr.args))
    elif expr.is_Pow and expr.exp.is_Integer and (base := _terms(expr.base)) > 1:
        bound = comb(base + abs(expr.exp.p) - 1, base - 1)
    if bound > _MAX_TERMS:
        raise FormulaError(f"a product of sums has more than {_MAX_TERMS:,} terms when multiplied out")
    return bound


@lru_cache(maxsize=1 << 14)
def _function(node: Expr) -> Expr:
    args = [_canonical(arg) for arg in node.args]
    if isinstance(node, sp.Max | sp.Min):
        flat = {a for arg in args for a in (arg.args if isinstance(arg, node.func) else (arg,))}
        return node.func(*undominated(flat, 1 if isinstance(node, sp.Max) else -1), evaluate=False)
    return _expanded(node.func(*args))


# Rounding


def in_floors(expr: Expr) -> Expr:
    """The canonical form with Mod and ceiling written as floor, and floors of floors as one."""
    return canonical(_rounded(canonical(expr)))


def _rounded(expr: Expr) -> Expr:
    if not expr.has(*FUNCTIONS):
        return expr
    args = [_rounded(arg) for arg in expr.args]
    if isinstance(expr, sp.Mod):
        return args[0] - args[1] * _floor(args[0] / args[1])
    if isinstance(expr, sp.floor):
        return _floor(args[0])
    if isinstance(expr, sp.ceiling):
        return _ceiling(args[0])
    return expr.func(*args, evaluate=False) if isinstance(expr, sp.Max | sp.Min) else expr.func(*args)


def _ceiling(x: Expr) -> Expr:
    n, m = _fraction(x)
    if n.is_integer and m.is_integer and m.is_positive:
        return 1 + _floor((n - 1) / m)  # ⌈n/m⌉ = ⌊(n-1)/m⌋ + 1 for integers
    return -_floor(-x)


def _floor(x: Expr) -> Expr:
    """⌊n/m⌋ with whole parts taken out, and ⌊(⌊y⌋ + r)/m⌋ as ⌊(y + r)/m⌋, for a whole m > 0."""
    n, m = _fraction(x)
    if not (n.is_integer and m.is_integer and m.is_positive):
        return canonical(sp.floor(_canonical(x)))
    inner = next((t for t in sp.Add.make_args(n) if isinstance(t, sp.floor)), None)
    if inner is not None and m != 1:
        return _floor((n - inner + inner.args[0]) / m)
    if not m.is_Integer:
        return canonical(sp.floor(_canonical(n / m)))
    whole, rest = [], []
    for term in sp.Add.make_args(n):
        number, body = term.as_coeff_Mul()
        if not body.is_integer:
            return canonical(sp.floor(_canonical(n / m)))
        whole.append(number // m * body)
        rest.append(number % m * body)
    return canonical(sp.Add(*whole) + sp.floor(_canonical(sp.Add(*rest) / m)))


def _fraction(x: Expr) -> tuple[Expr, Expr]:
    n, m = sp.fraction(sp.together(_canonical(x)))
    return _canonical(n), _canonical(m)
