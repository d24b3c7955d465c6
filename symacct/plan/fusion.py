"""The kernels of a step: each op by itself, or element-wise ops merged as a compiler would merge them.

The rule of merging. An element-wise op (one value for each element: arithmetic, activations, casts, copies,
masks, dropout) joins the element-wise ops that made its operands if it works on as many elements, in the same
phase and the same loops, and nothing outside stands between them, made from one and read by the other. A
merged kernel reads each tensor from outside once, and writes a tensor only if something outside reads it or
nothing reads it at all. Products, reductions, norms, lookups, the foreach ops of an optimizer and whatever
works in place stay kernels of their own.

So a chain whose tensors have one consumer each moves its first operands and its last result; a tensor that
backward reads again is still written, but not read back in forward. FLOPs are the same, bytes never more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import sympy as sp
from sympy import Expr

from symacct.account import Entry, Ledger, add
from symacct.dtypes import FLOATING
from symacct.graph import SOURCES, Graph, Placed, Ref, Tensor, total_over
from symacct.rules import find

ZERO = sp.Integer(0)
_COPIES = frozenset(
    f"aten.{name}"
    for name in ("_to_copy", "clone", "where", "masked_fill", "native_dropout", "native_dropout_backward")
)
_SCATTERED = frozenset({"aten.as_strided", "aten.unfold"})  # views that may show an element twice


@dataclass(frozen=True, slots=True)
class Kernel:
    """Ops that run as one, in execution order. Bytes over all repetitions; products multiply in `dtype`."""

    entries: tuple[Entry, ...]
    read: Expr
    written: Expr
    dtype: str

    @property
    def bytes(self) -> Expr:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def product(self) -> Expr:
        """FLOPs of matrix products, repeated work included, pairs behind a causal mask left out."""
        return sp.Add(*(least_product(entry) for entry in self.entries))

    @property
    def other(self) -> Expr:
        """FLOPs of all other arithmetic."""
        return sp.Add(*(e.elementwise + e.reduction + e.transcendental for e in self.entries))

    @property
    def last(self) -> Entry:
        """The op that gives the kernel its name, module and line."""
        return self.entries[-1]

    @property
    def times(self) -> Expr:
        """How often it is launched."""
        return self.last.place.times


def least_product(entry: Entry) -> Expr:
    """The product FLOPs that a kernel cannot avoid: of causal attention the unmasked pairs, else all."""
    return entry.product if entry.causal is None else entry.causal


def executed(ledger: Ledger) -> Expr:
    """Product FLOPs that hardware must do, without the optimizer's: with what backward computes again, and of
    causal attention the unmasked pairs. As the roofline counts, whatever the convention.
    """
    return add(least_product(entry) for entry in ledger.entries if entry.phase != "optimizer")


def kernels(ledger: Ledger, fused: bool = False) -> tuple[Kernel, ...]:
    """The kernels that a step launches: nothing for views, allocations and questions of sizes."""
    launched = [
        entry for entry in ledger.entries if entry.read != 0 or entry.written != 0 or entry.product != 0
    ]
    if fused:
        return _Merging(ledger.graph, launched).kernels()
    tensors = ledger.graph.tensors()
    return tuple(_alone(entry, tensors) for entry in launched)


def _alone(entry: Entry, tensors: dict[str, Tensor]) -> Kernel:
    operands = [tensors[ref.value].dtype for ref in entry.place.node.refs]
    floating = (dtype for dtype in operands if dtype in FLOATING)
    dtype = next(floating, operands[0] if operands and entry.product != 0 else entry.dtype)
    return Kernel((entry,), entry.read, entry.written, dtype)


def launches(found: tuple[Kernel, ...]) -> Expr:
    """How many kernels are launched, as a formula. A lower bound: an op is at least one kernel."""
    return add(kernel.times for kernel in found)


@dataclass
class _Merging:
    """Groups of launched ops, numbered; `before[g]` is the set of groups that g waits for, as bits."""

    graph: Graph
    launched: list[Entry]
    tensors: dict[str, Tensor] = field(init=False)
    same: dict[str, str] = field(default_factory=dict)
    group: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    writers: dict[str, list[int]] = field(default_factory=dict)
    mergeable: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = self.graph.tensors()
        self.changed = {
            (place.node.phase == "optimizer", out)
            for place in self.graph.ops
            for out in _changed(place, self.tensors)
        }
        self._resolve_views()

    def _resolve_views(self) -> None:
        """For each value the first one with the very same elements."""
        for place in self.graph.ops:
            node, refs = place.node, list(place.node.refs)
            rule = find(node.op)
            if (
                rule is None
                or not rule.view
                or node.op in _SCATTERED
                or len(refs) != 1
                or len(node.outputs) != 1
            ):
                continue
            seen = self.tensors[refs[0].value]
            if (
                refs[0].back == 0
                and refs[0].shape is None
                and sp.expand(seen.numel - node.outputs[0].numel) == 0
            ):
                self.same[node.outputs[0].value] = self.same.get(seen.value, seen.value)

    def kernels(self) -> tuple[Kernel, ...]:
        """Each group at the place of its last op."""
        for at, entry in enumerate(self.launched):
            self._place(at, entry)
        members: dict[int, list[int]] = {}
        for at in range(len(self.launched)):
            members.setdefault(self.group[at], []).append(at)
        outside = self._outside()
        made = [self._kernel(found, outside) for found in members.values()]
        order = {id(entry): at for at, entry in enumerate(self.launched)}
        return tuple(sorted(made, key=lambda kernel: order[id(kernel.last)]))

    def _place(self, at: int, entry: Entry) -> None:
        """Put an op into a new group, then merge that with its operands' groups."""
        node = entry.place.node
        makers = {self.group[w] for ref in _now(node.refs) for w in self.writers.get(self._storage(ref), ())}
        self.group[at] = at
        self.before[at] = 0
        for g in makers:
            self.before[at] |= self.before[g] | 1 << g
        for storage in {*(out.storage for out in node.outputs), *_changed(entry.place, self.tensors)}:
            self.writers.setdefault(storage, []).append(at)
        if not self._elementwise(entry):
            return
        for ref in _now(node.refs):
            value = self.same.get(ref.value, ref.value)
            maker, *_ = self.writers.get(value, [None])
            if maker is not None and self._alike(self.launched[maker], entry):
                self._merge(self.group[maker], self.group[at])

    def _merge(self, a: int, b: int) -> None:
        """Make one group of two, unless a third would have to run between them."""
        if a == b or any(
            self.before[g] >> a & 1 and self.before[b] >> g & 1 for g in self.before if g not in (a, b)
        ):
            return
        if self.before[a] >> b & 1:
            return
        joined = (self.before[a] | self.before[b]) & ~(1 << a | 1 << b)
        del self.before[b]
        self.before[a] = joined
        for g, waits in self.before.items():
            if waits >> a & 1 or waits >> b & 1:
                self.before[g] = (waits | joined | 1 << a) & ~(1 << b)
        self.group = {at: a if g == b else g for at, g in self.group.items()}

    def _alike(self, one: Entry, other: Entry) -> bool:
        return (
            one.phase == other.phase
            and one.place.loops == other.place.loops
            and self._elementwise(one)
            and sp.expand(one.place.node.outputs[0].numel - other.place.node.outputs[0].numel) == 0
        )

    def _elementwise(self, entry: Entry) -> bool:
        name = entry.place.node.name
        if name not in self.mergeable:
            self.mergeable[name] = self._one_for_one(entry)
        return self.mergeable[name]

    def _one_for_one(self, entry: Entry) -> bool:
        """Whether an op makes a value for each element, and nothing works in place on what it touches."""
        node, rule = entry.place.node, find(entry.op)
        kind = rule is not None and (rule.price.__module__.endswith(".pointwise") or node.op in _COPIES)
        if not kind or not node.outputs or any(out.value != out.storage for out in node.outputs):
            return False
        stepping = node.phase == "optimizer"
        touched = {
            (stepping, s) for s in (*map(self._storage, node.refs), *(out.storage for out in node.outputs))
        }
        once = {ref.value: self._shown(ref) for ref in node.refs}
        plain = sp.expand(total_over(sp.Add(*once.values()), entry.place.loops) - entry.read) == 0
        return plain and not touched & self.changed

    def _outside(self) -> dict[str, set[int | None]]:
        """The groups that read each storage; None for a reader that no merged kernel can be."""
        readers: dict[str, set[int | None]] = {}
        for at, entry in enumerate(self.launched):
            for ref in entry.place.node.refs:
                whole = ref.back == 0 and self.same.get(ref.value, ref.value) == self._storage(ref)
                readers.setdefault(self._storage(ref), set()).add(self.group[at] if whole else None)
        for place in self.graph.placed():
            if place.node.op in SOURCES:
                for out in place.node.outputs:
                    readers.setdefault(out.storage, set()).add(None)
        return readers

    def _kernel(self, found: list[int], outside: dict[str, set[int | None]]) -> Kernel:
        entries = tuple(self.launched[at] for at in found)
        if len(entries) == 1:
            return _alone(entries[0], self.tensors)
        loops, group = entries[0].place.loops, self.group[found[0]]
        inside = {out.value for entry in entries for out in entry.place.node.outputs}
        read: dict[str, Expr] = {}
        written = []
        for entry in entries:
            for ref in entry.place.node.refs:
                value = self.same.get(ref.value, ref.value)
                if value not in inside or ref.back:
                    read.setdefault(f"{value} {ref.back}", self._shown(ref))
            written += [
                out.bytes for out in entry.place.node.outputs if outside.get(out.value, {None}) != {group}
            ]
        over = lambda parts: sp.expand(total_over(sp.Add(*parts), loops))  # noqa: E731
        return Kernel(entries, over(read.values()), over(written), entries[-1].dtype)

    def _storage(self, ref: Ref) -> str:
        return self.tensors[ref.value].storage

    def _shown(self, ref: Ref) -> Expr:
        tensor = self.tensors[ref.value]
        shape = ref.shape if ref.shape is not None else tensor.shape
        return sp.Mul(ref.times, *shape) * tensor.width


def _now(refs: Iterator[Ref]) -> Iterator[Ref]:
    """Operands of this iteration."""
    return (ref for ref in refs if ref.back == 0)


def _changed(place: Placed, tensors: dict[str, Tensor]) -> Iterator[str]:
    """The storages that a node writes into although another made them."""
    node, rule = place.node, find(place.node.op)
    if rule is not None and rule.view:
        return
    yield from (out.storage for out in node.outputs if out.storage != out.value)
    if node.op.endswith("_") or not node.outputs:
        yield from (tensors[ref.value].storage for ref in node.refs)
