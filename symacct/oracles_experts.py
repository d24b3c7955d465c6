"""One rank of a model whose experts ranks divide, in torch's fake process group.

As torchtitan's ExpertParallel does with torch's collectives: a rank holds E/e experts of each stacked weight;
before these run, an all_to_all sends each queue of tokens to the rank that has its expert, and behind them
another sends the results back. Autograd sends gradients the same ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from symacct.errors import Unsupported
from symacct.oracles_parallel import Loss, Rank, fake_ranks, step

_QUEUES = "{} does not {} queues of tokens (E, tokens, width), which an all_to_all divides"


def expert_rank(model: nn.Module, inputs: Any, loss: Loss | None, modules: Sequence[str], ranks: int) -> Rank:
    """What the first rank holds, does and sends in a step. The model is changed.

    `modules` are the paths of those that hold all experts; each is given queues of tokens (E, tokens, width),
    and gives as many. Raises Unsupported for one that does otherwise.
    """
    with fake_ranks(1, ranks) as mesh, ExitStack() as hooks:
        for path in modules:
            module = model.get_submodule(path)
            _divide(module, mesh["tensor"])
            for hook in _travelling(path, module, mesh["tensor"].get_group()):
                hooks.callback(hook.remove)
        return step(model, inputs, loss, fused=True)


def _divide(module: nn.Module, mesh: DeviceMesh) -> None:
    for name, param in list(module.named_parameters(recurse=False)):
        part = distribute_tensor(param.detach(), mesh, [Shard(0)])
        assert isinstance(part, DTensor)
        setattr(module, name, nn.Parameter(part.to_local().clone()))


def _travelling(path: str, module: nn.Module, group: dist.ProcessGroup) -> tuple[Any, Any]:
    """Hooks that send a module's queues to their experts, and its results back."""
    ranks = dist.get_world_size(group)
    given: list[tuple[int, ...]] = []

    def there(_: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        held = next(module.parameters()).shape[0]
        if len(args) != 1 or args[0].dim() != 3 or args[0].shape[0] != held * ranks:
            raise Unsupported(_QUEUES.format(path, "take"))
        given.append(tuple(args[0].shape))
        queues = all_to_all_single_autograd(args[0].contiguous(), None, None, group)
        return (queues.unflatten(0, (ranks, held)).transpose(0, 1).flatten(1, 2),)

    def back(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        shape = given.pop()
        if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[1] != ranks * shape[1]:
            raise Unsupported(_QUEUES.format(path, "give"))
        queues = out.unflatten(1, (ranks, shape[1])).transpose(0, 1).flatten(0, 1).contiguous()
        return all_to_all_single_autograd(queues, None, None, group)

    return module.register_forward_pre_hook(there), module.register_forward_hook(back)
