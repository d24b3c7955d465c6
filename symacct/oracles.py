"""Measurements of real executions on CPU, made without symacct's tracer and rules.

`measure` runs a model with real tensors, three times from the same state and random seed: once to see which
storages wait for backward, once with kernels that show all their products, once as it is with the optimizer's
step. The model is left as it was found. What symacct derives is checked against these numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from symacct.errors import ModelFileError
from symacct.oracles_flops import Phases, counter, recomputation_watched, uncounted, unfused
from symacct.oracles_memory import saved_bytes

Op = tuple[str, str, tuple[tuple[int, ...], ...]]
Loss = Callable[[Any], Tensor]
OptimizerMaker = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Run:
    """One real run at concrete sizes. FLOPs are products, 2 per multiply-add."""

    params_total: int  # each parameter once, frozen ones too
    params_trainable: int
    params_embedding: int  # the parameters that embedding lookups read
    params_bytes: int
    flops_forward: int  # with the loss
    flops_backward: int  # without recomputation; attention as four products
    flops_hardware_backward: int  # of what ran: with recomputation, fused attention as five products
    flops_optimizer: int
    grads_bytes: int  # of parameters
    optimizer_bytes: int  # state after one step, step counters included
    saved_bytes: int  # storages kept for backward, without parameters and buffers
    saved_input_bytes: int  # those among them that are inputs
    saved_buffer_bytes: int  # beside them, buffers and plain tensors of the model that autograd's hooks saw
    op_sequence: tuple[Op, ...]  # ("aten.mm", phase, output shapes), phase in PHASES
    notes: tuple[str, ...]  # which stand-in counted what, and why


PHASES = ("forward", "loss", "backward", "recompute", "optimizer")


def measure(
    model: nn.Module,
    inputs: Tensor | tuple | Mapping[str, Any],
    loss: Loss | None = None,
    optimizer: OptimizerMaker | None = None,
    mode: str = "train",
) -> Run:
    """Run `model` on `inputs` (a tensor, positional or keyword arguments) and count what happened.

    "train": train(), forward, loss, backward, one optimizer step (AdamW unless told).
    "forward": eval() under no_grad.
    Without a loss, it is the output's own `.loss`, else the sum of its floating tensors.
    """
    if mode not in ("train", "forward"):
        raise ModelFileError(f'mode {mode!r} cannot be measured; "train" and "forward" can')
    training = mode == "train"
    step = _Step(model, inputs, loss or default_loss, optimizer or torch.optim.AdamW, training)
    parameters = list(model.parameters())
    notes = dict.fromkeys(_module_notes(model, training))
    with _as_found(model, inputs), torch.set_grad_enabled(training):
        model.train(training)
        kept, kept_inputs, kept_buffers = 0, 0, 0
        if training:
            with _same_start(model, inputs), unfused(attention=False):
                kept, kept_inputs, kept_buffers = saved_bytes(step.call, step.loss, model, inputs)
        with _same_start(model, inputs):
            shown = step.counted(notes, attention=True)
        with _same_start(model, inputs):
            recorder = _Recorder()
            real = step.counted(notes, attention=False, recorder=recorder)
            grads = {id(p): p.grad for p in parameters if p.grad is not None}
            state = step.optimizer.state.values() if step.optimizer else ()
            sizes = _nbytes(grads.values()), _nbytes(tree_leaves(list(state)))
    ops = tuple(recorder.ops)
    for name in dict.fromkeys(op[0] for op in ops):
        if uncounted(name):
            notes[f"{name}: may hold products; nothing counts them"] = None
    tables = [p for p in parameters if _storage(p) in recorder.tables]
    backward = real.flops["backward"] + real.flops["recompute"]
    return Run(
        params_total=sum(p.numel() for p in parameters),
        params_trainable=sum(p.numel() for p in parameters if p.requires_grad),
        params_embedding=sum(p.numel() for p in tables),
        params_bytes=sum(p.numel() * p.element_size() for p in parameters),
        flops_forward=shown.flops["forward"] + shown.flops["loss"],
        flops_backward=shown.flops["backward"],
        flops_hardware_backward=backward,
        flops_optimizer=real.flops["optimizer"],
        grads_bytes=sizes[0],
        optimizer_bytes=sizes[1],
        saved_bytes=kept,
        saved_input_bytes=kept_inputs,
        saved_buffer_bytes=kept_buffers,
        op_sequence=ops,
        notes=tuple(notes),
    )


def default_loss(output: Any) -> Tensor:
    """The output's own `.loss`, else the sum of its floating tensors, nested ones too."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    terms = [tensor.sum() for tensor in _floating(output)]
    if not terms:
        kind = type(output).__name__
        raise ModelFileError(f"no loss: the output ({kind}) holds no floating tensor; give a loss(output)")
    return reduce(torch.add, terms)


