"""Results of ops whose own shape functions turn symbols into numbers, or pad what they allocate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def padded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of constant_pad_nd on symbolic sizes, which its own shape function turns into numbers; else None."""
    tensor, pad = args[0], args[1]
    if not any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *pad)):
        return None
    shape = list(tensor.shape)
    for k in range(len(pad) // 2):
        shape[-1 - k] = shape[-1 - k] + pad[2 * k] + pad[2 * k + 1]
    return tensor.new_empty(shape)


def attention_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor | None, ...] | None:
    """Gradients of memory-efficient attention, shaped as its operands; torch's shape function pads that of the bias."""
    query, key, value, bias, mask = *args[1:5], args[10]
    return tuple(
        operand.new_empty(operand.shape) if wanted and operand is not None else None
        for operand, wanted in zip((query, key, value, bias), mask, strict=True)
    )


RESULTS: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {
    "aten.constant_pad_nd": padded,
    "aten._scaled_dot_product_efficient_attention_backward": attention_gradients,
}
