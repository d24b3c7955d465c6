"""Views whose backward autograd makes anew, because an op wrote into their storage.

A view of a real tensor then hangs off its base by one AsStridedBackward0. For fake tensors torch makes the
views between the base and it again, one by one: views that no code asked for, each with a backward of its
own, which together hold other memory than the one. Here those views are taken out of the trace, and of a
chain of them the backward of a real tensor is done.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from symacct.records import Record, Trace
from symacct.tracing import private

_ALWAYS = frozenset(  # of real tensors too
    {"aten._conj", "aten._neg_view", "aten.view_as_complex", "aten.view_as_real"}
)
Layout = tuple[Sequence[Any], Sequence[Any], Any]  # sizes, strides, and where the first element lies


class Recording(Protocol):
    """What records: while it is paused, ops run unseen."""

    trace: Trace
    paused: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A base or a view of it: the op that made it, the number of its backward's node, and how it lies."""

    tensor: weakref.ref[torch.Tensor]
    op: str
    node: int
    layout: Layout


_Stretch = tuple[_Seen, list[_Seen]]  # a tensor, and views in a row that are one `as_strided` of it


class Regenerated:
    """Tells the views that autograd makes again from those of the code: all of them, from the base on, die
    before any other op runs, while their nodes live on."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._chain: list[_Seen] = []  # a base, and what may be views of it made again
        self._stretches: list[_Stretch] = []

    def gone(self, is_view: bool, operand: Any) -> list[tuple[int, Record]]:
        """Call before an op on this first operand is recorded: the views made again before it, which are out
        of the trace now, each with the number of its node."""
        if not self._chain:
            return []
        last = self._chain[-1].tensor()
        if last is not None:
            if not is_view or last is not operand:
                self._chain.clear()
            return []
        chain, self._chain = self._chain, []
        if any(seen.tensor() is not None for seen in chain[1:]):
            return []
        self._stretches += _stretches(chain)
        records = self._recording.trace.cut(len(chain) - 1)
        return list(zip((seen.node for seen in chain[1:]), records, strict=True))

    def made(self, op: str, operand: torch.Tensor, view: Any) -> None:
        """Call when a view was recorded."""
        if not isinstance(view, torch.Tensor) or not torch.is_grad_enabled():
            self._chain.clear()
            return
        if not self._chain:
            if operand._base is not None or operand.is_inference() or not operand._version:
                return
            self._chain.append(_seen("", operand))
        self._chain.append(_seen(op, view))

    def replace(self, roots: Iterable[Any]) -> None:
        """Call before backward starts from these nodes: of the stretches below them the real one is done."""
        if not self._stretches:
            return
        nodes, waiting = _below(roots), list[_Stretch]()
        for start, views in self._stretches:
            first, last = nodes.get(views[0].node), nodes.get(views[-1].node)
            if first is None or last is None:
                waiting.append((start, views))
            else:
                self._hand_over(first, last, start.layout, views[-1].layout)
        self._stretches = waiting

    def _hand_over(self, first: Any, last: Any, base: Layout, view: Layout) -> None:
        """From the start of the last view's backward to the end of the first's, only a real one is seen."""
        recording, made = self._recording, list[torch.Tensor]()

        def before(gradients: tuple[torch.Tensor | None, ...]) -> None:
            if gradients[0] is not None:
                made.append(_as_strided_backward(gradients[0], base, view))
                recording.paused = True

        def after(*_: Any) -> tuple[torch.Tensor] | None:
            recording.paused = False
            return (made.pop(),) if made else None

        last.register_prehook(before)
        first.register_hook(after)


def _stretches(chain: list[_Seen]) -> Iterator[_Stretch]:
    """As torch's `ViewInfo::chain` does: one up to the first view that it always makes again, then each view
    by itself."""
    cut = next((k for k, seen in enumerate(chain) if seen.op in _ALWAYS), len(chain))
    if cut > 1:
        yield chain[0], chain[1:cut]
    for start, view in pairwise(chain[cut:]):
        if view.op not in _ALWAYS:
            yield start, [view]


def _as_strided_backward(gradient: torch.Tensor, base: Layout, view: Layout) -> torch.Tensor:
    """The ops of torch's function of this name (FunctionsManual.cpp), which takes no symbols where elements
    overlap. Torch leaves out dimensions of 1: a view more, which would make other ops of some sizes."""
    sizes, strides = list[Any](), list[Any]()
    for k, size, stride in reversed(list(zip(range(len(view[0])), *view[:2], strict=True))):
        if size == 0:
            return torch.zeros(tuple(base[0]), dtype=gradient.dtype, device=gradient.device)
        if stride == 0:
            gradient = gradient.squeeze(k) if size == 1 else gradient.sum(k)
        else:
            sizes, strides = [size, *sizes], [stride, *strides]
    shared = min(base[2], view[2])
    inside, outside = (sizes, strides, view[2] - shared), (*base[:2], base[2] - shared)
    storage = gradient.new_zeros(max(_extent(outside), _extent(inside)))
    if _overlaps(inside):
        places = torch.arange(storage.shape[0], device=gradient.device).as_strided(*inside)
        flat = gradient.reshape(-1)  # first, as compiled C++ takes the last argument
        storage.index_add_(0, places.reshape(-1), flat)
    else:
        storage.as_strided(*inside).copy_(gradient)
    return storage.as_strided(*outside)


def _extent(layout: Layout) -> Any:
    """The elements of the least storage that holds these."""
    return layout[2] + 1 + sum((size - 1) * stride for size, stride in zip(*layout[:2], strict=True))


def _overlaps(layout: Layout) -> bool:
    """Whether two elements may lie at one place, as torch's `_maybe_overlapping_memory` judges."""
    reach: Any = 0
    steps = [(stride, size) for size, stride in zip(*layout[:2], strict=True) if size != 1]
    for stride, size in sorted(steps, key=lambda step: step[0]):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _below(roots: Iterable[Any]) -> dict[int, Any]:
    """The nodes that a backward from these goes through, and they, by their numbers."""
    found: dict[int, Any] = {}
    waiting, met = list(roots), set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in met:
            met.add(node)
            found[node._sequence_nr()] = node
            waiting += [following for following, _ in node.next_functions]
    return found


def _seen(op: str, tensor: torch.Tensor) -> _Seen:
    layout = tensor.size(), tensor.stride(), tensor.storage_offset()
    return _Seen(weakref.ref(tensor), op, private.sequence_number(), layout)
