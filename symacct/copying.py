"""Copies that a model's code could have avoided, by four stated rules. No torch.

- *repeated*: a copy of an expanded tensor (repeat_interleave, repeat, expand and reshape): each element is
  written several times. Where it leads into an attention product, these are keys or values of shared heads: a
  kernel that takes grouped heads (`enable_gqa=True`) or a product that broadcasts reads them as they are.
- *layout*: the same elements laid out anew, for contiguous() or a reshape that is no view, or because a
  product of transposed operands asks for it. A kernel that reads strides needs no copy.
- *clone*: the same elements in the same order, asked for by clone().
- *round trip*: a cast back to the dtype that the same elements had before a cast to another one, with views
  alone in between, where that other one holds every value of theirs. A cast to one that does not (to integers,
  to truth values, to fewer digits or a smaller range) is none: it is asked for what it drops.

A copy is needed, and none of these, where something is written into it in place and what it was copied from is
used after that, or the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy as sp
from sympy import Expr

from symacct.account import Entry, Ledger, saved_bytes
from symacct.dtypes import holds_every
from symacct.graph import Graph, Node, Placed, Ref, Tensor

_PHASES = ("forward", "loss")
_COPIES = ("aten.clone", "aten.repeat", "aten.repeat_interleave", "aten.contiguous")
_SAME_ORDER = (None, "torch.preserve_format")
_CAST = "aten._to_copy"
_WRITTEN = ("out", "running_mean", "running_var")  # operands that are written into, of whatever op
_PRODUCTS = ("aten.bmm", "aten.baddbmm", "aten._scaled_dot_product", "aten.matmul", "aten._flash_attention")


@dataclass(frozen=True, slots=True)
class Copy:
    """One avoidable copy: the rule that it falls under, how to avoid it, the bytes that it moves, and those
    that it keeps for backward, over all repetitions."""

    entry: Entry
    rule: str
    advice: str
    kept: Expr

    @property
    def moved(self) -> Expr:
        """Bytes read and written."""
        return self.entry.read + self.entry.written


def copies(ledger: Ledger) -> tuple[Copy, ...]:
    """The avoidable copies of the forward pass, in execution order."""
    chains = _Chains(ledger.graph)
    kept = saved_bytes(ledger.graph)
    found = []
    for entry in ledger.entries:
        judged = chains.judged(entry.place) if entry.phase in _PHASES else None
        if judged is not None:
            found.append(Copy(entry, *judged, kept.get(entry.place.node.outputs[0].value, sp.Integer(0))))
    return tuple(found)


class _Chains:
    """What each tensor is a view of, and what the views of a result lead to."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors()
        self.maker = {out.value: place for place in graph.placed() for out in place.node.outputs}
        self.writes = _Writes(graph, self.tensors, self.maker)
        self.users: dict[str, list[Placed]] = {}
        for place in graph.ops:
            for value in dict.fromkeys(ref.value for ref in place.node.refs):
                self.users.setdefault(value, []).append(place)

    def judged(self, place: Placed) -> tuple[str, str] | None:
        """Rule and advice for a node; None for one that is no avoidable copy."""
        node = place.node
        ref = next(node.refs, None)
        if ref is None or len(node.outputs) != 1 or node.outputs[0].storage != node.outputs[0].value:
            return None
        if node.op == _CAST:
            return self._cast(ref, node.outputs[0]) or self._there(node.outputs[0])
        if node.op not in _COPIES or self.writes.part(place, ref.value, node.outputs[0].value):
            return None
        if self._repeats(ref, node.outputs[0]):
            # An element of an expanded tensor cannot be written into without its likes.
            written = self.writes.after(place, node.outputs[0].value)
            return None if written else ("repeated", self._of_repeated(node.outputs[0]))
        if any(name == "memory_format" and value not in _SAME_ORDER for name, value in node.arguments):
            return (
                "layout",
                "the same elements laid out anew; a kernel that reads strides needs none, nor does what lies so already",
            )
        return "clone", "the same elements in the same order; nothing is written into one while the other is used"

    def _above(self, value: str) -> Iterator[Placed]:
        """The views that a value is the last of, innermost first, and then the node that made the storage."""
        while value in self.maker:
            place = self.maker[value]
            yield place
            out = self.tensors[value]
            ref = next(place.node.refs, None)
            if out.storage == out.value or ref is None:
                return
            value = ref.value

    def _repeats(self, ref: Ref, out: Tensor) -> bool:
        if sp.expand(self.tensors[ref.value].numel - out.numel) != 0:
            return True  # aten.repeat
        return any(place.node.op == "aten.expand" and self._grows(place) for place in self._above(ref.value))

    def _grows(self, place: Placed) -> bool:
        given = next(place.node.refs)
        return sp.expand(self.tensors[given.value].numel - place.node.outputs[0].numel) != 0

    def _of_repeated(self, out: Tensor) -> str:
        if any(place.node.op.startswith(_PRODUCTS) for place in self._below(out.value)):
            return (
                "shared heads, written once for each reader; enable_gqa=True or a broadcast product reads "
                "them as they are"
            )
        return (
            "an expanded tensor, each element written several times; an op that broadcasts needs no copy"
        )

    def _below(self, value: str) -> Iterator[Placed]:
        """What reads a value or a view of it, copies looked through."""
        todo, met = [value], {value}
        while todo:
            for place in self.users.get(todo.pop(), ()):
                yield place
                view = any(out.storage != out.value for out in place.node.outputs) or place.node.op in (
                    *_COPIES,
                    "aten.mul",
                )
                for out in place.node.outputs if view else ():
                    if out.value not in met:
                        met.add(out.value)
                        todo.append(out.value)

    def _there(self, out: Tensor) -> tuple[str, str] | None:
        """A cast of which nothing but casts back is read: with those it goes, too."""
        todo, back = [out.value], 0
        while todo:
            for place in self.users.get(todo.pop(), ()):
                outs = place.node.outputs
                if outs and all(made.storage != made.value for made in outs):
                    todo += [made.value for made in outs]
                elif place.node.op == _CAST and self._cast(next(place.node.refs), outs[0]) is not None:
                    back += 1
                else:
                    return None
        return ("round trip", "only casts back read it; leave both out") if back else None

    def _cast(self, ref: Ref, out: Tensor) -> tuple[str, str] | None:
        source = list(self._above(ref.value))[-1:]
        if not source or source[0].node.op != _CAST or ref.back:
            return None
        first, middle = source[0], source[0].node.outputs[0]
        before = next(first.node.refs, None)
        if before is None or self.tensors[before.value].dtype != out.dtype:
            return None
        if self.tensors[ref.value].dtype != middle.dtype:  # seen through a view as another one
            return None
        if not holds_every(middle.dtype, out.dtype) or self.writes.after(first, middle.value):
            return None
        if self.writes.part(first, before.value, out.value):
            return None
        return "round trip", f"{out.dtype} to {middle.dtype} and back, with views alone in between; keep the first"


