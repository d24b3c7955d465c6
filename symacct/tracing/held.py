"""What a model holds beside its parameters, buffers and tensors as plain attributes, and which of it autograd keeps.

Such a tensor lives all the time, so its life does not tell. The references to it do: autograd holds what it
saves, the tensor itself or a view of its storage, and either adds one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_leaves

from symacct.tracing import private


class Held:
    """The strided tensors that a model holds before a step, weakly, with the references that there are to each."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = {p.untyped_storage()._cdata for p in model.parameters() if p.layout is torch.strided}
        found = {id(t): t for t in _tensors(model) if t.untyped_storage()._cdata not in parameters}
        self._before = [(weakref.ref(t), private.references(t)) for t in found.values()]

    def storages(self) -> set[int]:
        """The storages of what is still there, as torch names them."""
        return {tensor.untyped_storage()._cdata for tensor, _ in self._alive()}

    def saved(self) -> set[int]:
        """Those that autograd refers to now, and did not before."""
        return {
            t.untyped_storage()._cdata
            for t, before in self._alive()
            if any(now > then for now, then in zip(private.references(t), before, strict=True))
        }

    def _alive(self) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
        for known, before in self._before:
            tensor = known()
            if tensor is not None:
                yield tensor, before


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        own = [value for name, value in vars(module).items() if name not in ("_modules", "_parameters")]
        for value in tree_leaves(own):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                yield value
