"""Pinned and structural sizes: what they leave in a domain, and in which order they fold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.domain import Domain
from symacct.graph import Assumption, Item, loops_in
from symacct.records import Pin, Trace
from symacct.symbols import symbol


def speaks_of(domain: Domain, pin: Pin) -> bool:
    """Whether a branch of the domain holds the number that a size is pinned to: it may be the size, or a constant."""
    return any(a.kind == "branch" and sp.Integer(pin.value) in a.left.atoms(sp.Integer) for a in domain.assumptions)


def freed(domain: Domain, pin: Pin, value: int, elsewhere: Domain) -> Domain:
    """The domain with a pinned size back in those branches whose number moved with it in a run at another `value`.

    A branch that says the same there compares with a constant, and stays.
    """
    met = {a.left for a in elsewhere.assumptions if a.kind == "branch"}

    def back(a: Assumption) -> Assumption:
        moved = a.left.xreplace({sp.Integer(pin.value): sp.Integer(value)}) if a.kind == "branch" else a.left
        if a.kind != "branch" or moved == a.left or a.left in met or moved not in met:
            return a
        return replace(a, left=a.left.xreplace({sp.Integer(pin.value): symbol(pin.expression)}))

    return Domain(domain.names, tuple(back(a) for a in domain.assumptions))


def numeric(a: Assumption) -> bool:
    """Whether an assumption speaks of a pinned size's example rather than of symbols alone."""
    return a.kind == "divides" and a.left.is_number


def whole_counts(items: Iterable[Item]) -> tuple[Assumption, ...]:
    """That every region repeats a whole number of times: groups of layers do so at some depths alone."""
    found: dict[tuple[Expr, Expr], Assumption] = {}
    for loop in loops_in(items):
        terms = loop.count.as_coefficients_dict()
        parts = sp.Integer(sp.ilcm(1, *(c.q for c in terms.values())))
        if parts > 1:
            left = sp.Add(*(c * parts % parts * term for term, c in terms.items()))
            found[left, parts] = Assumption("divides", left, parts, "")
    return tuple(found.values())


def depth_of_growth(short: Trace, long: Trace) -> int:
    """Minus the number of records that one more step brings: the outer loop brings more."""
    return -(len(long.records) - len(short.records))


def orders(structural: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [structural] if len(structural) < 2 else [structural, tuple(reversed(structural))]
