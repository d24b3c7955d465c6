"""Where a formula is wanted: comparisons of sizes and numbers for them, by which code takes one way or another."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import sympy as sp

from symacct.comparisons import SIGNS, excludes, plain
from symacct.errors import FormulaError, SizeError
from symacct.formula_reader import parse
from symacct.graph import Assumption
from symacct.symbols import symbol

_SIGN = re.compile(r"(?<![<>])(<=|>=|≤|≥|<|>)(?![<>=])")
_MADE: dict[str, Callable[[Any, Any], Any]] = {"<": sp.Lt, "<=": sp.Le, "≤": sp.Le, ">": sp.Gt, ">=": sp.Ge, "≥": sp.Ge}
_LARGEST = 96
_ROOM = 2


@dataclass(frozen=True, slots=True)
class Region:
    """Sizes that are asked about: those that meet the comparisons, or those with these numbers."""

    wanted: tuple[Any, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def broken(self, assumptions: Iterable[Assumption], values: Mapping[str, int]) -> tuple[Any, ...]:
        """What must hold here and does not where these assumptions do. `values` are a config's own numbers."""
        numbers = {symbol(n): sp.Integer(v) for n, v in {**values, **self.sizes}.items()}
        taken = [a for a in assumptions if a.kind == "branch" and isinstance(a.left, SIGNS)]
        found = [sp.Not(a.left) for a in taken if a.left.free_symbols <= set(numbers) and not a.holds(numbers)]
        found += [one for one in self.wanted if any(excludes(one, a.left) for a in taken)]
        return tuple(dict.fromkeys(found))

    def agree(self, assumptions: Iterable[Assumption]) -> None:
        """Raises SizeError where what is wanted excludes what holds of a graph: no way there was found."""
        for a in assumptions:
            for one in self.wanted:
                if a.kind == "branch" and excludes(one, a.left):
                    raise SizeError(f"--given {plain(one)} contradicts {a.short}, where alone these formulas hold")


def comparison(text: str, names: Collection[str] | None = None) -> Any:
    """What `T >= W` says; None for a text that compares nothing. Raises FormulaError for one that compares numbers."""
    parts = _SIGN.split(text)
    if len(parts) != 3:
        return None
    found = _MADE[parts[1]](parse(parts[0], names), parse(parts[2], names))
    if not isinstance(found, SIGNS):
        raise FormulaError(f"{text!r} is {str(found).lower()} at all sizes")
    return found


def region(given: Iterable[str], sizes: Mapping[str, int]) -> Region:
    """The region of `--given` and `--at`; what `--given` says beside comparisons selects none."""
    return Region(tuple(one for one in map(comparison, given) if one is not None), dict(sizes))


def compared(given: Iterable[str]) -> Region:
    """The region of `--given` where nothing but comparisons is of use. Raises FormulaError for a text of another kind."""
    for text in given:
        if comparison(text) is None:
            raise FormulaError(f"--given {text!r}: only a comparison of sizes, such as 'T >= W', says where to verify")
    return region(given, {})


def examples(dims: Mapping[str, int], conditions: Collection[Any]) -> dict[str, int] | None:
    """Example sizes that meet the comparisons, with room where there is any, and as few others as can be.

    None where the comparisons speak of other sizes, or no small sizes meet them.
    """
    told = {s.name for c in conditions for s in c.free_symbols}
    if not told <= set(dims):
        return None
    names = [name for name in reversed(tuple(dims)) if name in told]  # a model's own sizes before those of its inputs
    if _hold(conditions, dims):
        return dict(dims)
    for room, many in product((_ROOM, 0), (1, 2)):
        for changed in combinations(names, many):
            found = _near(dims, changed, conditions, room)
            if found is not None:
                return found
    return None


def fitting(dims: Mapping[str, int], assumptions: Iterable[Assumption]) -> dict[str, int]:
    """Example sizes at which branches of the code go as these assumptions say; the given ones where none are found."""
    return examples(dims, [a.left for a in assumptions if a.kind == "branch" and isinstance(a.left, SIGNS)]) or dict(dims)


def _near(dims: Mapping[str, int], changed: tuple[str, ...], conditions: Collection[Any], room: int) -> dict[str, int] | None:
    """The sizes with other numbers for the changed ones, not those of any other size; even ones first, then near ones."""
    used = {v for n, v in dims.items() if n not in changed}
    numbers = [v for v in range(2, _LARGEST) if v not in used]
    if len(changed) > 1:
        numbers = numbers[:: 1 + len(numbers) // 24]

    def distance(values: tuple[int, ...]) -> int:
        return sum(50 * (v % 2) + abs(v - dims[n]) for n, v in zip(changed, values, strict=True))

    for values in sorted(product(numbers, repeat=len(changed)), key=distance):
        found = {**dims, **dict(zip(changed, values, strict=True))}
        around = ({**found, n: found[n] + step} for n in changed for step in (-room, room))
        apart = len(set(values)) == len(values)
        if apart and _hold(conditions, found) and (not room or all(_hold(conditions, p) for p in around)):
            return found
    return None


def _hold(conditions: Iterable[Any], sizes: Mapping[str, int]) -> bool:
    numbers = {symbol(n): sp.Integer(v) for n, v in sizes.items()}
    return all(c.xreplace(numbers) == sp.true for c in conditions)
