"""Formulas as LaTeX: the readable presenter's collected terms, and where a long one may be broken.

    2\\,B\\,T\\,(V\\,d + 12\\,L\\,d^{2}) + 4\\,B\\,L\\,T^{2}\\,d

Brackets are plain, so that TeX and `lines` may break within them. `reader.read` gives back the expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.errors import FormulaError
from symacct.graph import Assumption
from symacct.latex.widths import width
from symacct.report.readable import PLAIN, Reading, Term, readable
from symacct.symbols import latex_name

TIMES = r"\,"
_STEP = 8.0
_FENCES = {sp.floor: (r"\lfloor ", r" \rfloor"), sp.ceiling: (r"\lceil ", r" \rceil")}
_FUNCTIONS = {sp.Max: r"\max", sp.Min: r"\min"}
_RELATIONS = {sp.Le: r"\le", sp.Lt: "<", sp.Ge: r"\ge", sp.Gt: ">", sp.Eq: "=", sp.Ne: r"\ne"}


def latex(expr: Expr, reading: Reading = PLAIN) -> str:
    """An expression, collected, in one line of LaTeX."""
    return written(readable(expr, reading))


def written(terms: Iterable[Term]) -> str:
    """Collected terms in one line of LaTeX."""
    return " ".join(pieces(terms)) or "0"


def pieces(terms: Iterable[Term], measure: float | None = None) -> list[str]:
    """The terms as pieces that fill lines one after the other, later ones with their sign before them.

    With a measure in points, a term that is wider is cut within its bracket.
    """
    found: list[str] = []
    for at, term in enumerate(terms):
        sign = "- " if term.number < 0 and at else "-" if term.number < 0 else "+ " if at else ""
        first, *rest = _term(replace(term, number=abs(term.number)), measure)
        found += [sign + first, *rest]
    return found


def lines(parts: Sequence[str], measure: float) -> list[str]:
    """Pieces put together to as few lines of at most `measure` points as there can be, about equally long."""
    found = _filled(parts, measure)
    narrower = _filled(parts, measure - _STEP)
    while len(narrower) == len(found) > 1 and measure > _STEP:
        found, measure = narrower, measure - _STEP
        narrower = _filled(parts, measure - _STEP)
    return found


def _filled(parts: Sequence[str], measure: float) -> list[str]:
    found: list[str] = []
    for part in parts:
        if found and width(f"{found[-1]} {part}") <= measure:
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def spelled(name: str) -> str:
    """A symbol's name in LaTeX; no two names are spelled alike."""
    if name.endswith("_"):
        return r"\mathrm{" + name.replace("_", r"\_") + "}"
    return latex_name(name)


def condition(assumption: Assumption) -> str:
    """A condition as a mathematician writes it."""
    if assumption.kind == "divides":
        return rf"{latex(assumption.right)} \mid {latex(assumption.left)}"
    if assumption.kind == "equal":
        return f"{latex(assumption.left)} = {latex(assumption.right)}"
    relation = assumption.left
    sign = _RELATIONS.get(relation.func)
    if sign is None:
        raise FormulaError(f"{relation} has no LaTeX: a condition is a single relation")
    return f"{latex(relation.args[0])} {sign} {latex(relation.args[1])}"


def _term(term: Term, measure: float | None) -> list[str]:
    """A term without its sign: one piece, or where it is too wide the pieces of its bracket."""
    under = [_power(base, -power) for base, power in term.factors if power < 0]
    if term.number.q != 1:
        under.insert(0, str(term.number.q))
    over = [_power(base, power) for base, power in term.factors if power > 0]
    if term.number.p != 1 or not (over or term.inner or under):
        over.insert(0, str(term.number.p))
    head = rf"\frac{{{TIMES.join(over) or '1'}}}{{{TIMES.join(under)}}}" if under else TIMES.join(over)
    if not term.inner:
        return [head]
    joint = f"{head}{TIMES}(" if head else "("
    whole = f"{joint}{written(term.inner)})"
    if measure is None or width(whole) <= measure:
        return [whole]
    first, *rest = pieces(term.inner, measure)
    inside = [joint + first, *rest]
    inside[-1] += ")"
    return inside


def _power(base: Expr, power: int) -> str:
    if power == 1:
        return _atom(base)
    return (
        f"{_atom(base)}^{{{power}}}"
        if base.is_Symbol or base.func in _FENCES
        else f"({_sum(base)})^{{{power}}}"
    )


def _atom(base: Expr) -> str:
    if base.is_Symbol:
        return spelled(base.name)
    if base.func in _FENCES:
        left, right = _FENCES[base.func]
        return f"{left}{_sum(base.args[0])}{right}"
    if base.func in _FUNCTIONS:
        return f"{_FUNCTIONS[base.func]}({', '.join(sorted(map(_sum, base.args)))})"
    if base.func is sp.Mod:
        return rf"({_sum(base.args[0])} \bmod {_sum(base.args[1])})"
    if base.is_Add or base.is_Mul or base.is_Pow or base.is_Rational:
        return f"({_sum(base)})"
    raise FormulaError(f"{base} has no LaTeX: formulas do not have {base.func.__name__}")


def _sum(expr: Expr) -> str:
    """What stands in a function: a sum of fractions over one denominator, in one line."""
    if expr.has(*_FENCES, *_FUNCTIONS, sp.Mod):
        return written(readable(expr)) if not (expr.is_Function or isinstance(expr, sp.Mod)) else _atom(expr)
    over, under = sp.fraction(sp.together(expr))
    if under == 1:
        return written(readable(over))
    return f"{_single(over)}/{_single(under)}"


def _single(expr: Expr) -> str:
    """One side of a quotient in one line: an atom as it is, everything else in brackets."""
    made = written(readable(expr))
    return made if expr.is_Symbol or (expr.is_Integer and expr >= 0) else f"({made})"
