"""What each stage of a pipeline does and when, by torch's own schedules, run in its fake process group rank
by rank.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from symacct.errors import Unsupported
from symacct.oracles_parallel import Listener, Sent, fake_ranks

FORWARD, BACKWARD = "forward", "backward"
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


@dataclass(frozen=True, slots=True)
class Action:
    """A pass of one micro-batch through one part of the model, forward or backward."""

    direction: str
    part: int
    micro_batch: int


def actions_of(
    schedule: str, stages: int, micro_batches: int, parts: int = 1
) -> tuple[tuple[Action, ...], ...]:
    """What each rank does, in order, in a step with `parts` parts of the model on each. Raises Unsupported as
    torch refuses.
    """
    return tuple(_rank(schedule, stages, micro_batches, parts, rank) for rank in range(stages))


def most_under_way(actions: tuple[Action, ...], part: int | None = None) -> int:
    """The most passes, of one part or of all on the rank, that are forward already and not backward yet."""
    now = most = 0
    for action in actions:
        if part is None or action.part == part:
            now += 1 if action.direction == FORWARD else -1
            most = max(most, now)
    return most


def idle_share(ranks: tuple[tuple[Action, ...], ...], backward: int = 2) -> tuple[Fraction, ...]:
    """Each rank's waiting time over its working time: an action starts once the rank is free and what it
    needs is there.

    A backward pass takes `backward` times as long as a forward pass; sending takes no time.
    """
    last = max(action.part for actions in ranks for action in actions)
    done: dict[Action, int] = {}
    clock, at = Counter[int](), Counter[int]()
    while any(at[rank] < len(actions) for rank, actions in enumerate(ranks)):
        before = len(done)
        for rank, actions in enumerate(ranks):
            while at[rank] < len(actions) and (needed := _needed(actions[at[rank]], last)) <= done.keys():
                action = actions[at[rank]]
                start = max([clock[rank], *(done[other] for other in needed)])
                done[action] = clock[rank] = start + (1 if action.direction == FORWARD else backward)
                at[rank] += 1
        if len(done) == before:
            raise Unsupported("the schedule waits for itself")
    end = max(done.values())
    worked = [sum(1 if a.direction == FORWARD else backward for a in actions) for actions in ranks]
    return tuple(Fraction(end - work, work) for work in worked)


@dataclass(frozen=True, slots=True)
class Part:
    """A stage that torch cut out of a model: bytes of its parameters, and of what it hands on with a gradient."""

    params: int
    handed: int


def parts_of(model: nn.Module, inputs: Any, begins: Sequence[str]) -> tuple[Part, ...]:
    """The stages that torch's own frontend cuts a model into, before each of these modules.

    Raises Unsupported where it cannot trace or cut the model.
    """
    args, kwargs = (
        ((), inputs)
        if isinstance(inputs, Mapping)
        else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
            cut = pipeline(model, args, kwargs, split_spec=dict.fromkeys(begins, SplitPoint.BEGINNING))
            modules = [cut.get_stage_module(k) for k in range(cut.num_stages)]
            outputs: list[Any] = []
            for module in modules:
                module.register_forward_hook(lambda _, given, output: outputs.append(output))
            cut(*args, **kwargs)
    except Exception as error:  # torch.export says no to the model's own code in many ways
        reason = " ".join(str(error).split())[:120]
        raise Unsupported(
            f"torch's pipelining cannot cut this model; {type(error).__name__}: {reason}"
        ) from error
    return tuple(
        Part(_bytes(module.parameters()), _bytes(tree_leaves(out)))
        for module, out in zip(modules, outputs, strict=True)
    )


def _bytes(values: Iterable[Any]) -> int:
    tensors = [t for t in values if isinstance(t, Tensor) and t.requires_grad]
    return sum(t.numel() * t.element_size() for t in tensors)


def _needed(action: Action, last: int) -> set[Action]:
    """What must be done before: the part before it forward, the part behind it backward."""
    if action.direction == FORWARD:
        return {Action(FORWARD, action.part - 1, action.micro_batch)} if action.part else set()
    after = action.part + 1
    return {
        Action(BACKWARD, after, action.micro_batch)
        if after <= last
        else Action(FORWARD, last, action.micro_batch)
    }


def _rank(schedule: str, stages: int, micro_batches: int, parts: int, rank: int) -> tuple[Action, ...]:
    done: list[Action] = []
    # what a fake group receives is made up; here a rank asks whether all know their shapes: 1, they do
    with fake_ranks(stages, rank=rank), patch("torch.distributed.recv", lambda tensor, **_: tensor.fill_(1)):
        local = [_stage(rank + k * stages, stages * parts, done) for k in range(parts)]
        try:
            kind = SCHEDULES[schedule]
            made = kind(
                local if schedule == "interleaved" else local[0],
                micro_batches,
                loss_fn=lambda output, _: output.sum(),
            )
        except ValueError as error:
            raise Unsupported(f"torch's {SCHEDULES[schedule].__name__} refuses: {error}") from error
        given = (torch.zeros(micro_batches, 1),) if rank == 0 else ()
        last = rank == stages - 1
        made.step(*given, **({"target": torch.zeros(micro_batches, 1)} if last else {}))
    return tuple(done)


def _stage(index: int, count: int, done: list[Action]) -> PipelineStage:
    """A stage of one small layer that writes down what it does."""
    shown = torch.zeros(1, 1, requires_grad=index > 0)
    out = torch.zeros(1, 1, requires_grad=True)
    stage = PipelineStage(
        nn.Linear(1, 1), index, count, torch.device("cpu"), input_args=(shown,), output_args=(out,)
    )

    def noted(direction: str, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(micro_batch: int, *args: object, **kwargs: object) -> Tensor:
            done.append(Action(direction, index, micro_batch))
            return run(micro_batch, *args, **kwargs)

        return call

    stage.forward_one_chunk = noted(FORWARD, stage.forward_one_chunk)
    stage.backward_one_chunk = noted(BACKWARD, stage.backward_one_chunk)
    return stage


def sharded_stage(
    schedule: str, stages: int, micro_batches: int, rank: int, parts: int = 1, layers: int = 2, width: int = 4
) -> tuple[tuple[Sent, ...], int]:
    """What a rank sends in a step whose stages fully_shard divides between two replicas, and the most bytes of whole
    parameters and gradients it holds after a pass.

    Each part of the model is a matrix of width × width, the root, and `layers` of such matrices, each gathered apart.
    """
    listener, most = Listener(), 0
    given = patch("torch.distributed.recv", lambda tensor, **_: tensor.fill_(1))
    with warnings.catch_warnings(action="ignore"), fake_ranks(2, stages, rank=rank) as mesh, given:

        def whole(module: nn.Module) -> int:
            params = [p for p in module.parameters() if not isinstance(p, DTensor)]  # those that are not divided now
            return sum(p.numel() * p.element_size() * (1 if p.grad is None else 2) for p in params)

        def stage(index: int) -> PipelineStage:
            module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(1 + layers)))
            for part in (*module[1:], module):
                fully_shard(part, mesh=mesh["data"])
            shown, out = (torch.zeros(1, width, requires_grad=flag) for flag in (index > 0, True))
            made = PipelineStage(
                module, index, stages * parts, torch.device("cpu"), input_args=(shown,), output_args=(out,),
                group=mesh["tensor"].get_group(),
            )  # fmt: skip
            for name in (FORWARD, BACKWARD):
                setattr(made, f"{name}_one_chunk", noted(name, module, getattr(made, f"{name}_one_chunk")))
            return made

        def noted(direction: str, module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: object, **kwargs: object) -> Any:
                nonlocal most
                with listener.phases.within(direction):
                    out = run(*args, **kwargs)
                most = max(most, whole(module))
                return out

            return call

        local = [stage(rank + k * stages) for k in range(parts)]
        made = SCHEDULES[schedule](
            local if schedule == "interleaved" else local[0], micro_batches, loss_fn=lambda output, _: output.sum()
        )
        shown = torch.zeros(micro_batches, width)
        last = {"target": shown} if rank == stages - 1 else {}
        with listener:
            made.step(*((shown,) if rank == 0 else ()), **last)
    return tuple(listener.sent), most
