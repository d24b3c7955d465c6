"""What is alive when: the storages of a step at each node, from where the graph says that they die. No torch.

`timeline` gives, for every node and each corner of the loops around it (their first two and last two
iterations), how many storages of each value live there, as expressions. Live bytes are affine in the iteration
between the corners, so any peak is at one, whatever each storage weighs: on one device, or a share of it. The
very first and the very last may be exceptions: what the one beside them hands on is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.domain import Domain
from symacct.domination import undominated
from symacct.errors import GraphError, TraceError
from symacct.graph import HELD, REPETITIONS, Graph, Placed, Tensor
from symacct.smallest import FEW, hardly_repeats, unfolded_peak
from symacct.symbols import symbol
from symacct.unfolding import Life, Unfolded

_FAR = 6  # repetitions from which on counts are affine: more than the exceptions at both ends of a loop
_SEARCHED = 400
_DEPTHS, _POINTS, _SEED = 3, 4, 8_117  # of comparisons with a step of few repetitions


@dataclass(frozen=True, slots=True)
class Moment:
    """One node in the first (0), second (1), last but one (-2) or last (-1) iteration of each loop around it."""

    node: str
    corner: tuple[int, ...]

    @property
    def beside(self) -> bool:
        """Whether some loop is beside its ends: of few repetitions it may have none there."""
        return not set(self.corner) <= {0, -1}


class Timeline:
    """The composition of live storages at every moment of a step: counts by value, affine in each structural
    size."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.structural = tuple(dict.fromkeys(loop.size for p in graph.placed() for loop in p.loops))
        self.values = tuple(graph.storages)
        self._columns = {value: k for k, value in enumerate(self.values)}
        self._powers = list(product((0, 1), repeat=len(self.structural)))
        self.moments, self._coefficients = self._fit()

    def __iter__(self) -> Iterator[tuple[Moment, Mapping[str, Expr]]]:
        for number, moment in enumerate(self.moments):
            yield moment, self._composition(number)

    def live(self, moment: Moment) -> Mapping[str, Expr]:
        """How many storages of each value live at a moment; the values that have none are left out."""
        return self._composition(self._numbers[moment])

    def tally(self) -> tuple[tuple[tuple[int, ...], ...], Any]:
        """Powers of the structural sizes, and for each of them the counts by moment and value, in floating point."""
        return tuple(self._powers), self._coefficients / self._denominator

    @cached_property
    def _numbers(self) -> dict[Moment, int]:
        return {moment: number for number, moment in enumerate(self.moments)}

    def _composition(self, number: int) -> Mapping[str, Expr]:
        rows = self._coefficients[:, number, :]
        return {self.values[k]: self._count(rows[:, k]) for k in np.flatnonzero(rows.any(axis=0))}

    def _count(self, coefficients: Any) -> Expr:
        terms = (
            sp.Rational(int(c), self._denominator)
            * sp.Mul(*(symbol(s) for s, p in zip(self.structural, power, strict=True) if p))
            for c, power in zip(coefficients, self._powers, strict=True)
            if c
        )
        return sp.Add(*terms)

    def candidates(
        self, weights: Mapping[str, Expr] | None = None, among: Callable[[Moment], bool] | None = None
    ) -> tuple[tuple[Moment, Expr], ...]:
        """The moments that may hold the peak, with the weight of what is alive there, undominated ones alone.

        `weights` are bytes of one storage of each value, the graph's own unless given (a device's share,
        say). `among` chooses the moments to look at.
        """
        weights = self.graph.storages if weights is None else weights
        sizes = sorted({weights[value] for value in self.values}, key=sp.default_sort_key)
        if any(not s.is_positive for size in sizes for s in size.free_symbols):
            raise GraphError(f"{self.graph.target}: sizes depend on the iteration; the peak follows no rule")
        column = {size: k for k, size in enumerate(sizes)}
        group = np.zeros((len(self.values), len(sizes)), dtype=np.int64)
        for k, value in enumerate(self.values):
            group[k, column[weights[value]]] = 1
        grouped = np.stack([rows @ group for rows in self._coefficients])
        found: dict[Expr, Moment] = {}
        known: dict[bytes, None] = {}
        for number, moment in enumerate(self.moments):
            if among is not None and not among(moment):
                continue
            row = grouped[:, number, :]
            if row.tobytes() not in known:
                known[row.tobytes()] = None
                found.setdefault(
                    sp.expand(
                        sp.Add(*(self._count(row[:, k]) * sizes[k] for k in np.flatnonzero(row.any(axis=0))))
                    ),
                    moment,
                )
        return tuple((found[live], live) for live in undominated([live for live in found if live != 0]))

    # Counts at some depths, and the affine expressions through them

    def _fit(self) -> tuple[list[Moment], Any]:
        least, step = (
            zip(*(self._repeating(name) for name in self.structural), strict=True)
            if self.structural
            else ((), ())
        )
        corners = {
            power: self._at(
                {n: v + s * p for n, v, s, p in zip(self.structural, least, step, power, strict=True)}
            )
            for power in self._powers
        }
        moments = corners[self._powers[0]][0]
        self._denominator = int(np.prod(step)) if step else 1
        found = np.zeros((len(self._powers), len(moments), len(self.values)), dtype=np.int64)
        for power in self._powers:  # differences along each size, then back from (v - least) / step to v
            difference = sum(
                (-1) ** (sum(power) - sum(lower)) * corners[lower][1].astype(np.int64)
                for lower in self._powers
                if all(a <= b for a, b in zip(lower, power, strict=True))
            )
            for target in self._powers:
                if all(t <= p for t, p in zip(target, power, strict=True)):
                    scale = self._denominator
                    for t, p, v, s in zip(target, power, least, step, strict=True):
                        scale = scale // s if t else scale * -v // s if p else scale
                    found[self._powers.index(target)] += scale * difference
        self._confirm(moments, found, least, step)
        return moments, found

    def _confirm(self, moments: list[Moment], found: Any, least: Sequence[int], step: Sequence[int]) -> None:
        """Two steps further in every size, and one between: the expressions must give what is counted there.
        """
        for far in ([2] * len(step), [3 if k == 0 else 1 for k in range(len(step))]):
            point = {n: v + s * k for n, v, s, k in zip(self.structural, least, step, far, strict=True)}
            expected = sum(
                int(np.prod([point[n] ** p for n, p in zip(self.structural, power, strict=True)] or [1]))
                * rows
                for power, rows in zip(self._powers, found, strict=True)
            )
            seen_moments, seen = self._at(point)
            if seen_moments != moments or (expected != self._denominator * seen.astype(np.int64)).any():
                raise GraphError(
                    f"{self.graph.target}: how many tensors live follows no rule in "
                    f"{', '.join(self.structural)}"
                )

    def depths(self, name: str) -> list[int]:
        """The least values of a structural size, above the small ones, at which its loops are whole."""
        counts = {loop.count for p in self.graph.placed() for loop in p.loops if loop.size == name}
        at = ({symbol(name): sp.Integer(v)} for v in range(FEW, _SEARCHED))
        whole = (int(v) for now in at for v in now.values() if all(_whole(c.xreplace(now)) for c in counts))
        return list(islice(whole, _DEPTHS))

    def _repeating(self, name: str) -> tuple[int, int]:
        """A value of a structural size at which its loops repeat often enough, and the step to the next such
        value."""
        counts = {loop.count for p in self.graph.placed() for loop in p.loops if loop.size == name}
        whole = [
            v
            for v in range(1, _SEARCHED)
            if all(_whole(count.xreplace({symbol(name): sp.Integer(v)})) for count in counts)
        ]
        often = [
            v for v in whole if all(count.xreplace({symbol(name): sp.Integer(v)}) >= _FAR for count in counts)
        ]
        if len(often) < 2:
            raise GraphError(
                f"{self.graph.target}: no {name} up to {_SEARCHED} repeats its loops a whole number of times"
            )
        return often[0], often[1] - often[0]

    def _at(self, point: Mapping[str, int]) -> tuple[list[Moment], Any]:
        unfolded = Unfolded(self.graph, point)
        counts = unfolded.counts(self._columns)
        moments: list[Moment] = []
        rows: list[int] = []
        for place in self.graph.placed():
            for corner in product(REPETITIONS, repeat=len(place.loops)):
                iteration = tuple(
                    end if end >= 0 else unfolded._number(loop.count) + end
                    for end, loop in zip(corner, place.loops, strict=True)
                )
                moments.append(Moment(place.node.name, corner))
                rows.append(unfolded.index[place.node.name, iteration])
        return moments, counts[rows]


