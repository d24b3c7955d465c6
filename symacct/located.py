"""Runs located in their folded form: which leaf and iteration each record is, and who made each value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy as sp

from symacct.folding import Item as Folded
from symacct.folding import Leaf, leaves, locate
from symacct.outliers import place_at_ends
from symacct.records import Record, Trace, Use, Value, loosened, template
from symacct.symbols import symbol

PARTED = ("aten.unbind", "aten.split", "aten.chunk", "aten.unsafe_split")  # ops with as many outputs as there are parts
_DATA = re.compile(r"u\d+\Z")
Position = tuple[int, ...]
Group = tuple[Position, int]


def leaves_of(trace: Trace, loose: bool = False) -> list[Leaf]:
    """The records of a run as folding sees them. An op on a parameter is another than the same op on what was computed,
    and a sum of two gradients another than one of gradients of another rank: a shared block adds up those of its weights
    between those of its activations.

    `loose`: layers may be told by names that end in digits, not only by the indices of a list.
    """
    owned = {out.id for record in trace.records if record.op == "parameter" for out in record.outputs}
    apart = place_at_ends(trace, trace.ends) if trace.ends else {}

    def key(record: Record) -> tuple[str, ...]:
        parts = (*record.key, *(name for name, part in record.arguments if isinstance(part, Use) and part.value in owned))
        if record.op == "aten.add" and record.phase == "backward":
            parts = (*parts, f"rank {len(record.outputs[0].shape)}")
        if (word := apart.get(record.module or record.name)) is not None:
            parts = (*parts, word)
        return (*parts[:2], loosened(parts[2]), loosened(parts[3]), *parts[4:]) if loose else parts

    return [Leaf(key(record), record.module or record.name) for record in trace.records]


@dataclass
class Run:
    """A trace with the place of each record in the folded form, and the maker of each value."""

    trace: Trace
    items: tuple[Folded, ...]
    at: dict[Position, list[tuple[tuple[int, ...], Record]]] = field(default_factory=dict)
    maker: dict[int, tuple[Position, tuple[int, ...], int]] = field(default_factory=dict)
    groups: dict[int, list[list[int]]] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    loose: bool = False

    def __post_init__(self) -> None:
        places = locate(self.items, leaves_of(self.trace, self.loose), self.trace.sizes)
        self.trace = _named_by_place(self.trace, [position for position, _ in places])
        for (position, iteration), record in zip(places, self.trace.records, strict=True):
            self.at.setdefault(position, []).append((iteration, record))
            grouped = self._grouped(record)
            self.groups[id(record)] = grouped
            for number, members in enumerate(grouped):
                for member in members:
                    value = record.outputs[member]
                    self.maker.setdefault(value.id, (position, iteration, number))
                    self.values.setdefault(value.id, value)
                    self.owner.setdefault(value.storage, value.id)

    @property
    def complete(self) -> bool:
        """Whether every leaf of the folded form was met: at small depths a region may repeat zero times."""
        return all(position in self.at for position, _ in leaves(self.items))

    def separate(self, positions: Iterable[Position]) -> None:
        """Take the outputs of these leaves one by one."""
        for position in positions:
            for iteration, record in self.at.get(position, ()):
                self.groups[id(record)] = [[j] for j in range(len(record.outputs))]
                for number, value in enumerate(record.outputs):
                    if self.maker[value.id][:2] == (position, iteration):
                        self.maker[value.id] = (position, iteration, number)

    def _grouped(self, record: Record) -> list[list[int]]:
        """Positions of outputs that belong together: a list op's outputs follow its first list of operands."""
        for _, argument in record.arguments:
            if isinstance(argument, tuple) and len(argument) == len(record.outputs) > 1 and all(isinstance(u, Use) for u in argument):
                return [members for _, members in self.grouped_uses(argument)]
        if len(record.outputs) > 1 and record.op.startswith(PARTED):
            return [list(range(len(record.outputs)))]
        return [[j] for j in range(len(record.outputs))]

    def grouped_uses(self, uses: Sequence[Use]) -> list[tuple[Group, list[int]]]:
        """Operands of a list, those of one maker together, in order of first sight."""
        found: dict[Group, list[int]] = {}
        for j, use in enumerate(uses):
            position, _, number = self.maker[use.value]
            found.setdefault((position, number), []).append(j)
        return list(found.items())


def _named_by_place(trace: Trace, positions: Sequence[Position]) -> Trace:
    """The trace with each count that depends on data named by the place that makes it: its repetitions share a name.

    Over the repetitions such a symbol stands for their mean.
    """
    names: dict[sp.Symbol, sp.Symbol] = {}
    places: dict[Position, str] = {}
    for position, record in zip(positions, trace.records, strict=True):
        for out in record.outputs:
            for size in out.shape:
                for found in sorted(getattr(size, "free_symbols", ()), key=str):
                    if _DATA.match(found.name) and found not in names:
                        names[found] = symbol(places.setdefault(position, f"u{len(places)}"))
    if not names:
        return trace

    def renamed(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(renamed, part))
        return part.xreplace(names) if isinstance(part, sp.Basic) else part

    records = [
        replace(r, arguments=renamed(r.arguments), outputs=tuple(replace(out, shape=renamed(out.shape)) for out in r.outputs))
        for r in trace.records
    ]
    return replace(trace, records=records, storages={number: renamed(size) for number, size in trace.storages.items()})


def repeated(position: Position, runs: Sequence[Run]) -> tuple[Run, tuple[int, ...], Record]:
    """A run that repeats a leaf, and a repetition behind the first one, which reads what the one before it left."""
    again = (run for run in runs if len({iteration[-1:] for iteration, _ in run.at.get(position, ())}) > 1)
    shown = next(again, runs[0])
    entries = shown.at[position]
    return (shown, *entries[min(1, len(entries) - 1)])


def first_of(run: Run, record: Record, number: int) -> Any:
    return record.outputs[run.groups[id(record)][number][0]]


def numel(shape: Sequence[Any]) -> Any:
    total = sp.Integer(1)
    for size in shape:
        total = total * size
    return total


def argument_at(record: Record, path: tuple[Any, ...]) -> Any:
    """The argument at this path, or None where the record has none."""
    name, *rest = path
    value = dict(record.arguments).get(name)
    for k in rest:
        value = value[k] if isinstance(value, tuple) and k < len(value) else None
    return value


def count_of(run: Run, uses: Any, key: Group) -> int:
    return sum(run.maker[use.value][0] == key[0] and run.maker[use.value][2] == key[1] for use in uses or ())


def total_of(run: Run, uses: Any, key: Group) -> Any:
    chosen = [use for use in uses or () if run.maker[use.value][0] == key[0] and run.maker[use.value][2] == key[1]]
    return sum(numel(run.values[use.value].shape) for use in chosen)


def item_text(items: Sequence[Folded], position: Position) -> str:
    """A leaf in words."""
    leaf = dict(leaves(items))[position]
    return f"{leaf.key[1]} in {leaf.key[2] or 'the model'}"


def common(paths: set[str]) -> str:
    """One path for all: with a star for each index in which they differ."""
    if len(paths) == 1:
        return next(iter(paths))
    parted = [path.split(".") for path in sorted(paths)]
    if len({len(path) for path in parted}) > 1:
        return template(min(paths))
    return ".".join(parts[0] if len(set(parts)) == 1 else loosened(parts[0]) for parts in zip(*parted, strict=True))


def depends_on_iteration(size: sp.Expr) -> bool:
    """Whether a size differs from one repetition to the next: loop indices alone may be zero."""
    return any(not s.is_positive for s in size.free_symbols)
