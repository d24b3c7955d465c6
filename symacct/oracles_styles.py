"""Which of torch's parallel styles each module of a model gets, so that torch divides it as a plan says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

from symacct.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Tensors:
    """How torch is to divide weights: a style, "colwise" or "rowwise", by module path, and among how many
    ranks.

    `sequence` is the dimension of the sequence if it is divided between the products. `whole` are modules that
    every rank runs whole, and of whose outputs parts are needed: of DTensors' backward they get whole gradients.
    `cut`: of each tensor that the model is given, the dimension of which a rank has its part, if any.
    """

    styles: Mapping[str, str]
    ranks: int
    sequence: int | None = None
    whole: Collection[str] = ()
    cut: Sequence[int | None] = ()


def styles_for(model: nn.Module, inputs: Any, tensors: Tensors) -> dict[str, ParallelStyle]:
    styles, sequence = tensors.styles, tensors.sequence
    between: Placement = Replicate() if sequence is None else Shard(sequence)
    found: dict[str, ParallelStyle] = {}
    given = _given(model, inputs)
    shared = _brought_in(given, [path for path, style in styles.items() if style == "colwise"])
    for path, style in styles.items():
        module = model.get_submodule(path)
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise Unsupported(
                f"torch's styles divide nn.Linear and nn.Embedding; {path} is a {type(module).__name__}"
            )
        if style == "rowwise":
            entering = Replicate() if isinstance(module, nn.Embedding) else Shard(-1)
            found[path] = RowwiseParallel(input_layouts=entering, output_layouts=between)
        else:
            inside = path in shared
            found[path] = ColwiseParallel(
                input_layouts=Replicate() if inside else between, use_local_output=False
            )
    for parent, (place, count) in dict(shared.values()).items():
        found[parent] = _bringing_in(place, count, between)
    if sequence is None:
        found.update(dict.fromkeys(tensors.whole, _answering_whole()))
    if sequence is not None:
        for path, module in model.named_modules():
            if path not in styles and any(True for _ in module.parameters(recurse=False)):
                found[path] = _along(module, sequence, first.ndim if (first := _first(given.get(path))) is not None else 0)
    return found


def part_of(inputs: Any, tensors: Tensors) -> Any:
    """What the first rank is given: its part of the inputs that come in divided along the sequence."""
    leaves, shape = tree_flatten(inputs)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for k, dim in zip(places, tensors.cut, strict=False):
        if dim is not None:
            part = leaves[k].detach().chunk(tensors.ranks, dim)[0].clone()
            leaves[k] = part.requires_grad_(leaves[k].requires_grad)
    return tree_unflatten(leaves, shape)


def _answering_whole() -> ParallelStyle:
    """A module that runs on plain tensors, and whose output is a DTensor that all ranks hold whole."""
    same = (Replicate(),)
    return PrepareModuleInputOutput(
        input_layouts=same,
        desired_input_layouts=same,
        use_local_input=True,
        output_layouts=same,
        desired_output_layouts=same,
        use_local_output=False,
    )


def _along(module: nn.Module, sequence: int, rank: int) -> ParallelStyle:
    """A module that ranks hold whole and run on their part of the sequence. A lookup's positions are whole,
    and are cut.
    """
    if not isinstance(module, nn.Embedding):
        return SequenceParallel(sequence_dim=sequence, use_local_output=True)
    part = Shard(sequence + rank - 2)
    return PrepareModuleInputOutput(
        input_layouts=(Replicate(),),
        desired_input_layouts=(part,),
        output_layouts=(part,),
        desired_output_layouts=(part,),
    )


def _bringing_in(place: int | str, count: int, between: Placement) -> ParallelStyle:
    """A module whose argument of this place or name ranks bring together."""
    if isinstance(place, str):
        return PrepareModuleInput(
            input_kwarg_layouts={place: between}, desired_input_kwarg_layouts={place: Replicate()}
        )
    layouts = tuple(between if k == place else None for k in range(count))
    wanted = tuple(Replicate() if k == place else None for k in range(count))
    return PrepareModuleInput(input_layouts=layouts, desired_input_layouts=wanted)


def _given(model: nn.Module, inputs: Any) -> dict[str, dict[int | str, Any]]:
    """What each module of the undivided model is given, by place or name, in a forward pass."""
    seen: dict[str, dict[int | str, Any]] = {}
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if path:
                hook = lambda _, args, named, path=path: seen.__setitem__(path, {**dict(enumerate(args)), **named})  # noqa: E731
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(model, inputs)
    return seen


def _first(given: Mapping[int | str, Any] | None) -> Any:
    return (given or {}).get(0)


def _brought_in(
    given: Mapping[str, Mapping[int | str, Any]], colwise: list[str]
) -> dict[str, tuple[str, tuple[int | str, int]]]:
    """Of column-parallel modules that share an input: the module around them that is given it, at which place
    of how many, or by which name.

    Each of them alone would bring its input in, and sum its gradient, by itself.
    """
    groups: dict[int, list[str]] = {}
    for path in colwise:
        if _first(given.get(path)) is not None:
            groups.setdefault(id(_first(given[path])), []).append(path)
    found = {}
    for key, paths in groups.items():
        parent = _parent(paths)
        taken = given.get(parent, {})
        places = [k for k, arg in taken.items() if id(arg) == key]
        if len(paths) > 1 and places:
            count = sum(isinstance(k, int) for k in taken)
            found.update(dict.fromkeys(paths, (parent, (places[0], count))))
    return found


def _parent(paths: list[str]) -> str:
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on its inputs: a tensor, positional or keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
