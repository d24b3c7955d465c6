"""In which order in memory some kernels write their results, where torch's own shape functions say another.

Of operands that are transposed, expanded or sliced views a shape function made of other ops may keep another
operand's order than the kernel does. A reshape behind it then copies in the one and not in the other.

The orders are those of the CPU's kernels. CUDA's are the same where both are one structured kernel, one
TensorIterator, or allocate in the same words of ATen's source; those of ON_CPU are the CPU's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from symacct.tracing.private import FakeTensor

Arguments = tuple[Any, ...]
Order = Callable[[Arguments, torch.Tensor], torch.Tensor | None]


def _as_product(*positions: int) -> Order:
    """One TensorIterator over these two or three operands, in this order, as a product of them."""

    def order(args: Arguments, _: torch.Tensor) -> torch.Tensor | None:
        operands = [args[k] for k in positions if k < len(args) and isinstance(args[k], torch.Tensor)]
        if len(operands) == 3:
            return torch.addcmul(*operands)
        return torch.mul(*operands) if len(operands) == 2 else None

    return order


def _as_operand(position: int) -> Order:
    """As `empty_like` of this operand: its own order where it is dense, else the nearest dense one."""
    return lambda args, _: torch.empty_like(args[position])


def _in_rows(_: Arguments, out: torch.Tensor) -> torch.Tensor:
    """Row by row, whatever the operands' order (LEGACY_CONTIGUOUS_MEMORY_FORMAT, or no strides given)."""
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def _as_images(position: int) -> Order:
    """In rows, or by `suggest_memory_format` with channels last where this operand has them last."""

    def order(args: Arguments, _: torch.Tensor) -> torch.Tensor:
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(args[position].dim())
        kept = last is not None and args[position].is_contiguous(memory_format=last)
        return torch.empty_like(args[position], memory_format=last if kept else torch.contiguous_format)

    return order


def _of_scalar(args: Arguments, out: torch.Tensor) -> torch.Tensor | None:
    """A number to the power of a tensor has rows; a tensor to any power, the order of the operands."""
    return None if isinstance(args[0], torch.Tensor) else _in_rows(args, out)


def _scaled(args: Arguments, out: torch.Tensor) -> torch.Tensor:
    """A product with powers of two, which are such powers of a number."""
    return torch.mul(args[0], _in_rows(args, args[1]))


def _of_rrelu(args: Arguments, _: torch.Tensor) -> torch.Tensor:
    """In training a product of noise and gradient, else the gradient of a leaky ReLU."""
    return torch.mul(args[2], args[0]) if args[5] else torch.mul(args[1], args[0])


def _table(**families: tuple[Order, str]) -> dict[str, Order]:
    return {f"aten.{name}": order for order, names in families.values() for name in names.split()}


ORDERS: dict[str, Order] = _table(
    binary=(
        _as_product(0, 1),
        "hardswish_backward hardsigmoid_backward hardtanh_backward logit_backward native_dropout_backward "
        "softplus_backward complex polar copysign div floor_divide heaviside logaddexp logaddexp2 "
        "logical_and logical_or logical_xor special_xlog1py xlogy",
    ),
    swapped=(_as_product(1, 0), "leaky_relu_backward threshold_backward _prelu_kernel_backward"),
    result_last=(_as_product(0, 5), "elu_backward"),
    bounded=(_as_product(0, 1, 2), "clamp"),
    as_first=(_as_operand(0), "binary_cross_entropy huber_loss log_sigmoid_backward uniform"),
    as_second=(_as_operand(1), "binary_cross_entropy_backward"),
    rows=(
        _in_rows,
        "_log_softmax_backward_data mse_loss_backward smooth_l1_loss_backward huber_loss_backward isin "
        "normal poisson nll_loss2d_forward native_layer_norm_backward _weight_norm_interface "
        "rrelu_with_noise",
    ),
    scalar=(_of_scalar, "pow"),
    scaled=(_scaled, "ldexp"),
    rrelu=(_of_rrelu, "rrelu_with_noise_backward"),
)
# CUDA's log-sigmoid writes as its operand lies and its batch norms are cuDNN's, which says its own order; its
# gradient of a group norm has rows even of channels that lie last.
ON_CPU: dict[str, Order] = _table(
    rows=(_in_rows, "log_sigmoid_forward"),
    images=(
        _as_images(0),
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_batch_norm_no_update _batch_norm_with_update",
    ),
    gradients=(_as_images(1), "native_batch_norm_backward batch_norm_backward native_group_norm_backward"),
)


def laid(op: str, args: Arguments, kwargs: dict[str, Any], result: Any, device: str) -> Any:
    """What an op gives on fake tensors, in the order in memory in which the device's kernel writes it."""
    order = ORDERS.get(op) or (ON_CPU.get(op) if device == "cpu" else None)
    if order is None or kwargs.keys() & {"out", "grad_input"}:
        return result
    if isinstance(result, (list, tuple)):
        return type(result)(_laid(order, args, one) for one in result)
    return _laid(order, args, result)


def _laid(order: Order, args: Arguments, out: Any) -> Any:
    if not isinstance(out, FakeTensor) or out.dim() < 2:
        return out
    like = order(args, out)
    if like is None or tuple(like.shape) != tuple(out.shape):  # a sum, or a result of another shape beside it
        return out
    return torch.empty_like(like, dtype=out.dtype)
