"""A step unfolded at given sizes: its events in order, and the life of each storage from birth to death. No
torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.errors import GraphError, SizeError
from symacct.graph import GIVEN, Death, Graph, Item, Loop, Node
from symacct.symbols import symbol


@dataclass(frozen=True, slots=True)
class Life:
    """Storages alike that one run of a node makes: their value, how many, that run's iteration, the first and
    the last event (position in the unfolded step) of their life."""

    value: str
    times: int
    iteration: tuple[int, ...]
    start: int
    end: int


class Unfolded:
    """A step at given sizes: its events in order, each a node and its iteration, and the lives of its
    storages."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        if graph.deaths is None:
            raise GraphError(f"{graph.target}: when each tensor dies is not known; {_why(graph)}")
        self.graph = graph
        self.numbers: dict[sp.Symbol, Expr] = {
            symbol(name): sp.Integer(value) for name, value in sizes.items()
        }
        self._counts: dict[Expr, int] = {}
        self.events: list[tuple[Node, tuple[int, ...]]] = list(self._unfold(graph.items, ()))
        self.index = {(node.name, iteration): number for number, (node, iteration) in enumerate(self.events)}

    def _unfold(self, items: Sequence[Item], at: tuple[int, ...]) -> Iterator[tuple[Node, tuple[int, ...]]]:
        for item in items:
            if isinstance(item, Loop):
                for iteration in range(self._number(item.count)):
                    yield from self._unfold(item.items, (*at, iteration))
            else:
                yield item, at

    def _number(self, expr: Expr, iteration: tuple[int, ...] = ()) -> int:
        if not iteration and expr in self._counts:
            return self._counts[expr]
        here = (
            self.numbers | {symbol(f"i{k + 1}"): sp.Integer(i) for k, i in enumerate(iteration)}
            if iteration
            else self.numbers
        )
        value = expr.xreplace(here)
        if not value.is_Integer:
            raise SizeError(f"{self.graph.target}: {expr} is {value} at these sizes")
        if not iteration:
            self._counts[expr] = int(value)
        return int(value)

    def lives(self) -> Iterator[Life]:
        """Every storage from its birth to its death, both included."""
        for number, (node, iteration) in enumerate(self.events):
            for out in node.outputs:
                if out.storage == out.value and out.value in self.graph.storages:
                    start = 0 if node.op in GIVEN else number
                    yield Life(
                        out.value,
                        self._number(out.times, iteration),
                        iteration,
                        start,
                        self._end(out.value, iteration),
                    )

    def _end(self, value: str, iteration: tuple[int, ...]) -> int:
        assert self.graph.deaths is not None
        for rule in self.graph.deaths.get(value, ()):
            if all(
                self._number(low) <= i <= self._number(high)
                for i, (low, high) in zip(iteration, rule.over, strict=True)
            ):
                return self._after(rule, iteration)
        return len(self.events) - 1

    def _after(self, rule: Death, iteration: tuple[int, ...]) -> int:
        if not rule.after:
            return len(self.events) - 1
        place = (rule.after, tuple(self._number(i, iteration) if i.free_symbols else int(i) for i in rule.at))
        if place not in self.index:
            raise SizeError(f"{self.graph.target}: there is no run {place[1]} of {place[0]} at these sizes")
        return self.index[place]

    def bytes(self, late: Collection[str] = ()) -> list[int]:
        """Live bytes at every event. `late` are values that the optimizer makes as it begins to step."""
        change = [0] * (len(self.events) + 1)
        stepping = next((k for k, (node, _) in enumerate(self.events) if node.phase == "optimizer"), 0)
        for life in self.lives():
            size = life.times * self._number(self.graph.storages[life.value], life.iteration)
            change[stepping if life.value in late else life.start] += size
            change[life.end + 1] -= size
        return list(np.cumsum(np.array(change[:-1], dtype=object)))

    def counts(self, columns: Mapping[str, int]) -> Any:
        """How many storages of each value (by its column) live at every event; one row an event."""
        change = np.zeros((len(self.events) + 1, len(columns)), dtype=np.int32)
        for life in self.lives():
            change[life.start, columns[life.value]] += life.times
            change[life.end + 1, columns[life.value]] -= life.times
        return np.cumsum(change, axis=0, dtype=np.int32)[:-1]


def _why(graph: Graph) -> str:
    return next(
        (remark for remark in graph.remarks if "dies" in remark or "die" in remark.split()),
        "the graph stores no deaths",
    )
