"""Each size of a graph as one expression: the symbolic run's where concrete runs agree, else a lifted one.

What is lifted must be settled: where too few runs leave it open, further ones are drawn, best at sizes where
the expressions that give all values so far differ. What a later run refutes is found again, from all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import sympy as sp
from sympy import Expr

from symacct.domain import Domain
from symacct.errors import TraceError
from symacct.formula_text import to_text
from symacct.lifting import Fit, fitted
from symacct.located import Position, Run
from symacct.records import Record
from symacct.symbols import symbol

Read = Callable[[Run, Record], Any]
Rows = list[dict[sp.Symbol, int]]
Telling = Callable[[Mapping[str, int]], bool]

_FEW, _MANY, _MOST = 4, 10, 8  # runs drawn one by one at first, all by then, and one by one at most
_SEED, _POINTS = 41, 60  # of points where expressions are compared


class Further(Protocol):
    """Concrete runs beyond those at hand."""

    def many(self, count: int) -> list[Run]:
        """So many runs, or a few less. Raises TraceError when hardly any can be had."""
        ...

    def one(self, telling: Telling | None = None) -> Run | None:
        """A run at sizes that are `telling`; None when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Sought:
    """A size of the leaf at `position`, inside these loops: what `read` tells of each run, and its name."""

    position: Position
    loops: tuple[str, ...]
    read: Read
    what: str

    def values(self, run: Run) -> list[Any]:
        """Its values in a run, one for each iteration."""
        return [self.read(run, record) for _, record in run.at.get(self.position, ())]


