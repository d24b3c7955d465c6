"""Sizes at which torch takes a shortcut, by the guards of a symbolic run: those that a guard is false at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

Guards = Sequence[tuple[Any, str, bool]]
Special = dict[str, frozenset[int]]
_LARGEST = 4  # the largest size that a guard is tried at


def special(guards: Guards) -> Special:
    """Sizes other than 1 at which a guard `x ≠ 1` of the run is false, such as T = 2 of `T - 1`, by their name."""
    found: dict[str, set[int]] = {}
    for guard, _, _ in guards:
        if isinstance(guard, sp.Ne) and len(guard.free_symbols) == 1:
            (size,) = guard.free_symbols
            for number in range(2, _LARGEST + 1):
                if _at(guard, size, number) is sp.false:
                    found.setdefault(size.name, set()).add(number)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _at(guard: Any, size: sp.Symbol, number: int) -> Any:
    try:
        return guard.xreplace({size: sp.Integer(number)})
    except ZeroDivisionError:  # a head of d // h channels where d < h: no model runs there
        return None


def equals(guards: Guards) -> list[tuple[str, str]]:
    """Pairs of sizes that the run took for unequal."""
    pairs = {tuple(sorted(side.name for side in g.args)) for g, _, _ in guards if isinstance(g, sp.Ne) and all(a.is_Symbol for a in g.args)}
    return sorted((one, other) for one, other in pairs)