class _Writes:
    """What the forward pass writes into in place, and when."""

    def __init__(self, graph: Graph, tensors: dict[str, Tensor], maker: dict[str, Placed]) -> None:
        self.deaths, self.tensors, self.maker = graph.deaths or {}, tensors, maker
        self.order = {place.node.name: at for at, place in enumerate(graph.placed())}
        self.writes: dict[str, list[Placed]] = {}
        self.reads: dict[str, list[Placed]] = {}
        for place in graph.ops:
            for storage in self._storages(place.node):
                self.reads.setdefault(storage, []).append(place)
            for storage in self._storages(_into(place.node)) if place.node.phase in _PHASES else ():
                self.writes.setdefault(storage, []).append(place)

    def part(self, since: Placed, one: str, other: str) -> bool:
        """Whether one of two values that are equal at a node is written into later, and the other used after it."""
        pairs = ((one, other), (other, one))
        return any(self._used(idle, write) for into, idle in pairs for write in self.after(since, into))

    def after(self, place: Placed, value: str) -> list[Placed]:
        """The writes into a value's storage that may come after a node."""
        storage = self.tensors[value].storage
        return [write for write in self.writes.get(storage, ()) if self._later(write, place, storage)]

    def _used(self, value: str, write: Placed) -> bool:
        """Whether a value's storage is read by a write or after it, or is there to the end of the step."""
        storage = self.tensors[value].storage
        ends = self.deaths.get(storage, ())
        if not ends or any(not death.after for death in ends):
            return True
        return any(read is write or self._later(read, write, storage) for read in self.reads.get(storage, ()))

    def _later(self, one: Placed, other: Placed, storage: str) -> bool:
        """Whether a node may run after another. What is earlier in a repetition of a loop runs after the other of
        the repetition before, which matters to a storage from outside of it or handed on to the next."""
        born = self.maker[storage].loops if storage in self.maker else ()
        for loop in one.loops:
            if any(loop is around for around in other.loops) and not any(loop is around for around in born):
                return True
        return self._handed(one, storage) or self.order[one.node.name] > self.order[other.node.name]

    def _handed(self, place: Placed, storage: str) -> bool:
        """Whether a node sees a storage of an earlier repetition, itself or by a view."""
        for ref in place.node.refs:
            value, back = ref.value, ref.back
            if self.tensors[value].storage != storage:
                continue
            while not back and value != storage and value in self.maker:
                above = next(self.maker[value].node.refs, None)
                if above is None or self.tensors[above.value].storage != storage:
                    break
                value, back = above.value, above.back
            if back:
                return True
        return False

    def _storages(self, node: Node) -> list[str]:
        return list(dict.fromkeys(self.tensors[ref.value].storage for ref in node.refs))


def _into(node: Node) -> Node:
    """A node with no operands but those that it writes into."""
    into = node.arguments[:1] if node.op.endswith("_") else ()
    return replace(node, arguments=(*into, *(pair for pair in node.arguments if pair[0] in _WRITTEN)))
