"""Torch's expressions for sizes in our symbols and sympy's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from symacct.errors import Unsupported
from symacct.symbols import symbol


def _divide(a: Any, b: Any) -> Any:
    return a / b


_TRANSLATIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": lambda a, b: sp.floor(a / b),
    "CleanDiv": _divide,
    "IntTrueDiv": _divide,
    "FloatTrueDiv": _divide,
    "CeilDiv": lambda a, b: sp.ceiling(a / b),
    "Mod": lambda a, b: sp.Mod(a, b),
    "PythonMod": lambda a, b: sp.Mod(a, b),
    "FloorToInt": sp.floor,
    "CeilToInt": sp.ceiling,
    "TruncToInt": sp.floor,
    "ToFloat": lambda a: a,
    "Identity": lambda a: a,
    "PowByNatural": lambda a, b: a**b,
    "FloatPow": lambda a, b: a**b,
    "Max": sp.Max,
    "Min": sp.Min,
    "OpaqueUnaryFn_sqrt": sp.sqrt,
    "Where": lambda c, a, b: sp.Piecewise((a, c), (b, True)),
}


def translate(expr: Any, names: dict[sp.Symbol, sp.Symbol]) -> Any:
    """A torch expression in our symbols and sympy's functions. Raises Unsupported for a function unknown here."""
    if expr.is_Symbol:
        return names.get(expr) or symbol(expr.name)
    if expr.is_Atom:
        return sp.nsimplify(expr, rational=True) if expr.is_Float else expr
    args = [translate(arg, names) for arg in expr.args]
    name = type(expr).__name__
    if name in _TRANSLATIONS:
        return _TRANSLATIONS[name](*args)
    if type(expr).__module__.startswith("sympy."):
        return expr.func(*args)
    raise Unsupported(f"a size uses torch's {name}, which has no exact form here: {expr}")