_BROUGHT = {
    "parameter": "parameters",
    "buffer": "buffers",
    "input": "inputs",
    "state": "optimizer state",
    "cache": "cache",
    "gradient": "gradients",
}
_BEFORE = ("forward", "loss", "backward", "recompute")
KINDS = (
    "parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "cache",
    "inputs",
    "kept activations",
    "outputs",
    "temporaries",
)


def kinds(graph: Graph) -> dict[str, str]:
    """What each storage is (one of KINDS), by the value that it was made for.

    What backward makes and nothing frees before the step ends is a gradient; what a forward pass makes so, an
    output.
    """
    cached = {out.storage for p in graph.sources("cache") for out in p.node.outputs}
    found = {}
    for place in graph.placed():
        for out in place.node.outputs:
            if out.storage == out.value and out.value in graph.storages:
                found[out.value] = _kind(graph, place, out, out.value in cached)
    return {value: found[value] for value in graph.storages}


def _kind(graph: Graph, place: Placed, out: Tensor, cached: bool) -> str:
    node = place.node
    if HELD in node.notes:
        return "buffers"
    if cached or node.op in _BROUGHT:
        return "cache" if cached else _BROUGHT[node.op]
    rules = (graph.deaths or {}).get(out.value, ())
    lasts = graph.deaths is not None and (not rules or all(not rule.after for rule in rules))
    if node.phase in ("backward", "recompute"):
        return "gradients" if lasts else "temporaries"
    if out.value in (graph.kept or {}):
        return "kept activations"
    return (
        "outputs" if lasts and node.phase in ("forward", "loss") and graph.mode == "train" else "temporaries"
    )


