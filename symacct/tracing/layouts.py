"""In which order in memory some kernels write their results, where torch's own shape functions say another.

Of operands that are transposed views a shape function made of other ops may keep another operand's order
than the kernel does. A reshape behind it then copies in the one and not in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Arguments = tuple[Any, ...]


def _as_product(first: int, second: int) -> Callable[[Arguments, dict[str, Any]], Any]:
    """One TensorIterator over these operands, in this order, as a product of both."""

    def made(args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) <= max(first, second) or "grad_input" in kwargs:
            return None
        return torch.mul(args[first], args[second])

    return made


def _plain(shaped_as: int, typed: int | None = None) -> Callable[[Arguments, dict[str, Any]], Any]:
    """Written row by row, whatever the operands' order (LEGACY_CONTIGUOUS_MEMORY_FORMAT); `typed` is the
    number of the argument that names the type."""

    def made(args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) <= max(shaped_as, typed or 0) or kwargs.keys() & {"out", "grad_input"}:
            return None
        dtype = None if typed is None else args[typed]
        return torch.empty_like(args[shaped_as], dtype=dtype, memory_format=torch.contiguous_format)

    return made


ORDERS: dict[str, Callable[[Arguments, dict[str, Any]], Any]] = {
    "aten.elu_backward": _as_product(0, 5),
    "aten.hardswish_backward": _as_product(0, 1),
    "aten.hardsigmoid_backward": _as_product(0, 1),
    "aten.hardtanh_backward": _as_product(0, 1),
    "aten.leaky_relu_backward": _as_product(1, 0),
    "aten.logit_backward": _as_product(0, 1),
    "aten.native_dropout_backward": _as_product(0, 1),
    "aten.softplus_backward": _as_product(0, 1),
    "aten.threshold_backward": _as_product(1, 0),
    "aten._log_softmax_backward_data": _plain(1, typed=3),
    "aten.mse_loss_backward": _plain(1),
    "aten.smooth_l1_loss_backward": _plain(1),
    "aten.huber_loss_backward": _plain(1),
}
