"""Copies that a model's code could have avoided, by four stated rules. No torch.

- *repeated*: a copy of an expanded tensor (repeat_interleave, repeat, expand and reshape): each element is
  written several times. Where it leads into an attention product, these are keys or values of shared heads: a
  kernel that takes grouped heads (`enable_gqa=True`) or a product that broadcasts reads them as they are.
- *layout*: the same elements laid out anew, for contiguous() or a reshape that is no view, or because a
  product of transposed operands asks for it. A kernel that reads strides needs no copy.
- *clone*: the same elements in the same order, asked for by clone().
- *round trip*: a cast back to the floating dtype that the same elements had before a cast to another one,
  with views alone in between and nothing written into them. A cast to integers or truth values is none: it is
  asked for what it drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import Entry, Ledger, saved_bytes
from symacct.dtypes import FLOATING
from symacct.graph import Graph, Placed, Ref, Tensor

_PHASES = ("forward", "loss")
_COPIES = ("aten.clone", "aten.repeat", "aten.repeat_interleave", "aten.contiguous")
_SAME_ORDER = (None, "torch.preserve_format")
_CAST = "aten._to_copy"
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
        into = (next(p.node.refs, None) for p in graph.ops if p.node.op.endswith("_") and p.node.phase in _PHASES)
        self.written = {self.tensors[ref.value].storage for ref in into if ref is not None}
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
            return self._cast(ref, node.outputs[0])
        if node.op not in _COPIES:
            return None
        if self._repeats(ref, node.outputs[0]):
            return "repeated", self._of_repeated(node.outputs[0])
        if any(name == "memory_format" and value not in _SAME_ORDER for name, value in node.arguments):
            return (
                "layout",
                "the same elements laid out anew; a kernel that reads strides needs none, nor does what lies so already",
            )
        return (
            "clone",
            "the same elements in the same order; leave it out where nothing writes into either in place",
        )

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

    def _cast(self, ref: Ref, out: Tensor) -> tuple[str, str] | None:
        source = list(self._above(ref.value))[-1:]
        if not source or source[0].node.op != _CAST or ref.back:
            return None
        before = next(source[0].node.refs, None)
        if before is None or self.tensors[before.value].dtype != out.dtype:
            return None
        middle = source[0].node.outputs[0].dtype
        written = self.written & {source[0].node.outputs[0].storage}
        if written or middle not in FLOATING or out.dtype not in FLOATING:
            return None
        return "round trip", f"{out.dtype} to {middle} and back, with views alone in between; keep the first"
