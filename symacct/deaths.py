"""Where storages die, as rules: read off located runs, and true of every one of them.

A storage dies after the last record that it lives through. For the repetitions of its birth that is one node
of the folded step, in an iteration that is affine in the birth's: the same one, some later, counted from the
end (as what backward frees), or a fixed one. The first and the last few repetitions may have rules of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import sympy as sp
from sympy import Expr

from symacct.errors import TraceError
from symacct.folding import Repeat
from symacct.graph import LASTING, Death, Tensor
from symacct.located import Position, Run
from symacct.symbols import symbol

_EXCEPTIONS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1), (2, 2))
Span = tuple[Expr, Expr]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One repetition of a birth: its iteration and how often each loop around it runs, and the death, None
    for none."""

    run: int
    iteration: tuple[int, ...]
    counts: tuple[int, ...]
    died: tuple[Position, tuple[int, ...]] | None


def deaths(
    runs: Sequence[Run], names: Mapping[Position, str], tensors: Mapping[str, Tensor]
) -> dict[str, tuple[Death, ...]]:
    """The rules of each storage that dies, by the value that it was made for; what is not here lives to the
    end.

    Raises TraceError where a storage's deaths follow no rule.
    """
    seen: dict[tuple[Position, int], list[_Seen]] = {}
    for number, run in enumerate(runs):
        for (position, iteration, output), died in _observed(run, names, tensors):
            seen.setdefault((position, output), []).append(
                _Seen(number, iteration, _counts(run, position), died)
            )
    found = {}
    for (position, output), rows in seen.items():
        if all(row.died is None for row in rows):
            continue
        name = f"{names[position]}.{output}" if output else names[position]
        fitted = _Fit(runs, names, position).rules(rows, 0, ())
        if fitted is None:
            raise TraceError(f"deaths of the storage of {name} follow no rule")
        found[name] = tuple(fitted)
    return found


def _observed(
    run: Run, names: Mapping[Position, str], tensors: Mapping[str, Tensor]
) -> Iterator[tuple[tuple[Position, tuple[int, ...], int], tuple[Position, tuple[int, ...]] | None]]:
    """Each birth of a run, and where what was born dies. Several alike storages of one birth must die
    together."""
    records = run.trace.records
    place = {
        id(record): (position, iteration) for position, rows in run.at.items() for iteration, record in rows
    }
    ends = {storage: at for at, storage in run.trace.deaths}
    lasting = {out.storage for r in records if r.op in LASTING for out in r.outputs}
    lasting |= {run.values[v].storage for v in run.trace.outputs}
    born: dict[int, int] = {}
    for number, record in enumerate(records):
        for out in record.outputs:
            born.setdefault(out.storage, number)
    together: dict[tuple[Position, tuple[int, ...], int], list[tuple[Position, tuple[int, ...]] | None]] = {}
    for storage, value in run.owner.items():
        end = None if storage in lasting else ends.get(storage)
        died = None if end is None or end >= len(records) else place[id(records[max(end - 1, born[storage])])]
        together.setdefault(run.maker[value], []).append(died)
    numbers = _numbers(run)
    for birth, places in together.items():
        position, _, output = birth
        name = f"{names[position]}.{output}" if output else names[position]
        if len(set(places)) > 1 or len(places) != tensors[name].times.xreplace(numbers):
            raise TraceError(f"storages of {name} do not die together")
        yield birth, places[0]


@dataclass(frozen=True, slots=True)
class _Fit:
    runs: Sequence[Run]
    names: Mapping[Position, str]
    position: Position

    def rules(self, rows: list[_Seen], axis: int, over: tuple[Span, ...]) -> list[Death] | None:
        """Rules for these repetitions, all within `over`; exceptions at the ends of a loop come first."""
        around = loops_around(self.runs[0], self.position)
        if axis == len(around):
            return self._rule(rows, over)
        count = around[axis].count
        for first, last in _EXCEPTIONS:
            middle = (sp.Integer(first), sp.expand(count - 1 - last))
            parts: dict[Span, list[_Seen]] = {}
            for row in rows:
                parts.setdefault(_span(row.iteration[axis], row.counts[axis], count, first, last), []).append(
                    row
                )
            rest = parts.get(middle, ())
            if (first or last) and len({row.run for row in rest}) < min(2, len(self.runs)):
                continue  # a rule for the middle that hardly any run shows
            fitted = [
                self.rules(part, axis + 1, (*over, span))
                for span, part in sorted(parts.items(), key=lambda p: p[0] == middle)
            ]
            if all(part is not None for part in fitted):
                return [rule for part in fitted for rule in part or ()]
        return None

    def _rule(self, rows: list[_Seen], over: tuple[Span, ...]) -> list[Death] | None:
        places = {row.died[0] if row.died else None for row in rows}
        if len(places) > 1:
            return None
        place = places.pop()
        if place is None:
            return [Death("", (), over)]
        loops = loops_around(self.runs[0], place)
        at = []
        for level, loop in enumerate(loops):
            counts = {row.run: int(loop.count.xreplace(_numbers(self.runs[row.run]))) for row in rows}
            found = self._iteration(rows, level, loop.count, counts)
            if found is None:
                return None
            at.append(found)
        return [Death(self.names[place], tuple(at), over)]

    def _iteration(
        self, rows: list[_Seen], level: int, count: Expr, counts: Mapping[int, int]
    ) -> Expr | None:
        """The death's iteration of one loop, as an expression in the birth's iterations and the loop's count.
        """
        width = len(rows[0].iteration)
        for axis in sorted(range(width), key=lambda k: k != level):
            index = symbol(f"i{axis + 1}")
            lag = _constant(_died(row, level) - row.iteration[axis] for row in rows)
            if lag is not None:
                return index + lag
            lag = _constant(_died(row, level) + row.iteration[axis] - counts[row.run] + 1 for row in rows)
            if lag is not None:
                return sp.expand(count - 1 - index + lag)
        fixed = _constant(_died(row, level) for row in rows)
        if fixed is not None:
            return sp.Integer(fixed)
        fixed = _constant(counts[row.run] - 1 - _died(row, level) for row in rows)
        return None if fixed is None else sp.expand(count - 1 - fixed)


def _died(row: _Seen, level: int) -> int:
    assert row.died is not None
    return row.died[1][level]


def _constant(values: Iterator[int]) -> int | None:
    groups = [value for value, _ in groupby(values)]
    return groups[0] if len(groups) == 1 else None


def _span(i: int, n: int, count: Expr, first: int, last: int) -> Span:
    """Which part of a loop an iteration belongs to: one of the first, one of the last, or the rest."""
    if i < first:
        return sp.Integer(i), sp.Integer(i)
    if i >= n - last:
        at = sp.expand(count - (n - i))
        return at, at
    return sp.Integer(first), sp.expand(count - 1 - last)


def loops_around(run: Run, position: Position) -> list[Repeat]:
    """The repeated regions around a leaf of the folded form, outermost first."""
    found, items = [], run.items
    for number in position[:-1]:
        item = items[number]
        assert isinstance(item, Repeat)
        found.append(item)
        items = item.items
    return found


def _counts(run: Run, position: Position) -> tuple[int, ...]:
    numbers = _numbers(run)
    return tuple(int(loop.count.xreplace(numbers)) for loop in loops_around(run, position))


def _numbers(run: Run) -> dict[sp.Symbol, sp.Integer]:
    return {symbol(n): sp.Integer(v) for n, v in run.trace.sizes.items()}
