"""Steps in two precisions: the user's optimizer on float32 copies, real hooks, real casts.

masters    float32 copies of the parameters, which the user's optimizer is made for and steps; the wrapper
           hands it the gradients in float32 and copies the stepped values back
buffers    float32 gradients, filled by a hook that autograd calls when a parameter's gradient is complete
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from symacct.graph import MASTER
from symacct.tracing.source import ModelSource

Made = Callable[[Iterable[Any]], Any]


@contextlib.contextmanager
def casting(source: ModelSource, device: str) -> Iterator[None]:
    """Forward and loss under the source's autocast, if it has one."""
    if source.autocast is None:
        yield
        return
    with torch.autocast(device, dtype=source.autocast):
        yield


class MasterWeights:
    """An optimizer of float32 copies of parameters; `buffers` are float32 gradients that outlive a backward.

    Parameters that are float32 themselves are stepped as they are.
    """

    def __init__(self, make: Made, parameters: list[torch.nn.Parameter], gradients: str) -> None:
        self.parameters = parameters
        self.masters = {id(p): _master(p) for p in parameters}
        self.inner = make([self.masters[id(p)] for p in parameters])
        stepped = {id(p) for group in self.inner.param_groups for p in group["params"]}
        self.stepped = [p for p in parameters if id(self.masters[id(p)]) in stepped]
        self.keep_own = gradients != "wide"
        self.buffers: dict[int, torch.Tensor] = {}
        for p in parameters if gradients != "own" else ():
            self.buffers[id(p)] = torch.zeros_like(p, dtype=torch.float32)
            p.register_post_accumulate_grad_hook(self._take)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer that steps the copies."""
        return self.inner.param_groups  # type: ignore[no-any-return]

    @property
    def state(self) -> Mapping[torch.Tensor, dict[str, Any]]:
        """The state by parameter, the float32 copy under "master"."""
        found = {}
        for p in self.stepped:
            master = self.masters[id(p)]
            found[p] = ({MASTER: master} if master is not p else {}) | dict(self.inner.state.get(master, {}))
        return found

    def gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters with the buffers of their gradients."""
        return ((p, self.buffers[id(p)]) for p in self.parameters if id(p) in self.buffers)

    def _take(self, parameter: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient is complete."""
        assert parameter.grad is not None
        self.buffers[id(parameter)].add_(parameter.grad)
        if not self.keep_own:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step on the copies, whose float32 gradients live through it, and their values copied back."""
        own = {}
        for p in self.stepped:
            wide = self.buffers.get(id(p))
            if wide is None and p.grad is not None:
                wide = p.grad.float()
            master = self.masters[id(p)]
            if master is p:
                own[id(p)] = p.grad
            master.grad = wide
        wide = None
        with torch.enable_grad():
            self.inner.step()
        for p in self.stepped:
            master = self.masters[id(p)]
            master.grad = own.get(id(p))
            if master is not p:
                p.copy_(master)
        for buffer in self.buffers.values():
            buffer.zero_()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters:
            p.grad = None


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if parameter.dtype == torch.float32:
        return parameter
    return torch.nn.Parameter(parameter.detach().float())
