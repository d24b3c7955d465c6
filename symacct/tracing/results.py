"""What a call gave back: the bytes that a new storage takes, and which parts of the result are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy as sp
import torch

from symacct.tracing.private import FakeTensor, expression_of

Arguments = Mapping[str, Any]


def bytes_of(tensor: torch.Tensor) -> Any:
    """Bytes of a new storage: those of the tensor that it was made for."""
    return _numel(tensor) * tensor.element_size()


def room_of(tensor: torch.Tensor) -> Any:
    """Bytes of the storage that a tensor lies in, of which it may be a part, or which it may show many times."""
    room = expression_of(tensor.untyped_storage().nbytes())
    return sp.expand(room) if isinstance(room, sp.Basic) else room


def rooms(op: str, arguments: Arguments, result: Any, device: str) -> Iterator[tuple[torch.Tensor, Any]]:
    """Results whose storages are not as large as they are, and how large these are: as a real run has them, else by
    the rules below."""
    parts = result if isinstance(result, (list, tuple)) else (result,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    real = [t for t in tensors if not isinstance(t, FakeTensor) and t.layout is torch.strided]
    yield from ((t, t.untyped_storage().nbytes()) for t in real)
    if op in ROOMS and not real:
        yield from ROOMS[op](arguments, tensors, device)


def _unreduced(arguments: Arguments, results: list[torch.Tensor], device: str) -> Iterator[tuple[torch.Tensor, Any]]:
    """A loss that is written whole and then shrunk to one number keeps the room (aten/src/ATen/native/Loss.cpp)."""
    if arguments.get("reduction", 1) != 0:
        yield results[0], _numel(arguments["self"]) * results[0].element_size()


def _columns(arguments: Arguments, results: list[torch.Tensor], device: str) -> Iterator[tuple[torch.Tensor, Any]]:
    """What is made as large as its operand, and resized then (Im2Col.cpp, Col2Im.cpp, and the same for CUDA)."""
    room = sp.Max(_numel(arguments["self"]), _numel(results[0]))
    yield results[0], room * results[0].element_size()


def _bags(arguments: Arguments, results: list[torch.Tensor], device: str) -> Iterator[tuple[torch.Tensor, Any]]:
    """On a CPU the bag of each index has a place more, and the sizes of bags one for the last offset (EmbeddingBag.cpp)."""
    if device == "cpu":
        if arguments.get("mode", 0):
            yield results[1], (_numel(results[1]) + 1) * results[1].element_size()
        if arguments.get("include_last_offset", False):
            yield results[2], _numel(arguments["offsets"]) * results[2].element_size()


def _numel(tensor: torch.Tensor) -> Any:
    total: Any = 1
    for size in tensor.shape:
        total = total * expression_of(size)
    return total


ROOMS: dict[str, Callable[[Arguments, list[torch.Tensor], str], Iterator[tuple[torch.Tensor, Any]]]] = {
    "aten.mse_loss": _unreduced,
    "aten.smooth_l1_loss": _unreduced,
    "aten.soft_margin_loss": _unreduced,
    "aten.binary_cross_entropy": _unreduced,
    "aten.col2im": _columns,
    "aten.im2col": _columns,
    "aten._embedding_bag": _bags,
    "aten._embedding_bag_forward_only": _bags,
}


def positions(result: Any) -> tuple[int, ...] | None:
    """Which parts of a result are tensors; None when the result is one tensor itself."""
    if isinstance(result, (list, tuple)):
        return tuple(k for k, part in enumerate(result) if isinstance(part, torch.Tensor))
    return None if isinstance(result, torch.Tensor) else ()