EARLY = "early"  # the note of a state that an optimizer makes before its first step


def first_step(graph: Graph) -> tuple[tuple[str, Expr], ...] | None:
    """The places that may hold the peak of the first step: until the optimizer runs, most of its state is not
    there. None outside training, and where deaths or live bytes follow no rule."""
    if graph.mode != "train" or graph.peak is None or graph.deaths is None:
        return None
    try:
        return _first_step(graph)
    except GraphError:
        return None


def first_step_at(graph: Graph, sizes: Mapping[str, int]) -> int | None:
    """The peak of the first step at these sizes: its largest form, or at small depths, where the forms may not
    hold, what lives in the step unfolded. None where it follows no rule."""
    places = first_step(graph)
    if places is None:
        return None
    if hardly_repeats(graph, sizes):
        return unfolded_peak(graph, sizes, _late(graph))
    return max(_at(live, sizes) for _, live in places)


def _first_step(graph: Graph) -> tuple[tuple[str, Expr], ...]:
    line = timeline(graph)
    phases = {p.node.name: p.node.phase for p in graph.placed()}
    late = _late(graph)
    weights = {value: sp.Integer(0) if value in late else size for value, size in graph.storages.items()}

    def forms(beside: bool) -> dict[Expr, str]:
        def among(moment: Moment, *within: str) -> bool:
            return phases[moment.node] in within and moment.beside == beside

        before = line.candidates(weights, lambda moment: among(moment, *_BEFORE))
        stepping = line.candidates(among=lambda moment: among(moment, "optimizer"))
        return {live: moment.node for moment, live in (*stepping, *before)}

    found, beside = forms(False), forms(True)
    seen = list(_few_repetitions(graph, line, late)) if set(beside) - set(found) else []
    for live, node in beside.items():  # two repetitions have none beside the ends: there such a form may be too much
        if not any(_at(live, point) > most for point, most in seen):
            found.setdefault(live, node)
    kept = undominated(found)
    if any(max(_at(live, point) for live in kept) != most for point, most in seen):
        raise GraphError(f"{graph.target}: what lives in the first step follows no rule at small depths")
    return tuple((found[live], live) for live in kept)


def _late(graph: Graph) -> set[str]:
    """The state that the optimizer makes in its first step."""
    return {out.value for p in graph.sources("state") if EARLY not in p.node.notes for out in p.node.outputs}


def _few_repetitions(graph: Graph, line: Timeline, late: set[str]) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes with depths just above the small ones, and the most bytes alive in a first step there."""
    domain = Domain(tuple(graph.symbols), graph.assumptions)
    for depths in zip(*(line.depths(name) for name in line.structural), strict=True):
        with suppress(TraceError):  # the domain has no such depths
            given = dict(zip(line.structural, depths, strict=True))
            for point in islice(domain.points(_SEED, low=2, high=90, fixed=given), _POINTS):
                most = unfolded_peak(graph, point, late)
                if most is not None:
                    yield point, most


def _at(live: Expr, sizes: Mapping[str, int]) -> int:
    return int(live.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()}).doit())


def timeline(graph: Graph) -> Timeline:
    """The composition of what is alive at every moment. Raises GraphError where deaths follow no rule."""
    return Timeline(graph)


def _whole(count: Expr) -> bool:
    return bool(count.is_Integer) and count >= 1


__all__ = ["KINDS", "Life", "Moment", "Timeline", "Unfolded", "first_step", "first_step_at", "kinds", "timeline"]
