"""Claims about a maximum of several forms, such as `bytes.peak`: which form it is, where that one wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.claims.attribution import coefficients
from symacct.claims.leading import greater
from symacct.domination import undominated
from symacct.expressions import canonical
from symacct.graph import Graph
from symacct.report.readable import shown


@dataclass(frozen=True, slots=True)
class Form:
    """One candidate for the maximum, in the model's sizes, and where it is live; "" if unknown."""

    value: Expr
    place: str


def forms_of(derived: Expr, graph: Graph, under: Callable[[Expr], Expr]) -> list[Form]:
    """The forms of a maximum; those of the peak with their places. Empty where it is none."""
    if not isinstance(derived, sp.Max):
        return []
    nodes = {placed.node.name: placed.node for placed in graph.placed()}
    places = {}
    for name, live in graph.peak or ():
        node = nodes.get(name)
        places[under(live)] = (
            f"{node.op} ({node.phase}) of {node.module or 'the model itself'}" if node else ""
        )
    return [Form(arg, places.get(arg, "")) for arg in sorted(map(canonical, derived.args), key=str)]


def equal_form(forms: Sequence[Form], claim: Expr) -> Form | None:
    """The form that the claim is."""
    return next((form for form in forms if canonical(form.value - claim) == 0), None)


def wins(
    form: Form, forms: Sequence[Form], graph: Graph, numbers: Mapping[sp.Symbol, Expr]
) -> tuple[str, ...]:
    """Where a form is the largest, as conditions that hold together; those that always do are left out.

    "never" is among them where another form is the larger at all sizes.
    """
    found: dict[str, None] = {}
    for other in forms:
        if other is form or undominated([form.value, other.value]) == [form.value]:
            continue
        text = greater(form.value, other.value, graph, numbers)
        if text != "always":
            found.setdefault(text)
    return tuple(sorted(found, key=len))


def nearest(forms: Sequence[Form], claim: Expr) -> Form:
    """The form that differs from the claim in the fewest terms."""
    return min(forms, key=lambda form: (len(coefficients(form.value - claim)), str(form.value)))


def told(form: Form, claim: Expr, many: int) -> str:
    """Which form a refuted claim comes nearest to, and by what it is off."""
    at = f", at {form.place}" if form.place else ""
    off = shown(canonical(form.value - claim))
    return f"derived is the largest of {many} forms; the nearest{at} is off by {off}"
