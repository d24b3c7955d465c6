"""Pinned and structural sizes: what they leave in a domain, and in which order they fold."""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from symacct.domain import Domain
from symacct.graph import Assumption
from symacct.records import Pin, Trace
from symacct.symbols import symbol


def freed(domain: Domain, pins: list[Pin]) -> Domain:
    """The domain with pinned sizes back in its branches: what the run compared with 4 was E, pinned to 4."""
    back = {sp.Integer(pin.value): symbol(pin.expression) for pin in pins if pin.expression in domain.names}
    freed = [replace(a, left=a.left.xreplace(back)) if a.kind == "branch" else a for a in domain.assumptions]
    return Domain(domain.names, tuple(a for a in freed if a.kind != "branch" or a.left not in (sp.true, sp.false)))


def numeric(a: Assumption) -> bool:
    """Whether an assumption speaks of a pinned size's example rather than of symbols alone."""
    return a.kind == "divides" and a.left.is_number


def depth_of_growth(short: Trace, long: Trace) -> int:
    """Minus the number of records that one more step brings: the outer loop brings more."""
    return -(len(long.records) - len(short.records))


def orders(structural: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [structural] if len(structural) < 2 else [structural, tuple(reversed(structural))]
