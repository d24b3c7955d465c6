"""A model source in another dtype, or with recomputation, without a change to the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from symacct.dtypes import checked
from symacct.errors import ModelFileError
from symacct.tracing import private, selective
from symacct.tracing.run import RECOMPUTED, unwrapped
from symacct.tracing.source import ModelSource

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FULL = "full"
SELECTIVE = "selective"
_KEPT_WIDE = {
    "fp16": ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"),
    "bf16": ("_keep_in_fp32_modules_strict",),
}


def prepared(source: ModelSource, dtype: str | None = None, recompute: str | None = None) -> ModelSource:
    """The source whose model has this dtype and recomputes what `recompute` names.

    That is each block ("full"), the attention cores alone ("selective"), or the outermost modules whose paths fit a pattern.

    Raises ModelFileError for an unknown dtype; building the model does for a pattern that fits no module.
    """
    checked(dtype)
    if dtype is None and not recompute:
        return source

    def model(sizes: Mapping[str, Any]) -> nn.Module:
        built = private.own_copy(unwrapped(source.model(sizes)), private.active_fake_mode())
        if dtype is not None:
            _convert(built, dtype)
        if recompute:
            _recompute(source.name, built, recompute)
        return built

    def inputs(sizes: Mapping[str, Any]) -> Any:
        given = source.inputs(sizes)
        return given if dtype is None else tree_map_only(torch.Tensor, lambda t: _converted(t, DTYPES[dtype]), given)

    return replace(source, model=model, inputs=inputs)


def without_early_stop(source: ModelSource) -> ModelSource:
    """The source whose checkpoints, the code's own ones too, recompute to their ends."""

    def model(sizes: Mapping[str, Any]) -> nn.Module:
        built = private.own_copy(unwrapped(source.model(sizes)), private.active_fake_mode())
        kind = type(built)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with set_checkpoint_early_stop(False):
                return super(made, self).__call__(*args, **kwargs)  # type: ignore[arg-type]

        names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        built.__class__ = made = type(kind.__name__, (kind,), names)
        return built

    return replace(source, model=model)


# The dtype

def _convert(model: nn.Module, dtype: str) -> None:
    """`model.to(dtype)`; a transformers model keeps in float32 what its `from_pretrained` does.

    Those are the modules that its class lists, and buffers that are no part of a checkpoint.
    """
    asked = {word for name in _KEPT_WIDE.get(dtype, ()) for word in getattr(model, name, None) or ()}
    library = hasattr(model, "_keep_in_fp32_modules")
    wide = {id(p) for name, p in model.named_parameters() if asked & set(name.split("."))}
    for module in model.modules() if library else ():
        wide |= {id(b) for n, b in module.named_buffers(recurse=False) if n in module._non_persistent_buffers_set}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if id(tensor) in wide or not tensor.is_floating_point() else tensor.to(DTYPES[dtype])

    model._apply(convert)


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


# Recomputation

def _recompute(name: str, model: nn.Module, pattern: str) -> None:
    if pattern == SELECTIVE:
        model.__class__ = _selecting(type(model), name)
        return
    named = [(path, module) for path, module in model.named_modules() if path]
    chosen = list(_repeated(model)) if pattern == FULL else list(_fitting(named, pattern))
    if not named:
        raise ModelFileError(f"{name}: the model has no part that could be recomputed alone")
    if not chosen and pattern == FULL:
        raise ModelFileError(f"{name}: no list of modules to recompute; name one by its path, such as {named[0][0]!r}")
    if not chosen:
        paths = ", ".join(path for path, _ in named[:8])
        raise ModelFileError(f"{name}: no module's path fits {pattern!r}; there are {paths}")
    for module in dict.fromkeys(chosen):
        module.__class__ = _recomputing(type(module))


def _fitting(named: list[tuple[str, nn.Module]], pattern: str) -> Iterator[nn.Module]:
    """The modules whose paths fit, the outermost ones: `blocks.*` fits what is within a block, too. A list is never called."""
    within = ""
    for path, module in named:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            continue
        if fnmatchcase(path, pattern) and not (within and path.startswith(within)):
            within = f"{path}."
            yield module


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost lists of blocks: a ModuleList, or a Sequential of one kind of module with parts."""
    for child in module.children():
        parts = list(child.children())
        kinds = {type(part) for part in parts}
        alike = type(child) is nn.Sequential and len(kinds) == 1 and any(True for part in parts for _ in part.children())
        if isinstance(child, nn.ModuleList) or alike:
            for part in parts:
                yield from _repeated(part) if isinstance(part, (nn.ModuleList, nn.ModuleDict)) else (part,)
        else:
            yield from _repeated(child)


_CLASSES: dict[type, type] = {}


def _recomputing(kind: type) -> type:
    """The class whose calls go through torch's checkpoint, so that hooks run inside it as in hand-written code."""
    if kind not in _CLASSES:

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(super(made, self).__call__, *args, use_reentrant=False, **kwargs)  # type: ignore[arg-type]

        names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__, RECOMPUTED: True}
        made = _CLASSES[kind] = type(kind.__name__, (kind,), names)
    return _CLASSES[kind]


def _selecting(kind: type, name: str) -> type:
    """The class whose calls recompute the attention cores within them."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return selective.forward(name, lambda: super(made, self).__call__(*args, **kwargs))  # type: ignore[arg-type]

    made = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
    return made
