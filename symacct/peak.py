"""The peak of a step: live bytes at every event of located runs, as one expression per place where it may lie.

A storage lives from the record that made it to its recorded death; last use is not death. Inside a repeated region
live bytes are affine in the iteration, so only the first and the last one are candidates. How many storages of each
size live there is affine in each structural size: fitted on the runs, and the maximum is compared with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.domination import undominated
from symacct.folding import Repeat
from symacct.graph import GIVEN, LASTING, REPETITIONS
from symacct.located import Position, Run
from symacct.records import Trace
from symacct.symbols import symbol


@dataclass(frozen=True, slots=True)
class Candidate:
    """Live bytes at one place: during the op of node `node`, in a repetition at an end of each loop around it."""

    node: str
    bytes: Expr


def peak(runs: Sequence[Run], names: Mapping[Position, str], storages: Mapping[str, Expr], structural: Sequence[str]) -> tuple[Candidate, ...] | None:
    """The undominated candidates for the peak; None when live bytes follow no rule that the runs confirm."""
    sizes = sorted(set(storages.values()), key=str)
    sized = runs[0].trace.sizes  # a count that depends on the data is none
    if any(not s.is_positive or s.name not in sized for size in sizes for s in size.free_symbols):
        return None
    timelines = [_Timeline(run, names, storages, sizes) for run in runs]
    fit = _Fit(timelines, structural, sizes)
    candidates: dict[Expr, str] = {}
    beside: dict[Expr, str] = {}
    known: dict[bytes, Expr | None] = {}
    for place, name in names.items():
        for corner in product(REPETITIONS, repeat=_depth(runs[0].items, place)):
            counts = [t.counts(place, corner) for t in timelines]
            seen = b"|".join(b"" if c is None else c.tobytes() for c in counts)
            if seen not in known:  # most ops make nothing and free nothing: their places look alike
                known[seen] = fit.live(counts)
            live = known[seen]
            at_an_end = set(corner) <= {0, -1}
            if live is not None:
                (candidates if at_an_end else beside).setdefault(live, name)
            elif at_an_end:
                return None
    for live, name in beside.items():  # a loop of few repetitions may have none beside its ends: then these fit by chance
        if live not in candidates and not any(t.exceeded_by(live) for t in timelines):
            candidates[live] = name
    kept = undominated([c for c in candidates if c != 0])
    found = tuple(Candidate(candidates[c], c) for c in kept)
    return found if all(t.confirms(found) for t in timelines) else None


class _Timeline:
    """How many storages of each size live during each record of a run."""

    def __init__(self, run: Run, names: Mapping[Position, str], storages: Mapping[str, Expr], sizes: Sequence[Expr]) -> None:
        self.run = run
        column = {size: k for k, size in enumerate(sizes)}
        records = run.trace.records
        made: dict[int, int] = {}
        for number, record in enumerate(records):
            for out in record.outputs:
                made.setdefault(out.storage, 0 if record.op in GIVEN else number)
        ends = {storage: at for at, storage in run.trace.deaths}
        lasting = {out.storage for r in records if r.op in LASTING for out in r.outputs}
        lasting |= {run.values[v].storage for v in run.trace.outputs}
        change = np.zeros((len(records) + 1, len(sizes)), dtype=np.int64)
        for storage, value in run.owner.items():
            position, _, number = run.maker[value]
            name = f"{names[position]}.{number}" if number else names[position]
            end = len(records) if storage in lasting else ends.get(storage, len(records))
            change[made[storage], column[storages[name]]] += 1
            change[max(end, made[storage]), column[storages[name]]] -= 1
        self.live = np.cumsum(change, axis=0)[:-1]
        self.numbers = {symbol(n): sp.Integer(v) for n, v in run.trace.sizes.items()}
        self.values = [int(size.xreplace(self.numbers)) for size in sizes]
        self.index = {id(record): number for number, record in enumerate(records)}
        self.truth = max(sum(int(n) * v for n, v in zip(row, self.values, strict=True)) for row in self.live)

    def counts(self, place: Position, corner: tuple[int, ...]) -> Any:
        """The counts at the given corner of the loops around a place; None where the run does not come there."""
        rows = self.run.at.get(place)
        if not rows:
            return None
        first = tuple(min(i[k] for i, _ in rows) for k in range(len(corner)))
        last = tuple(max(i[k] for i, _ in rows) for k in range(len(corner)))
        ends = tuple(a + end if end >= 0 else b + 1 + end for end, a, b in zip(corner, first, last, strict=True))
        record = next((record for iteration, record in rows if iteration == ends), None)
        return None if record is None else self.live[self.index[id(record)]]

    def confirms(self, candidates: Sequence[Candidate]) -> bool:
        """Whether the largest candidate is the run's true peak."""
        return max(int(c.bytes.xreplace(self.numbers)) for c in candidates) == self.truth

    def exceeded_by(self, live: Expr) -> bool:
        """Whether so much is more than the run ever has alive."""
        return int(live.xreplace(self.numbers)) > self.truth


