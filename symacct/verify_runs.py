"""Real executions of a model source at given sizes, on the CPU and with real tensors.

In prefill and decode a step begins with the model's cache as it stands there: empty, or with a prompt in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from symacct.oracles import Run, default_loss, measure
from symacct.oracles_flops import Phases, counter, recomputation_watched, unfused
from symacct.tracing import private
from symacct.tracing.inference import CACHED, in_mode, tensors_of
from symacct.tracing.run import unwrapped
from symacct.tracing.source import ModelSource
from symacct.verify_shapes import Call

_SEED = 1


@dataclass(frozen=True, slots=True)
class Real:
    """A model and its inputs with real numbers in them."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None

    def cached_bytes(self) -> int:
        """Bytes in the cache after the step."""
        assert isinstance(self.model, _Cached)
        with torch.no_grad():
            kept = self.model.step(self.inputs)
        return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors_of(kept))


class _Cached(torch.nn.Module):
    """A model that meets the same cache each time that it is called."""

    def __init__(self, model: torch.nn.Module, kept: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.kept = model, kept

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs, **self._copied())

    def step(self, inputs: Any) -> dict[str, Any]:
        """Run once, and give the cache as it is then."""
        kept = self._copied()
        _apply(self.model, inputs, kept)
        return kept

    def _copied(self) -> dict[str, Any]:
        with private.no_dispatch_modes():  # what copying costs is no part of the step
            return copy.deepcopy(self.kept)


def build(source: ModelSource, sizes: Mapping[str, int], mode: str = "train") -> Real:
    """The model at these sizes, as it stands before a step of this mode. What the user's code raises comes
    through."""
    source = in_mode(source, mode)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = unwrapped(source.model(sizes))
        inputs = source.inputs(sizes)
        if mode in CACHED:
            model = _with_cache(source, model, mode, sizes)
    judge = source.loss
    loss = None if judge is None else lambda output: judge(output, sizes, inputs)
    return Real(model, inputs, loss)


def _with_cache(source: ModelSource, model: torch.nn.Module, mode: str, sizes: Mapping[str, int]) -> _Cached:
    assert source.cache is not None and source.prompt is not None
    model.train(False)
    kept = source.cache(model, sizes)
    if mode == "decode":
        with torch.no_grad():
            _apply(model, source.prompt(sizes), kept)
    return _Cached(model, kept)


def run(source: ModelSource, real: Real, mode: str) -> Run:
    """What the oracles measure on it."""
    return measure(
        real.model, real.inputs, real.loss, source.optimizer, "train" if mode == "train" else "forward"
    )


def calls(real: Real, mode: str) -> list[Call]:
    """Every ATen call of forward, loss and backward, with the products that torch's counter sees in each.

    Fused attention runs as it does on a CPU and counts as the kernel does: five products in backward.
    """
    training = mode == "train"
    flops = counter({})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.set_grad_enabled(training))
        stack.enter_context(unfused(attention=False))
        stack.enter_context(flops)
        phases = Phases(flops.get_total_flops)
        stack.enter_context(recomputation_watched(phases))
        log = stack.enter_context(_Log(phases, flops.get_total_flops))
        real.model.train(training)
        with phases.within("forward"):
            output = _apply(real.model, real.inputs)
        if training:
            with phases.within("loss"):
                loss = (real.loss or default_loss)(output)
            with phases.within("backward"):
                loss.backward()
    real.model.zero_grad(set_to_none=True)
    return log.calls


def _apply(model: torch.nn.Module, inputs: Any, more: Mapping[str, Any] | None = None) -> Any:
    more = more or {}
    if isinstance(inputs, Mapping):
        return model(**inputs, **more)
    return model(*inputs, **more) if isinstance(inputs, tuple | list) else model(inputs, **more)


class _Log(TorchDispatchMode):
    """Writes down each call; holds no tensor."""

    supports_higher_order_operators = True

    def __init__(self, phases: Phases, total: Callable[[], int]) -> None:
        super().__init__()
        self.phases, self.total = phases, total
        self.calls: list[Call] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.total()
        out = op(*args, **(kwargs or {}))
        name = str(getattr(op, "overloadpacket", None) or f"higher_order.{op.name()}")
        if not name.startswith(("prim.", "profiler.")) and self.phases.now != "outside":
            shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
            self.calls.append(Call(name, self.phases.now, shapes, self.total() - before))
        return out
