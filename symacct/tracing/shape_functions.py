"""Results of ops whose own shape functions turn symbols into numbers, or pad what they allocate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from symacct.tracing.layouts import laid
from symacct.tracing.private import FakeTensor


def padded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of constant_pad_nd on symbolic sizes, which its own shape function turns into numbers; else None."""
    tensor, pad = args[0], args[1]
    if not any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *pad)):
        return None
    shape = list(tensor.shape)
    for k in range(len(pad) // 2):
        shape[-1 - k] = shape[-1 - k] + pad[2 * k] + pad[2 * k + 1]
    return tensor.new_empty(shape)


def polar(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Complex numbers from lengths and angles of symbolic sizes, which polar's own shape function turns into numbers."""
    lengths, angles = args
    if not any(isinstance(size, torch.SymInt) for size in (*lengths.shape, *angles.shape)):
        return None
    return torch.empty_like(lengths * angles, dtype=lengths.dtype.to_complex())


def attention_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor | None, ...] | None:
    """Gradients of memory-efficient attention, shaped as its operands; torch's shape function pads that of the bias."""
    query, key, value, bias, mask = *args[1:5], args[10]
    return tuple(
        operand.new_empty(operand.shape) if wanted and operand is not None else None
        for operand, wanted in zip((query, key, value, bias), mask, strict=True)
    )


def norm_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor | None, ...] | None:
    """Gradients of a group norm; torch's shape function wants a view that a transposed gradient has not."""
    x, weight, mask = args[1], args[4], args[9]
    if not isinstance(x, FakeTensor) or weight is None:
        return None
    like = (x, weight, weight)  # the weights' may be wider than the activations
    return tuple(x.new_empty(tensor.shape, dtype=tensor.dtype) if wanted else None for tensor, wanted in zip(like, mask, strict=True))


def elementwise_lists(op: str, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """The results of an elementwise op on lists of tensors; None in place. Torch's go through ones that take no symbols."""
    if op.endswith("_"):
        return None
    if not isinstance(args[0], (list, tuple)):  # a number, raised to the powers in a list
        args = (args[1], args[0])
    others = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) and isinstance(args[1][0], torch.Tensor) else args[0]
    return [torch.empty_like(one, dtype=torch.result_type(one, other)) for one, other in zip(args[0], others, strict=True)]


def _listed(args: tuple[Any, ...]) -> Any:
    """The first list among the operands."""
    return next(argument for argument in args if isinstance(argument, (list, tuple)))


def result_of(op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str = "") -> Any:
    """What a call gives: from one of the functions above where it has one, else from torch, laid as the device does."""
    if op in _OF_ONE_DTYPE:
        of_one_dtype(op, args)
    if op.startswith("aten._foreach_") and op not in _REDUCING and any(isinstance(s, torch.SymInt) for t in _listed(args) for s in t.shape):
        return elementwise_lists(op, args)
    if op.startswith("aten._fused_") and op.endswith("_") and isinstance(args[0][0], FakeTensor):
        return None  # in place; some have no shape function
    made = RESULTS[op](args, kwargs) if op in RESULTS else None
    return laid(op, args, kwargs, func(*args, **kwargs) if made is None else made, device)


def of_one_dtype(op: str, args: tuple[Any, ...]) -> None:
    """Raise as a kernel does for operands of unlike dtypes, which torch's shape functions of these products let pass."""
    dtypes = dict.fromkeys(str(arg.dtype).removeprefix("torch.") for arg in args if isinstance(arg, torch.Tensor))
    if len(dtypes) > 1:
        raise RuntimeError(f"{op} takes operands of one dtype, but got {' and '.join(dtypes)}")


class Shaping(TorchDispatchMode):
    """Gives these results outside of a recording, too: an optimizer's first step is not recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return result_of(f"{func.namespace}.{func._schema.name.partition('::')[2]}", func, args, kwargs or {})


_OF_ONE_DTYPE = frozenset(f"aten.{name}" for name in ("mm", "addmm", "mv", "addmv", "convolution"))
_REDUCING = ("aten._foreach_norm", "aten._foreach_max", "aten._foreach_powsum")
RESULTS: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {
    "aten.constant_pad_nd": padded,
    "aten.polar": polar,
    "aten._scaled_dot_product_efficient_attention_backward": attention_gradients,
    "aten.native_group_norm_backward": norm_gradients,
}
