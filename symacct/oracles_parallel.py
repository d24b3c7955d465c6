"""One rank of a model that torch itself divides, run in torch's fake process group: one process, no devices.

`parallelize_module` or `fully_shard` divides the model, and a real forward pass, loss and backward show what
the rank holds, multiplies and sends. Tensors are real and small; what a collective gives back is made up, so
only shapes mean anything. Between divided modules tensors are plain ones, as in torch's own examples.
Attention runs as separate products, since DTensor has no strategy for a CPU's fused kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, distribute_module
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import PrepareModuleInputOutput, loss_parallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from symacct.errors import Unsupported
from symacct.oracles_flops import Phases, counter, unfused
from symacct.oracles_styles import Tensors, call, part_of, styles_for

Loss = Callable[[Any], Tensor]
Maker = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "scatter")


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective that a rank took part in. `payload`: the bytes of the whole tensor, however many ranks
    hold it.

    `by` says who asked for it: "DTensor" or "fully_shard".
    """

    kind: str
    phase: str
    payload: int
    by: str = "DTensor"


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank held and did in a step: FLOPs of products, collectives of forward with loss, and of
    backward.

    `owed`: parameters whose gradients torch leaves as summands, (name, bytes): the optimizer sums them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    flops_forward: int
    flops_backward: int
    sent: tuple[Sent, ...]
    owed: tuple[tuple[str, int], ...] = ()
    saved_bytes: int = 0  # storages kept for backward, without what the model owns
    params_bytes: int = 0
    grads_bytes: int = 0
    state_bytes: int = 0  # after an optimizer's step, where one was made
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shards:
    """How torch is to spread parameters, gradients and state: module paths, or groups of them, that are gathered
    as one, and how many ranks.

    `again` is `reshard_after_forward`; by default torch gathers all but the root again for backward. The
    optimizer, AdamW unless told, makes its state too.
    """

    units: Sequence[str | tuple[str, ...]]
    ranks: int
    optimizer: Maker | None = None
    again: bool | None = None


@contextmanager
def fake_ranks(data: int, tensor: int = 1, rank: int = 0) -> Iterator[DeviceMesh]:
    """A mesh of data × tensor ranks; this process is one of them. Raises Unsupported inside a real process
    group.
    """
    if dist.is_initialized():
        raise Unsupported(
            "a process group is there already: verify divides models in a fake one; run it outside torchrun"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=data * tensor)
    try:
        yield init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    finally:
        dist.destroy_process_group()


def rank_of(
    model: nn.Module,
    inputs: Any,
    loss: Loss | None,
    tensors: Tensors | None = None,
    shards: Shards | None = None,
) -> Rank:
    """The first rank of a model that torch divides so. The model is changed."""
    tied = _tied(model)
    plan = styles_for(model, inputs, tensors) if tensors else {}
    inputs = part_of(inputs, tensors) if tensors else inputs
    whole = tensors.whole if tensors else ()
    with fake_ranks(shards.ranks if shards else 1, tensors.ranks if tensors else 1) as mesh:
        for path, style in plan.items():
            if isinstance(style, PrepareModuleInputOutput) and path not in whole:
                distribute_module(model.get_submodule(path), mesh["tensor"])
        if tensors:
            parallelize_module(model, mesh["tensor"], plan)
            _tie(model, tied)
        if not shards:
            return step(model, inputs, loss)
        groups = [(unit,) if isinstance(unit, str) else unit for unit in shards.units]
        for modules in (*([model.get_submodule(path) for path in group] for group in groups), model):
            fully_shard(modules, mesh=mesh["data"], reshard_after_forward=shards.again)
        rank = step(model, inputs, loss)
        optimizer = (shards.optimizer or torch.optim.AdamW)(model.parameters())
        optimizer.step()
        return replace(rank, state_bytes=_bytes(tree_leaves(list(optimizer.state.values()))))


