"""What a trace changes in torch, math and numpy while it runs, and nothing of it afterwards.

A replacement acts only on symbolic sizes and fake tensors; any other argument reaches the original. Traces hold
one lock: a second thread that traces waits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torch.optim.optimizer as torch_optimizer

from symacct.tracing import private
from symacct.tracing.private import FakeTensor

LOCK = threading.RLock()
_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_MISSING = object()


@contextlib.contextmanager
def patched(device: str, recompute: Callable[[Any], Any]) -> Iterator[None]:
    """Hold the lock and every patch for the length of one trace."""
    with LOCK, contextlib.ExitStack() as stack:
        _silence(stack)
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(private.set_onednn, private.set_onednn(False))
        for owner, name, new in _everywhere(_functions(device)) + _members(device) + private.checkpoint_hooks(recompute):
            _patch(stack, owner, name, new)
        yield


def _patch(stack: contextlib.ExitStack, owner: Any, name: str, new: Any) -> None:
    old = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)
    if old is _MISSING:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, old)


def _silence(stack: contextlib.ExitStack) -> None:
    """Torch logs errors that the trace handles itself."""
    for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"):
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)


def _everywhere(replacements: dict[int, tuple[Any, Any]]) -> list[tuple[Any, str, Any]]:
    """Every module-level name that is bound to one of these functions, whoever imported it."""
    found = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            new = replacements.get(id(value))
            if new is not None and new[0] is value:
                found.append((module, name, new[1]))
    return found


def _functions(device: str) -> dict[int, tuple[Any, Any]]:
    pairs: list[tuple[Any, Any]] = [(math.sqrt, _sqrt(math.sqrt)), (math.prod, _product(math.prod))]
    if "numpy" in sys.modules:
        pairs.append((sys.modules["numpy"].sqrt, _sqrt(sys.modules["numpy"].sqrt)))
    for name, function in vars(torch.nn.init).items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            pairs.append((function, _no_initialiser(function)))
    pairs.append((F.scaled_dot_product_attention, _attention(F.scaled_dot_product_attention, device)))
    pairs.append((torch_optimizer._get_value, _optimizer_value))
    if device == "cuda":
        pairs.append((torch_optimizer._default_to_fused_or_foreach, _foreach(torch_optimizer._default_to_fused_or_foreach)))
        pairs.append((torch.dropout, _dropout(torch.dropout)))
    return {id(old): (old, new) for old, new in pairs}


def _members(device: str) -> list[tuple[Any, str, Any]]:
    members: list[tuple[Any, str, Any]] = [
        (numbers, "Integral", _Integral),
        (torch.Tensor, "__getitem__", _getitem),
    ]
    members.append(private.grouped_products())
    if device == "cuda":
        members.append((torch._VF, "dropout", _dropout(torch.dropout)))
    return members


class _IntegralMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (_INTEGRAL, torch.SymInt))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _INTEGRAL)


_INTEGRAL = numbers.Integral


class _Integral(metaclass=_IntegralMeta):
    """`numbers.Integral` that knows symbolic sizes (`nn.LayerNorm` asks)."""


def _sqrt(original: Callable[..., Any]) -> Callable[..., Any]:
    def sqrt(x: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, _SYMBOLIC) else original(x, *args, **kwargs)

    return sqrt


def _product(original: Callable[..., Any]) -> Callable[..., Any]:
    def prod(values: Any, /, *, start: Any = 1) -> Any:
        values = list(values)
        if not any(isinstance(value, _SYMBOLIC) for value in values):
            return original(values, start=start)
        for value in values:
            start = start * value
        return start

    return prod


def _no_initialiser(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
        if tensor is None:
            tensor = kwargs.pop("tensor", None)
        return tensor if isinstance(tensor, FakeTensor) else original(tensor, *args, **kwargs)

    return initialise


def _optimizer_value(value: Any) -> Any:
    """An optimizer's step count as a number: its data is unknown here, and costs do not depend on it."""
    if isinstance(value, FakeTensor):
        return 1.0
    return value.item() if isinstance(value, torch.Tensor) else value


def _foreach(original: Callable[..., Any]) -> Callable[..., Any]:
    """On CUDA the optimizers of torch default to their foreach form."""

    def default(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        if any(isinstance(p, FakeTensor) for p in params):
            return False, not differentiable
        return original(params, differentiable, use_fused)

    return default


def _dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    """CUDA's dropout keeps a mask of one byte an element (aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable)."""

    def dropout(input: Any, p: float, train: bool) -> Any:
        if isinstance(input, FakeTensor) and train and 0 < p < 1:
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train)

    return dropout


def _attention(original: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Fused attention as one op that keeps q, k, v, its output and a float32 logsumexp per row.

    With CUDA behaviour that op is flash attention, or memory-efficient attention where there is a mask or the widths
    of keys and values differ, as torch chooses there. With CPU behaviour torch decides as it does on a CPU.
    """

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> Any:
        if device != "cuda" or not isinstance(query, FakeTensor) or query.dim() != 4:
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        same_width = private.example_of(query.shape[-1]) == private.example_of(value.shape[-1])
        if attn_mask is None and same_width:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, _as_bias(attn_mask, query, key), torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]

    return attention


def _as_bias(mask: Any, query: Any, key: Any) -> Any:
    """A mask as the additive bias that the fused kernel takes; a boolean one is turned into floats first, as in ATen."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


_plain_getitem = torch._C.TensorBase.__getitem__


def _getitem(self: torch.Tensor, key: Any) -> Any:
    """Drop full slices before indexing: a symbolic run would dispatch them, a concrete one does not."""
    parts = key if isinstance(key, tuple) else (key,)
    if isinstance(self, FakeTensor) and len(parts) > 1 and any(map(_is_full, parts)) and all(map(_is_plain, parts)):
        return _index_axes(self, parts)
    return _plain_getitem(self, key)


def _is_full(part: Any) -> bool:
    return isinstance(part, slice) and part.start is None and part.stop is None and part.step is None


def _is_plain(part: Any) -> bool:
    return part is None or part is Ellipsis or isinstance(part, (slice, int, torch.SymInt)) and not isinstance(part, bool)


def _index_axes(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    """Basic indexing one axis at a time, as ATen does it: unsqueeze, select, and slices that are not full."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    result, axis = tensor, 0
    for part in parts:
        if part is Ellipsis:
            axis += tensor.dim() - taken
        elif part is None:
            result, axis = result.unsqueeze(axis), axis + 1
        elif isinstance(part, slice):
            result = result if _is_full(part) else _slice(result, axis, part)
            axis += 1
        else:
            result = result.select(axis, part)
    return torch.ops.aten.alias(tensor) if result is tensor else result


def _slice(tensor: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    start = 0 if part.start is None else part.start
    stop = sys.maxsize if part.stop is None else part.stop
    return torch.ops.aten.slice(tensor, axis, start, stop, 1 if part.step is None else part.step)
