"""Basic indexing of fake tensors as ATen does it at known sizes: full slices leave no trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from symacct.tracing import private
from symacct.tracing.private import FakeTensor


def getitem(self: torch.Tensor, key: Any) -> Any:
    """Index by plain parts one axis at a time: a symbolic run would dispatch full slices, which a concrete one does not."""
    if not _by_axes(self, key, _is_plain):
        return _gathered(self, key) if _by_axes(self, key, _is_gathering) else private.plain_getitem(self, key)
    result = _index_axes(self, key)
    return torch.ops.aten.alias(self) if result is self else result


def setitem(self: torch.Tensor, key: Any, value: Any) -> None:
    """Assign to what `getitem` finds, by the same ops."""
    if _by_axes(self, key, _is_plain):
        private.plain_setitem(_index_axes(self, key), Ellipsis, value)
    else:
        private.plain_setitem(self, key, value)


def _by_axes(tensor: torch.Tensor, key: Any, fits: Callable[[Any], bool]) -> bool:
    known = isinstance(tensor, FakeTensor) or tensor.is_meta
    return known and isinstance(key, tuple) and len(key) > 1 and all(map(fits, key))


def _is_number(given: Any, number: int) -> bool:
    return given is None or (isinstance(given, int) and given == number)


def _covers(part: slice, length: Any) -> bool:
    """Whether a slice takes an axis whole; of symbols this is only asked where the example sizes say so."""
    if not _is_number(part.start, 0) or not _is_number(part.step, 1):
        return False
    if isinstance(part.stop, int) and isinstance(length, int):
        return part.stop >= length
    if part.stop is None or private.expression_of(part.stop) == private.expression_of(length):
        return True
    sizes = all(isinstance(size, (int, torch.SymInt)) for size in (part.stop, length))
    # of another form, and yet no shorter: a rotated width of twice half a head; that it is so is then assumed
    return sizes and private.example_of(part.stop) >= private.example_of(length) and bool(part.stop >= length)


def _is_plain(part: Any) -> bool:
    if part is None or part is Ellipsis:
        return True
    return isinstance(part, (slice, int, torch.SymInt)) and not isinstance(part, bool)


def _is_gathering(part: Any) -> bool:
    return part is Ellipsis or isinstance(part, slice) or (isinstance(part, list) and all(type(number) is int for number in part))


def _gathered(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    """What lists of positions gather of their axes, where the other axes are sliced."""
    if Ellipsis in parts:
        skipped = (slice(None),) * (tensor.dim() - len(parts) + 1)
        parts = (*parts[: parts.index(Ellipsis)], *skipped, *parts[parts.index(Ellipsis) + 1 :])
    lists = [None if isinstance(part, slice) else torch.tensor(part) for part in parts]
    for axis, part in enumerate(parts):
        if isinstance(part, slice) and not _covers(part, tensor.shape[axis]):
            tensor = _slice(tensor, axis, part)
    return torch.ops.aten.index(tensor, lists)


def _index_axes(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    """Basic indexing one axis at a time, as ATen does it: unsqueeze, select, and slices that are not full; itself if all are."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    result, axis = tensor, 0
    for part in parts:
        if part is Ellipsis:
            axis += tensor.dim() - taken
        elif part is None:
            result, axis = result.unsqueeze(axis), axis + 1
        elif isinstance(part, slice):
            result = result if _covers(part, result.shape[axis]) else _slice(result, axis, part)
            axis += 1
        else:
            result = result.select(axis, part)
    return result


def _slice(tensor: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    start = 0 if part.start is None else part.start
    stop = sys.maxsize if part.stop is None else part.stop
    return torch.ops.aten.slice(tensor, axis, start, stop, 1 if part.step is None else part.step)
