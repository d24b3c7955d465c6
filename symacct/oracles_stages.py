"""A stage of a pipeline out of a real model, cut by hand as torchtitan does, for other ranks to divide.

Of the list of layers those of the stage stay; modules of other stages pass on what they are given.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils._pytree import tree_leaves

from symacct.errors import Unsupported
from symacct.oracles_parallel import Listener, Loss, Sent, fake_ranks, local, summed
from symacct.oracles_styles import call


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a model is cut: its list of layers, which of them a stage has, and the modules elsewhere."""

    layers: str
    first: int
    behind: int
    elsewhere: Collection[str]


def handed(model: nn.Module, inputs: Any, layers: str, number: int) -> Tensor:
    """What layer `number` gives the next one, as a stage that begins behind it is given it."""
    seen: list[Any] = []
    layer = model.get_submodule(f"{layers}.{number}")
    hook = layer.register_forward_hook(lambda *passed: seen.append(passed[-1]))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        call(model, inputs)
    hook.remove()
    found = next((leaf for leaf in tree_leaves(seen[-1]) if isinstance(leaf, Tensor)), None) if seen else None
    if found is None:
        raise Unsupported(f"{layers}.{number} hands no tensor on")
    return found.detach().clone().requires_grad_()


def stage_of(model: nn.Module, cut: Cut) -> nn.Module:
    """The model with the stage's modules alone. It is changed. Raises Unsupported for layers in no list."""
    layers = model.get_submodule(cut.layers)
    if not isinstance(layers, nn.ModuleList | nn.Sequential):
        raise Unsupported(f"{cut.layers} is no list of layers that could be cut")
    _put(model, cut.layers, layers[cut.first : cut.behind])
    for path in cut.elsewhere:
        _put(model, path, nn.Identity())
    return model


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def scheduled(
    stage: nn.Module, units: Sequence[tuple[str, ...]], given: Tensor, loss: Loss | None,
    place: tuple[int, int], micro_batches: int, replicas: int,
) -> tuple[tuple[Sent, ...], int]:  # fmt: skip
    """What a rank of a stage that fully_shard divides sends in a step of 1F1B, and bytes of its parameters.

    `place` is the number of the stage and how many there are, `given` what it is given of one micro-batch.
    The stage is changed.
    """
    at, count = place
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        out = call(stage, given.detach())
    if not isinstance(out, Tensor):
        raise Unsupported("the stage does not give one tensor, as torch's PipelineStage is to hand on here")
    listener = Listener()
    received = patch("torch.distributed.recv", lambda tensor, **_: tensor.fill_(1))
    with warnings.catch_warnings(action="ignore"), fake_ranks(replicas, count, rank=at) as mesh, received:
        for group in units:
            fully_shard([stage.get_submodule(path) for path in group], mesh=mesh["data"])
        fully_shard(stage, mesh=mesh["data"])
        held = sum(local(p).numel() * p.element_size() for p in stage.parameters())
        shown = given.detach().requires_grad_(given.requires_grad)
        made = PipelineStage(
            stage, at, count, torch.device("cpu"), input_args=(shown,),
            output_args=(out.detach().requires_grad_(),), group=mesh["tensor"].get_group(),
        )  # fmt: skip
        for name in ("forward", "backward"):
            _heard(made, name, listener)
        schedule = Schedule1F1B(made, micro_batches, loss_fn=lambda output, _: (loss or summed)(output))
        rows = (torch.cat([given.detach()] * micro_batches),) if at == 0 else ()
        target = {"target": torch.zeros(micro_batches, 1)} if at == count - 1 else {}
        with listener, torch.random.fork_rng(devices=[]):
            schedule.step(*rows, **target)
    return tuple(listener.sent), held


def _heard(stage: PipelineStage, direction: str, listener: Listener) -> None:
    run = getattr(stage, f"{direction}_one_chunk")

    def heard(*args: Any, **kwargs: Any) -> Any:
        with listener.phases.within(direction):
            return run(*args, **kwargs)

    setattr(stage, f"{direction}_one_chunk", heard)
