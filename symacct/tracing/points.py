"""Points of a domain at which a model is tried: some sizes given, the others no special ones and not equal where that can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import sympy as sp

from symacct.domain import Domain
from symacct.errors import TraceError
from symacct.symbols import symbol
from symacct.tracing.special import Special

_SEED, _DRAWS = 1_723, 60
_SPANS = ((3, 9), (2, 5), (3, 60))  # of the sizes of points: a peak lies elsewhere in small models than in large ones


@dataclass(frozen=True, eq=False)
class Points:
    """Where to draw from. `depths` are the sizes that ops repeat by, which stay as they are."""

    domain: Domain
    depths: Mapping[str, int]
    special: Special

    def at(self, fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Points of the domain with these sizes, the others no special ones and not equal where that can be."""
        given = {**self.depths, **fixed}
        numbers = {symbol(name): sp.Integer(value) for name, value in given.items()}
        if any(a.kind == "divides" and a.right.is_number and not a.holds(numbers) for a in self.domain.assumptions if {s.name for s in a.left.free_symbols} <= set(given)):
            return
        drawn = [self._drawn(given, *span) for span in _SPANS]
        while drawn:
            for points in tuple(drawn):
                point = next(points, None)
                if point is None:
                    drawn.remove(points)
                else:
                    yield point

    def _drawn(self, given: Mapping[str, int], low: int, high: int) -> Iterator[dict[str, int]]:
        second = []
        try:
            for point in islice(self.domain.points(_SEED, low=low, high=high, fixed=given), _DRAWS):
                free = [value for name, value in point.items() if name not in given]
                if any(point[name] in numbers for name, numbers in self.special.items() if name not in given):
                    continue
                if len(set(free)) == len(free):
                    yield point
                else:
                    second.append(point)
        except TraceError:
            return
        yield from second
