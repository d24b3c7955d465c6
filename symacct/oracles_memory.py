"""Bytes that a real forward pass keeps for its backward pass.

Two witnesses, joined: the tensors that autograd's saved-tensor hooks are shown and that are still held once
the loss is known, and the storages that outlive all but the loss's graph (hooks alone miss what checkpointing and
custom functions keep). Storages count once, whole. What the model owned before the run is not counted.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class _Held:
    """What the hooks give autograd in place of a tensor; it lives as long as autograd keeps the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Births(TorchDispatchMode):
    """Remembers, weakly, each storage that first appears as an op's result."""

    supports_higher_order_operators = True

    def __init__(self, older: Iterable[StorageWeakRef]) -> None:
        super().__init__()
        self.older = {ref.cdata: ref for ref in older}
        self.born: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lifted = op is torch.ops.aten.lift_fresh.default  # a tensor that is made of numbers, here
        for tensor in () if lifted else _tensors((args, kwargs)):
            ref = _ref(tensor)
            if ref.cdata not in self.born:
                self.older.setdefault(ref.cdata, ref)
        out = op(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            ref = _ref(tensor)
            if ref.cdata not in self.older:
                self.born[ref.cdata] = (ref, tensor.untyped_storage().nbytes())
        return out


def saved_bytes(
    call: Callable[[Any], Any], loss: Callable[[Any], Tensor], model: nn.Module, inputs: Any
) -> tuple[int, int, int]:
    """All bytes kept for backward, those among them that are the model's inputs, and beside them the bytes of the
    buffers and plain tensors of the model that the hooks saw.

    `call(inputs)` runs the model. Inputs are copied for the run and let go of: one that survives was kept.
    """
    originals = list(_tensors(inputs))
    input_bytes = {_ref(t).cdata: t.untyped_storage().nbytes() for t in originals}
    copies = tree_map_only(Tensor, _copy, inputs)
    copy_refs = [_ref(t) for t in _tensors(copies)]
    canonical = {ref.cdata: _ref(t).cdata for ref, t in zip(copy_refs, originals, strict=True)}
    births = _Births([*map(_ref, _owned(model)), *map(_ref, originals), *copy_refs])
    holders: list[weakref.ref[_Held]] = []

    def pack(tensor: Tensor) -> _Held:
        held = _Held(tensor)
        holders.append(weakref.ref(held))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor), births:
        output = call(copies)
        value = loss(output)
    graph = value.grad_fn
    if graph is None:
        return 0, 0, 0
    shown = {_ref(held.tensor).cdata for ref in holders if (held := ref()) is not None}
    del output, value, copies
    held_by_model = {_ref(t).cdata: t.untyped_storage().nbytes() for t in _owned(model)}
    for parameter in _tensors(list(model.parameters())):
        held_by_model[_ref(parameter).cdata] = 0

    def outliving() -> set[int]:
        refs = [*copy_refs, *(ref for ref, _ in births.born.values())]
        return {ref.cdata for ref in refs if not ref.expired()} - held_by_model.keys()

    if outliving() - shown:  # perhaps only waiting in a reference cycle
        gc.collect()
    kept = {canonical.get(key, key) for key in shown | outliving()}
    of_inputs = sum(input_bytes[key] for key in kept & input_bytes.keys())
    of_model = sum(held_by_model[key] for key in (kept & held_by_model.keys()) - births.born.keys())
    return of_inputs + sum(births.born[key][1] for key in kept & births.born.keys()), of_inputs, of_model


def _tensors(tree: Any) -> list[Tensor]:
    """The strided tensors of a tree; sparse ones have no single storage."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def _ref(tensor: Tensor) -> StorageWeakRef:
    """Weak reference to the storage. Its `cdata` names the storage, and no other while this lives."""
    return StorageWeakRef(tensor.untyped_storage())


def _owned(model: nn.Module) -> list[Tensor]:
    """Parameters, buffers and tensors that modules hold as plain attributes."""
    held = [value for module in model.modules() for name, value in vars(module).items() if name != "_modules"]
    return _tensors(held)


def _copy(tensor: Tensor) -> Tensor:
    """The same numbers in a storage of their own, laid out alike."""
    if tensor.layout is not torch.strided:
        return tensor
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(tensor.untyped_storage().clone(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return _Loose.apply(torch.zeros((), requires_grad=True), [copy]) if tensor.requires_grad else copy


class _Loose(torch.autograd.Function):
    """Makes a tensor differentiable without being a leaf, which its gradient's node would keep alive."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, box: list[Tensor]) -> Tensor:
        return box.pop()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None