class _Step:
    """One forward pass or training step that can be run again."""

    def __init__(
        self, model: nn.Module, inputs: Any, loss: Loss, maker: OptimizerMaker, training: bool
    ) -> None:
        self.model, self.inputs, self.loss, self.maker, self.training = model, inputs, loss, maker, training
        self.optimizer: torch.optim.Optimizer | None = None

    def call(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, tuple | list) else self.model(inputs)

    def counted(
        self, notes: dict[str, None], *, attention: bool, recorder: _Recorder | None = None
    ) -> Phases:
        """Run under the counter. The recorder, if any, also sees the optimizer's step."""
        flops = counter(notes)
        with ExitStack() as stack:
            stack.enter_context(unfused(attention=attention))
            stack.enter_context(flops)
            phases = Phases(flops.get_total_flops)
            stack.enter_context(recomputation_watched(phases))
            if recorder:
                recorder.phases = phases
                stack.enter_context(recorder)
            self._run(phases, with_optimizer=recorder is not None)
        return phases

    def _run(self, phases: Phases, *, with_optimizer: bool) -> None:
        with phases.within("forward"):
            output = self.call(self.inputs)
        if not self.training:
            return
        with phases.within("loss"):
            value = self.loss(output)
        if value.numel() != 1:
            raise ModelFileError(f"the loss must be one number, not a tensor of shape {tuple(value.shape)}")
        if value.requires_grad:
            with phases.within("backward"):
                value.backward()
        if with_optimizer and any(p.grad is not None for p in self.model.parameters()):
            self.optimizer = self.maker(self.model.parameters())
            with phases.within("optimizer"):
                self.optimizer.step()


class _Recorder(TorchDispatchMode):
    """Writes down each ATen call and keeps no tensor (a reference would make autograd clone gradients)."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.phases = Phases()
        self.ops: list[Op] = []
        self.tables: set[int] = set()  # storages that lookups read

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        name = str(getattr(op, "overloadpacket", None) or f"higher_order.{op.name()}")
        if name.startswith(("prim.", "profiler.")) or self.phases.now not in PHASES:
            return out
        if name in _LOOKUPS:
            self.tables.add(_storage(args[0]))
        shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        self.ops.append((name, self.phases.now, shapes))
        return out


_LOOKUPS = ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")


def _module_notes(model: nn.Module, training: bool) -> Iterator[str]:
    """Stand-ins that act before any op is seen."""
    modules = list(model.modules())
    if any(isinstance(m, nn.LSTM) for m in modules):
        yield "nn.LSTM: torch's counter says 0 for oneDNN's fused layer; run unrolled, without oneDNN"
    fast = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    if not training and any(isinstance(m, fast) for m in modules):
        yield "nn.MultiheadAttention: torch's counter says 0 for its fast path in eval mode; run without it"


@contextmanager
def _same_start(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Leave random state, parameters, buffers and gradients as they were, so that each run is the first."""
    numbers = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    python = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        with torch.no_grad():
            for tensor, value in numbers:
                tensor.copy_(value)
        for leaf in _leaves(model, inputs):
            leaf.grad = None


@contextmanager
def _as_found(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Set aside gradients, and put them and each module's training flag back."""
    leaves = _leaves(model, inputs)
    grads = [t.grad for t in leaves]
    flags = [(module, module.training) for module in model.modules()]
    try:
        for tensor in leaves:
            tensor.grad = None
        yield
    finally:
        for tensor, grad in zip(leaves, grads, strict=True):
            tensor.grad = grad
        for module, flag in flags:
            module.training = flag


def _leaves(model: nn.Module, inputs: Any) -> list[Tensor]:
    return [t for t in (*model.parameters(), *tree_leaves(inputs)) if isinstance(t, Tensor) and t.is_leaf]


def _floating(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
        return
    if isinstance(output, Mapping):
        children = list(output.values())
    elif isinstance(output, tuple | list):
        children = list(output)
    elif is_dataclass(output) and not isinstance(output, type):
        children = [getattr(output, field.name) for field in fields(output)]
    else:
        children = []
    for child in children:
        yield from _floating(child)


def _nbytes(values: Iterable[Any]) -> int:
    """Bytes of the distinct storages behind tensors; a sparse tensor has its indices and its values."""
    sizes: dict[int, int] = {}
    for tensor in values:
        if not isinstance(tensor, Tensor):
            continue
        parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
        sizes.update((_storage(part), part.untyped_storage().nbytes()) for part in parts)
    return sum(sizes.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