def _tied(model: nn.Module) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _tie(model: nn.Module, groups: list[list[str]]) -> None:
    """Make one parameter of those again that styles have divided one by one."""
    for first, *others in groups:
        for name in others:
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, model.get_parameter(first))


# The step


def step(model: nn.Module, inputs: Any, loss: Loss | None, fused: bool = False) -> Rank:
    """Forward pass, loss and backward on this rank of the process group that there is. `fused`: so runs attention."""
    notes: dict[str, None] = {}
    flops, listener, kept = counter(notes), Listener(), _Kept(model)
    with ExitStack() as stack:
        stack.enter_context(
            warnings.catch_warnings(action="ignore")
        )  # of in-place ops on outputs, which a caller may use
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(unfused(attention=not fused))
        stack.enter_context(implicit_replication())
        stack.enter_context(loss_parallel())
        stack.enter_context(flops)
        stack.enter_context(listener)
        phases = listener.phases = Phases(flops.get_total_flops)
        model.train()
        with (
            phases.within("forward"),
            torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor),
        ):
            output = call(model, inputs)
            value = (loss or summed)(output)
        with phases.within("backward"):
            value.backward()
    return Rank(
        {name: tuple(local(p).shape) for name, p in model.named_parameters()},
        phases.flops["forward"],
        phases.flops["backward"],
        tuple(listener.sent),
        tuple(_owed(model)),
        kept.bytes,
        _bytes(model.parameters()),
        _bytes(p.grad for p in model.parameters()),
        notes=tuple(notes),
    )


class _Kept:
    """The storages that autograd is given to keep, each once, without those of the model's parameters and
    buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owned = [_storage(tensor) for tensor in (*model.parameters(), *model.buffers())]
        self.found: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        self.found[storage._cdata] = storage
        return tensor

    @property
    def bytes(self) -> int:
        owned = {storage._cdata for storage in self.owned}
        return sum(storage.nbytes() for key, storage in self.found.items() if key not in owned)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """The storage of what this rank holds of a tensor, also of one that a collective is still to fill."""
    mine = local(tensor)
    return (mine.elem if isinstance(mine, AsyncCollectiveTensor) else mine).untyped_storage()


def _bytes(values: Iterable[Any]) -> int:
    """Bytes of what this rank holds of these tensors."""
    tensors = [local(value) for value in values if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def summed(output: Any) -> Tensor:
    """The loss of a model without one: the sum of its floating tensors, those that ranks hold in parts made
    whole.
    """
    return reduce(
        torch.add, (whole(tensor.sum()) for tensor in tree_leaves(output) if tensor.is_floating_point())
    )


def whole(tensor: Tensor) -> Tensor:
    """The tensor that ranks hold together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _owed(model: nn.Module) -> Iterator[tuple[str, int]]:
    for name, param in model.named_parameters():
        grad = param.grad
        if isinstance(grad, DTensor) and any(isinstance(p, Partial) for p in grad.placements):
            yield name, grad.numel() * grad.element_size()


class Listener(TorchDispatchMode):
    """Writes down each collective. DTensors pass, so that what they do locally is seen here and counted
    below.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phases = Phases()
        self.sent: list[Sent] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if any(issubclass(kind, FakeTensor) for kind in types):  # DTensor asks for the shape of the whole
            with self.phases.within("asked"):
                return op(*args, **(kwargs or {}))
        out = op(*args, **(kwargs or {}))
        space, _, name = str(op).partition(".")
        for short in ("gather", "reduce"):
            name = name.replace(f"all{short}", f"all_{short}")
        kind = next((kind for kind in _KINDS if name.lstrip("_").startswith(kind)), "")
        if space in ("_c10d_functional", "c10d") and kind:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            payload = max(prod(t.shape) * t.element_size() for t in tensors)
            by = "fully_shard" if space == "c10d" else "DTensor"
            self.sent.append(Sent(kind, self.phases.now, payload, by))
        return out
