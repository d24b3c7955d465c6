"""Runs of a model at random sizes of its domain: some check the symbolic run, others tell expressions apart.

A wrong expression fits by chance where quotients repeat, as where h/g is 2 in all runs. So of several points
that is taken at which fewest sizes, and quotients of two sizes, are what they were in a run before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, islice
from typing import Any

from symacct.domain import Domain
from symacct.errors import SymacctError, TraceError
from symacct.folding import Item
from symacct.located import Run
from symacct.records import Trace
from symacct.tracing.source import ModelSource
from symacct.tracing.special import Special
from symacct.tracing.structure import numeric

_TRIES = 40
_CHOICE = 8  # points, of which one is run
_DEPTHS = 5  # of a structural size

Point = dict[str, int]


@dataclass
class Sampling:
    """Where a model is run again. `base` are the least structural sizes; `seed` is that of further runs."""

    source: ModelSource
    domain: Domain
    items: tuple[Item, ...]
    base: Mapping[str, int]
    special: Special  # sizes where torch takes a shortcut, which no run shall check
    run: Callable[[Mapping[str, int]], Trace]
    loose: bool
    seed: int
    met: list[Mapping[str, int]] = field(default_factory=list)  # where there are runs
    _attempts: int = 0
    _points: Iterator[Point] | None = None

    def __post_init__(self) -> None:
        self.domain = Domain(self.domain.names, tuple(a for a in self.domain.assumptions if not numeric(a)))

    def checks(self, count: int, seed: int) -> list[Run]:
        """Runs at the first random sizes that will do. Raises TraceError when the model takes hardly any."""
        return self._runs(count, self.domain.points(seed), 1)

    def many(self, count: int) -> list[Run]:
        """Further runs at sizes of their own. Raises TraceError when the model takes hardly any."""
        return self._runs(count, self._further(), _CHOICE)

    def one(self, telling: Callable[[Mapping[str, int]], bool] | None = None) -> Run | None:
        """A further run, at sizes that are `telling`; None when the model takes none of those tried."""
        if not self.source.dims:
            return None
        for _ in range(_TRIES):
            made = (self._deep(point) for point in islice(self._further(), _CHOICE))
            point = self._newest([p for p in made if self._fit_to_run(p) and (telling is None or telling(p))])
            run = None if point is None else self._located(point, [])
            if run is not None:
                return run
        return None

    def _further(self) -> Iterator[Point]:
        if self._points is None:
            self._points = self.domain.points(self.seed)
        return self._points

    def _runs(self, count: int, points: Iterator[Point], choice: int) -> list[Run]:
        if not self.source.dims:
            return []
        found: list[Run] = []
        reasons: list[str] = []
        coarse = False
        for attempt in range(_TRIES):
            if attempt and attempt % 5 == 0 and len(found) < attempt // 4:
                coarse = True
            made = [self._deep(point, attempt) for point in islice(points, choice)]
            if coarse:
                made = [self._coarse(point) for point in made]
            point = self._newest([p for p in made if self._fit_to_run(p)])
            run = None if point is None else self._located(point, reasons)
            found += [] if run is None else [run]
            if len(found) == count:
                return found
        if len(found) >= max(1, count // 2):
            return found
        raise TraceError(
            f"{self.source.name}: the ops that run depend on sizes in a way that is not understood; "
            f"at other sizes: {reasons[0] if reasons else 'none could be tried'}"
        )

    def _coarse(self, point: Point) -> Point:
        """The point with multiples of the example for sizes, as a model wants that takes few others."""
        return {n: v if n in self.base else self.source.dims[n] * (1 + v % 4) for n, v in point.items()}

    def _deep(self, point: Point, attempt: int | None = None) -> Point:
        """The point with a depth for each structural size, another at each attempt."""
        if attempt is None:
            attempt = self._attempts = self._attempts + 1
        depths = {
            name: least + self.source.periods.get(name, 1) * ((attempt + 2 * k) % _DEPTHS)
            for k, (name, least) in enumerate(self.base.items())
        }
        return point | depths

    def _fit_to_run(self, point: Point) -> bool:
        if not self.domain.holds(point) or len(set(point.values())) < (len(point) + 1) // 2:
            return False
        return not any(point[name] in numbers for name, numbers in self.special.items())

    def _newest(self, points: list[Point]) -> Point | None:
        """The point with fewest sizes and quotients that runs had before."""
        if len(points) < 2:
            return points[0] if points else None
        before = {trait for point in self.met for trait in _traits(point)}
        return min(points, key=lambda point: len(_traits(point) & before))

    def _located(self, point: Point, reasons: list[str]) -> Run | None:
        """The run there; None, with the reason, where the model refuses these sizes or takes another way."""
        try:
            trace = self.run(point)
        except SymacctError as error:  # a size that the model's own code refuses
            reasons.append(str(error))
            return None
        try:
            made = Run(trace, self.items, loose=self.loose)
        except TraceError as error:
            if self.domain.generic(point):
                at = ", ".join(f"{name} = {value}" for name, value in point.items())
                problem = f"{self.source.name}: other ops run at {at} than at the example sizes: {error}"
                raise TraceError(problem) from error
            reasons.append(str(error))
            return None
        self.met.append(dict(point))
        return made


def _traits(point: Mapping[str, int]) -> set[tuple[Any, ...]]:
    """Each size of a point, and each quotient of two."""
    pairs = combinations(sorted(point), 2)
    return {*point.items(), *((one, other, Fraction(point[one], point[other])) for one, other in pairs)}
