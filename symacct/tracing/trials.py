"""Runs at sizes where formulas may not hold: with the optimizer's step, or without where that tells as much."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from symacct.graph import HELD
from symacct.limits import GRADS, PEAK, SAVED
from symacct.peak import most_alive
from symacct.records import Trace
from symacct.tracing.run import trace_concrete
from symacct.tracing.source import ModelSource

Point = tuple[tuple[str, int], ...]


@dataclass(eq=False)
class Trials:
    """The runs of one model, each point once. `whole` runs a step to its end and remembers it."""

    source: ModelSource
    mode: str
    device: str
    whole: Callable[[Mapping[str, int]], Trace]
    _made: set[Point] = field(default_factory=set)
    _short: dict[Point, Trace] = field(default_factory=dict)

    def run(self, sizes: Mapping[str, int], stepped: bool) -> Trace:
        """A step, to its end or but for its optimizer. Raises SymacctError where the model's code refuses the sizes."""
        at = tuple(sorted(sizes.items()))
        if stepped:
            self._made.add(at)
            return self.whole(sizes)
        if at not in self._short:
            self._short[at] = trace_concrete(self.source, self.mode, self.device, dict(sizes), stepped=False)
        return self._short[at]

    def amounts(self, sizes: Mapping[str, int], keys: Container[str]) -> dict[str, int]:
        """What these keys are in a run at these sizes: a step to its end tells kept bytes, too."""
        stepped = PEAK in keys or tuple(sorted(sizes.items())) in self._made
        return amounts(self.run(sizes, stepped))

    def measured(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Kept bytes and the peak of a run at sizes that were asked for, which nothing remembers."""
        return amounts(trace_concrete(self.source, self.mode, self.device, dict(sizes)))


def amounts(trace: Trace) -> dict[str, int]:
    """Kept bytes, those of gradients and the peak of a run at plain numbers, by the formulas' keys; what is no number is left out."""
    own = {out.storage for r in trace.records if r.op == "buffer" or HELD in r.notes for out in r.outputs}
    kept = sum((trace.storages[storage] for storage in trace.kept - own), 0)
    found = {SAVED: kept}
    gradients = {out.storage for r in trace.records if r.op == "gradient" for out in r.outputs}
    if gradients:
        found[GRADS] = sum((trace.storages[storage] for storage in gradients), 0)
    if all(not getattr(size, "free_symbols", ()) for size in trace.storages.values()):
        found[PEAK] = most_alive(trace)
    return {key: int(value) for key, value in found.items() if not getattr(value, "free_symbols", ())}


def lives(trace: Trace) -> tuple[Any, ...]:
    """The ops of a run with the storages that they make, when each dies, and which are kept."""
    made = tuple((record.key, tuple(out.storage for out in record.outputs)) for record in trace.records)
    return made, tuple(trace.deaths), frozenset(trace.kept)
