"""Numbers from formulas at many points at once, in integer arithmetic.

An `Evaluator` computes integer polynomials over the formula's sizes and functions. Before it runs, it bounds
every value on the way by the same polynomials in absolute values at the largest sizes; only when all fit is
int64 used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.canonical import canonical
from symacct.errors import SizeError
from symacct.evaluation import UndefinedHere, checked, require
from symacct.formula_text import to_text
from symacct.integer_program import Pole, Program, program_of

_CHUNK = 1 << 13  # 64 KiB of int64: what is computed stays in cache


def evaluator_of(expr: Expr | int, exact: str) -> Evaluator:
    """The evaluator of an expression; `exact` is "any", or "int64" to refuse what may not fit."""
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
        require(self.symbols, arrays)
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
    checked(symbol, sizes.min())
    return int(sizes.max())


def _spot(sizes: Mapping[Expr, np.ndarray], where: Any) -> str:
    at = int(np.argmax(where))
    found = ", ".join(f"{s.name}={a[at if a.size > 1 else 0]}" for s, a in sizes.items())
    return f" at {found}" if found else ""