def most_alive(trace: Trace) -> int:
    """The most bytes alive at once in one concrete run."""
    lasting = {out.storage for r in trace.records if r.op in LASTING for out in r.outputs}
    by_value = {out.id: out.storage for r in trace.records for out in r.outputs}
    lasting_ends = lasting | {by_value[v] for v in trace.outputs}
    change = [0] * (len(trace.records) + 1)
    born = {out.storage: 0 for r in trace.records if r.op in GIVEN for out in r.outputs}
    for number, record in enumerate(trace.records):
        for out in record.outputs:
            born.setdefault(out.storage, number)
    ends = {storage: at for at, storage in trace.deaths if storage not in lasting_ends}
    for storage, start in born.items():
        change[start] += int(trace.storages[storage])
        change[max(start, ends.get(storage, len(trace.records)))] -= int(trace.storages[storage])
    return max(accumulate(change))


def _depth(items: Any, place: Position) -> int:
    depth = 0
    for number in place[:-1]:
        assert isinstance(items[number], Repeat)
        items, depth = items[number].items, depth + 1
    return depth


class _Fit:
    """Σ count · size, with every count affine in each structural size. Alike counts of a size are fitted once."""

    def __init__(self, timelines: Sequence[_Timeline], structural: Sequence[str], sizes: Sequence[Expr]) -> None:
        self.points = [t.run.trace.sizes for t in timelines]
        self.powers = list(product((0, 1), repeat=len(structural)))
        self.factors = [sp.Mul(*(symbol(s) for s, p in zip(structural, power, strict=True) if p)) for power in self.powers]
        self.structural, self.sizes = structural, sizes
        self.known: dict[tuple[int, tuple[int | None, ...]], Expr | None] = {}

    def live(self, counts: Sequence[Any]) -> Expr | None:
        """The expression that gives these counts in the runs that come here; None where there is none."""
        shown = [c for c in counts if c is not None]
        if not shown:
            return sp.Integer(0)
        terms = []
        for k in np.flatnonzero(np.stack(shown).any(axis=0)):
            key = (int(k), tuple(None if c is None else int(c[k]) for c in counts))
            if key not in self.known:
                self.known[key] = self._term(*key)
            if self.known[key] is None:
                return None
            terms.append(self.known[key])
        return sp.Add(*terms)

    def _term(self, k: int, column: tuple[int | None, ...]) -> Expr | None:
        seen = [(point, n) for point, n in zip(self.points, column, strict=True) if n is not None]
        rows = [[Fraction(prod(point[s] ** p for s, p in zip(self.structural, power, strict=True))) for power in self.powers] for point, _ in seen]
        coefficients = _affine(rows, [n for _, n in seen])
        if coefficients is None:
            return None
        count = sp.Add(*(sp.Rational(c.numerator, c.denominator) * f for c, f in zip(coefficients, self.factors, strict=True)))
        return sp.expand(count * self.sizes[k])


def _affine(rows: list[list[Fraction]], column: list[int]) -> list[Fraction] | None:
    """Exact coefficients of the rows that give the column; a constant is tried first."""
    if len(set(column)) == 1:
        return [Fraction(column[0])] + [Fraction(0)] * (len(rows[0]) - 1)
    width = len(rows[0])
    work = [[*row, Fraction(value)] for row, value in zip(rows, column, strict=True)]
    for pivot in range(width):
        found = next((r for r in range(pivot, len(work)) if work[r][pivot]), None)
        if found is None:
            return None
        work[pivot], work[found] = work[found], work[pivot]
        work[pivot] = [a / work[pivot][pivot] for a in work[pivot]]
        for r in range(len(work)):
            if r != pivot and work[r][pivot]:
                work[r] = [a - work[r][pivot] * b for a, b in zip(work[r], work[pivot], strict=True)]
    return None if any(row[-1] for row in work[width:]) else [work[j][-1] for j in range(width)]