@dataclass
class Quantities:
    """The sizes that runs show, as expressions. `pinned` are those that the symbolic run has as numbers."""

    model: Run  # the one whose records name a place
    symbolic: Run | None
    concrete: list[Run]
    domain: Domain
    pinned: tuple[sp.Symbol, ...]
    further: Further
    prepare: Callable[[Run], None]  # what a further run goes through first
    _memo: dict[Any, Fit | None] = field(default_factory=dict)
    _values_at: list[dict[Expr, int]] = field(default_factory=list)
    _found: list[tuple[Sought, Expr, int]] = field(default_factory=list)  # with the number of runs behind it
    _singles: int = 0  # runs that were drawn one by one
    _drawn: bool = False  # whether many were drawn

    def find(self, sought: Sought, must: bool = True, guess: Expr | None = None) -> Expr | None:
        """The expression with these values in every run and iteration; None if there is none and need not be.

        `guess` is tried before any is lifted. Raises TraceError where no exact one can be had.
        """
        symbolic = self._from_symbolic(sought)
        likely = [expr for expr in (symbolic, guess) if expr is not None]
        found = next((expr for expr in likely if self._agrees(sought, expr)), None)
        if found is None:
            known = symbolic.free_symbols if symbolic is not None else map(symbol, self.domain.names)
            found = self._lifted(sought, sorted({*known, *self.pinned}, key=str), must)
        if found is not None:
            self._found.append((sought, found, len(self.concrete)))
        return found

    def stand(self) -> bool:
        """Whether all found since this was last asked holds in the runs that were drawn after it, too."""
        found, self._found = self._found, []
        return all(self._agrees(sought, expr, since) for sought, expr, since in found)

    def _from_symbolic(self, sought: Sought) -> Expr | None:
        if self.symbolic is None:
            return None
        seen = [sought.read(self.symbolic, record) for _, record in self.symbolic.at[sought.position]]
        found = {self.domain.rewrite(sp.Integer(v) if isinstance(v, int) else v) for v in seen}
        return found.pop() if len(found) == 1 else sp.Add(*found)

    def _agrees(self, sought: Sought, expr: Expr, since: int = 0) -> bool:
        while len(self._values_at) < len(self.concrete):
            self._values_at.append({})
        for run, known in zip(self.concrete[since:], self._values_at[since:], strict=True):
            if expr not in known:
                known[expr] = expr.xreplace(_numbers(run.trace.sizes))
            if any(value != known[expr] for value in sought.values(run)):
                return False
        return True

    # Lifting

    def _lifted(self, sought: Sought, free: list[sp.Symbol], must: bool) -> Expr | None:
        while True:
            rows, values = self._observations(sought)
            if any(isinstance(value, sp.Basic) and value.free_symbols for value in values):
                where = self._place(sought)
                raise TraceError(f"{sought.what} of {where} depends on data in a way that follows no rule")
            if not must and not all(isinstance(value, int) for value in values):  # a scale or the like
                return None
            variables = [*free, *map(symbol, sought.loops)]
            if self._drawn:  # a size that no run could change is no variable
                variables = [s for s in variables if len({row[s] for row in rows}) > 1]
            fit = self._fitted(rows, values, variables)
            if fit is not None and fit.enough and (len(fit.found) == 1 or not self._differ(fit.found)):
                return fit.found[0]
            if not self._observe(fit):
                break
        if not must:
            return None
        raise TraceError(
            f"{sought.what} of {self._place(sought)} {_open(fit, free, values)}; "
            "give that size a symbol of its own, or keep it a number"
        )

    def _observations(self, sought: Sought) -> tuple[Rows, list[Any]]:
        rows: Rows = []
        values: list[Any] = []
        for run in self.concrete:
            sizes = {symbol(name): value for name, value in run.trace.sizes.items()}
            for iteration, _ in run.at.get(sought.position, ()):
                rows.append(sizes | dict(zip(map(symbol, sought.loops), iteration, strict=True)))
            values += [int(seen) if isinstance(seen, sp.Integer) else seen for seen in sought.values(run)]
        return rows, values

    def _fitted(self, rows: Rows, values: list[Any], variables: list[sp.Symbol]) -> Fit | None:
        key = (tuple(values), tuple(variables), tuple(tuple(row[s] for s in variables) for row in rows))
        if key not in self._memo:
            self._memo[key] = fitted(rows, values, variables)
        return self._memo[key]

    def _observe(self, fit: Fit | None) -> bool:
        """Draw one run more, or many; False when there are no more to be had.

        Where expressions fit, a run at which they differ is worth many; where none does, many may show one.
        """
        if fit is not None and self._singles < (_MOST if self._drawn else _FEW):
            self._singles += 1
            run = self.further.one(_telling(fit.found) if len(fit.found) > 1 else None)
            if run is not None:
                self._add([run])
                return True
        if self._drawn:
            return False
        self._drawn = True
        self._add(self.further.many(_MANY - self._singles))
        return True

    def _add(self, runs: list[Run]) -> None:
        for run in runs:
            self.prepare(run)
        self.concrete += runs

    def _differ(self, found: Sequence[Expr]) -> bool:
        """Whether these expressions are not one and the same throughout the domain, as far as points tell."""
        return any(map(_telling(found), islice(self.domain.points(_SEED), _POINTS)))

    def _place(self, sought: Sought) -> str:
        record = self.model.at[sought.position][0][1]
        where = f" ({record.source})" if record.source else ""
        return f"{record.op} in {record.module or 'the model'}{where}"


def _telling(found: Sequence[Expr]) -> Telling:
    """Whether expressions differ at given sizes."""
    return lambda sizes: len({expr.xreplace(_numbers(sizes)) for expr in found}) > 1


def _numbers(sizes: Mapping[str, int]) -> dict[sp.Symbol, sp.Integer]:
    return {symbol(name): sp.Integer(value) for name, value in sizes.items()}


def _open(fit: Fit | None, free: Sequence[sp.Symbol], values: Sequence[Any]) -> str:
    """Why a size has no expression."""
    if fit is None:
        seen = ", ".join(map(str, values[:3]))
        return f"is no exact expression in {', '.join(map(str, free))}: runs gave {seen}"
    if len(fit.found) > 1:
        one, other = map(to_text, fit.found[:2])
        return f"is left open: {one} and {other} both give what all runs gave"
    return f"is left open: {to_text(fit.found[0])} gives what all runs gave, and these are too few to tell"
