"""Comparisons of sizes, `T < W`: written plainly, and what one says of another. Sizes are positive integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy as sp
from sympy import Expr

SIGNS = (sp.StrictLessThan, sp.LessThan, sp.StrictGreaterThan, sp.GreaterThan)


def slack(condition: Any) -> Expr | None:
    """What is at least 0 exactly where the comparison holds; None for what is no comparison of integers.

    >>> from sympy import symbols
    >>> T, W = symbols("T W", integer=True)
    >>> slack(T < W)
    -T + W - 1
    """
    if not isinstance(condition, SIGNS):
        return None
    difference = sp.expand(condition.gts - condition.lts)
    if not difference.is_integer:
        return None
    return difference - 1 if isinstance(condition, (sp.StrictLessThan, sp.StrictGreaterThan)) else difference


def at_equality(condition: Any, numbers: Mapping[sp.Symbol, Expr]) -> str:
    """What to do where a strict comparison fails for sides that are equal: code that asks `f > d` and `d > f` takes there
    a way that no examples of unlike sizes take. Empty for any other.
    """
    if not isinstance(condition, sp.StrictLessThan | sp.StrictGreaterThan):
        return ""
    left, right = (sp.expand(side.xreplace(dict(numbers))) for side in condition.args)
    if left != right:
        return ""
    return f"; for {condition.lhs} = {condition.rhs} write one size for both in the model file"


def plain(condition: Any) -> Any:
    """The comparison with its terms where they are added: `1 - W < -T` as `T + 1 < W`."""
    room = slack(condition)
    if room is None or all(_positive(side) for side in condition.args):
        return condition
    terms = sp.Add.make_args(room)
    more = sp.Add(*(t for t in terms if not t.is_number and _positive(t)))
    less = -sp.Add(*(t for t in terms if not t.is_number and not _positive(t)))
    number = room - more + less
    if number < 0:
        return sp.Lt(less - number - 1, more)
    return sp.Ge(more + number, less) if more != 0 else sp.Le(less, number)


def implies(known: Any, other: Any) -> bool:
    """Whether a comparison holds wherever another does, as their difference tells."""
    mine, its = slack(known), slack(other)
    return mine is not None and its is not None and bool(sp.expand(its - mine).is_nonnegative)


def excludes(one: Any, other: Any) -> bool:
    """Whether two comparisons never hold together, as their sum tells."""
    mine, its = slack(one), slack(other)
    return mine is not None and its is not None and bool(sp.expand(mine + its).is_negative)


def told(condition: Any, answer: bool, hints: Mapping[sp.Symbol, Any]) -> Iterator[Any]:
    """The comparisons that an answer at these example sizes rests on.

    Where any one of several would settle it, the first that does: the way that code took needs no more.
    """
    if isinstance(condition, sp.Not):
        yield from told(condition.args[0], not answer, hints)
    elif isinstance(condition, (sp.And, sp.Or)):
        parts = list(condition.args)
        if isinstance(condition, sp.Or) is answer:
            parts = [part for part in parts if part.xreplace(dict(hints)) == answer][:1]
        for part in parts:
            yield from told(part, answer, hints)
    elif isinstance(condition, (*SIGNS, sp.Equality)):
        yield condition if answer else sp.Not(condition)


def weaker(condition: Any) -> Any:
    """`<` as `<=` between two sizes; as it is beside 0, which tells a sign."""
    if 0 in condition.args or not isinstance(condition, (sp.StrictLessThan, sp.StrictGreaterThan)):
        return condition
    return sp.Le(condition.lts, condition.gts)


def _positive(expr: Expr) -> bool:
    return all(bool(term.as_coeff_Mul()[0] >= 0) for term in sp.Add.make_args(expr))
