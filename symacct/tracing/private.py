"""The private torch APIs that symacct leans on, all of them, so that a torch release breaks one file.

Symbolic sizes: a `ShapeEnv` without duck shaping and 0/1 specialisation, and `SymInt`s with names of ours.
Autograd: sequence numbers, the node that runs, the graph task. Checkpoint: the function that a frame recomputes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import sympy as sp
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._pytree import tree_map_only

from symacct.comparisons import told, weaker
from symacct.errors import Unsupported
from symacct.records import Pin
from symacct.symbols import symbol
from symacct.tracing.lines import QUIET, user_line
from symacct.tracing.translation import translate

__all__ = ["FakeTensor", "FakeTensorMode", "SymbolicSizes", "expression_of", "references"]

_INDEX = "_compute_slice_index"  # where a slice is cut short: one that ends just there is the same, cut or not
_DEMANDING = ("_check_with", "slice_forward", "_covers", _INDEX)  # what torch demands of operands, and slices
_ASKING = ("/torch/__init__.py", "/experimental/sym_node.py", "/experimental/symbolic_shapes.py", "/experimental/recording.py",
           "/tracing/private.py", "/functools.py", "/torch/_utils.py", "<string>")


def _asker() -> str:
    """The function that asked for the comparison that torch evaluates now: one of the user's, or a demand on operands.

    Empty where it is a kernel's bookkeeping. A kernel asks a size's node; Python code asks the size, whose methods are in
    torch's `__init__`.
    """
    frame: FrameType | None = sys._getframe(2)
    by_python = False
    while frame is not None and frame.f_code.co_filename.endswith(_ASKING):
        if frame.f_code.co_name in _DEMANDING:
            return frame.f_code.co_name
        by_python = by_python or frame.f_code.co_filename.endswith("/torch/__init__.py")
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name in _DEMANDING:
        return frame.f_code.co_name
    if frame is None or not by_python:
        return ""
    name = frame.f_code.co_filename
    asking = "/torch/optim/" in name or not name.startswith(QUIET)  # an optimizer's `if` (Muon's) decides as the user's do
    return frame.f_code.co_name if asking else ""


class _WatchedShapeEnv(ShapeEnv):
    """A ShapeEnv that notes where the user's code replaced a symbol by something else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.replaced_at: dict[sp.Symbol, str] = {}
        self.guarded_at: dict[Any, tuple[str, bool]] = {}
        self.asked: dict[Any, str] = {}

    def _set_replacement(self, a: sp.Symbol, tgt: sp.Expr, msg: str) -> None:
        known = a in self.replacements
        super()._set_replacement(a, tgt, msg)
        if not known and a in self.replacements:
            self.replaced_at[a] = user_line(2)

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.guards)
        answer = super().evaluate_expr(orig_expr, *args, **kwargs)
        asker = _asker() if isinstance(orig_expr, sp.logic.boolalg.Boolean) else ""
        if asker:
            parts = list(told(orig_expr, bool(answer), self.backed_var_to_val))
            parts = [weaker(part) for part in parts] if asker == _INDEX else parts
            self.asked.update(dict.fromkeys(parts, user_line(2)))
        for guard in self.guards[before:]:
            self.guarded_at.setdefault(guard.expr, (user_line(2), asker not in ("", _INDEX)))
        return answer


class SymbolicSizes:
    """Named sizes as SymInts under one ShapeEnv, and the way back from torch's expressions to ours."""

    def __init__(self, hints: dict[str, int], fixed: Iterable[str] = ()) -> None:
        self.env = _WatchedShapeEnv(duck_shape=False, specialize_zero_one=False)
        self.names: dict[sp.Symbol, sp.Symbol] = {}
        self.sizes: dict[str, Any] = {}
        self.hints = dict(hints)
        fixed = set(fixed)
        for name, hint in hints.items():
            self.sizes[name] = hint if name in fixed else self._make(name, hint)
        self._cache: dict[Any, Any] = {}

    def _make(self, name: str, hint: int) -> torch.SymInt:
        source = ConstantSource(name)
        made = self.env.create_symbol(
            hint,
            source,
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=True,
            do_not_specialize_zero_one=True,
        )
        self.names[made] = symbol(name)
        return self.env.create_symintnode(made, hint=hint, source=source)

    def fake_mode(self) -> FakeTensorMode:
        mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        mode.cache_enabled = False
        return mode

    def ours(self, expr: Any) -> Any:
        """Torch's expression in our symbols and sympy's own functions; integers stay integers."""
        if isinstance(expr, int):
            return sp.Integer(expr)
        if expr not in self._cache:
            self._cache[expr] = translate(self.env.replace(expr), self.names)
        return self._cache[expr]

    def pins(self) -> list[Pin]:
        """Symbols that the run replaced by a number."""
        found = []
        for made, ours in self.names.items():
            target = self.env.replacements.get(made)
            if target is not None and self.env.replace(target).is_number:
                value = int(self.env.replace(target))
                found.append(Pin(ours.name, value, self.env.replaced_at.get(made, "")))
        return found

    def merged(self) -> list[tuple[sp.Symbol, Any, str]]:
        """Symbols that the run found equal to an expression of others: (symbol, expression, line)."""
        found = []
        for made, ours in self.names.items():
            target = self.env.replacements.get(made)
            if target is not None and not self.env.replace(target).is_number:
                found.append((ours, self.ours(target), self.env.replaced_at.get(made, "")))
        return found

    def guards(self) -> list[tuple[Any, str, bool]]:
        """Conditions of the way that the run took, in our symbols: with the user's line, and whether it asked itself."""
        seen: dict[Any, tuple[str, bool]] = {}
        rows = [(expr, line, True) for expr, line in self.env.asked.items()]
        rows += [(guard.expr, *self.env.guarded_at.get(guard.expr, ("", False))) for guard in self.env.guards]
        rows.sort(key=lambda row: not row[1])  # those with a line first: a size is best explained by one
        for expr, line, asked in rows:
            try:
                seen.setdefault(translate(self.env.replace(expr), self.names), (line, asked))
            except Unsupported:
                continue
        return [(guard, line, asked) for guard, (line, asked) in seen.items()]


def expression_of(size: Any) -> Any:
    """The raw torch expression of a SymInt, or the integer itself."""
    return size.node._expr if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) else size


def example_of(size: Any) -> Any:
    """The example value of a size or of a number computed from sizes, without a guard."""
    return size.node.hint if isinstance(size, torch.SymInt | torch.SymFloat) else size


def sequence_number() -> int:
    """The number of the autograd node made last on this thread; -1 before any."""
    return torch._C._autograd._get_sequence_nr() - 1


def running_node() -> Any:
    """The autograd node that runs its backward now, or None."""
    return torch._C._current_autograd_node()


def before_backward(call: Callable[[list[Any]], None]) -> Any:
    """A block in which `call` is given the nodes that a backward pass starts from, before it does."""
    run = torch.autograd._engine_run_backward

    def told(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        call([output.grad_fn if isinstance(output, torch.Tensor) else output.node for output in outputs])
        return run(outputs, *args, **kwargs)

    return mock.patch.object(torch.autograd, "_engine_run_backward", told)


def in_backward() -> bool:
    """Whether this thread runs inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def checkpoint_hooks(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[tuple[Any, str, Any]]:
    """Patches (owner, attribute, replacement) that pass every function a checkpoint recomputes through `wrap`."""
    frame_init = torch_checkpoint._CheckpointFrame.__init__
    reentrant = torch_checkpoint.CheckpointFunction.forward

    def init(self: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
        frame_init(self, wrap(recompute_fn), *args, **kwargs)

    def forward(ctx: Any, run_function: Any, *args: Any) -> Any:
        return reentrant(ctx, wrap(run_function), *args)

    return [
        (torch_checkpoint._CheckpointFrame, "__init__", init),
        (torch_checkpoint.CheckpointFunction, "forward", staticmethod(forward)),
    ]


def checkpointing(again: Callable[[], None]) -> Iterator[None]:
    """A checkpoint that is open from one `next` to the other: what autograd saves meanwhile, `again` recomputes."""
    return torch_checkpoint._checkpoint_without_reentrant_generator(again)


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are active, outermost first."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def no_dispatch_modes() -> Any:
    """A block in which no dispatch mode is active."""
    return torch.utils._python_dispatch._disable_current_modes()


def autocast_left_out() -> Any:
    """A block whose ops meet no autocasting of CPU tensors."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


@functools.cache
def ops_with_kernel(key: str) -> frozenset[str]:
    """The ATen ops, as `name` or `name.overload`, that have a kernel of their own for a dispatch key."""
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(n.removeprefix("aten::") for n in names if n.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(n, key))


def set_onednn(on: bool) -> bool:
    """Switch oneDNN, whose fused LSTM hides its products; returns how it stood before."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(on)
    return before


def grouped_products() -> tuple[Any, str, Any]:
    """A patch: grouped products of fake tensors in any dtype. Torch's shape function takes bfloat16 alone, its CPU kernel more."""
    from torch import _meta_registrations as registrations

    def grouped(mat_a: Any, mat_b: Any, *args: Any, **kwargs: Any) -> Any:
        offs = kwargs.get("offs")
        out_dtype = kwargs.get("out_dtype")
        return registrations._create_grouped_mm_output_tensor(mat_a, mat_b, offs, out_dtype)

    return registrations, "_meta_grouped_mm_common", grouped


def is_data_dependent(error: BaseException | None) -> bool:
    """Whether a fake run stopped because a size or a branch depends on data."""
    return isinstance(error, DynamicOutputShapeException | DataDependentOutputException)


def own_copy(model: torch.nn.Module, fake: FakeTensorMode | None) -> torch.nn.Module:
    """The module itself if it was built on fake tensors, else a copy (fake, if a mode is given): the user's stays as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    if fake is None:
        return copy.deepcopy(model)
    if all(isinstance(tensor, FakeTensor) for tensor in tensors):
        return model
    with FakeCopyMode(fake):
        return copy.deepcopy(model)


def active_fake_mode() -> FakeTensorMode | None:
    """The fake mode that this thread runs under, if any."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def fake_inputs(inputs: Any, fake: FakeTensorMode | None) -> Any:
    """The inputs with every real tensor as a fake one, or detached when the run is real."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if fake is None:
            return tensor.detach().requires_grad_(tensor.requires_grad)
        return fake.from_tensor(tensor)

    return tree_map_only(torch.Tensor, convert, inputs)


def constant_of(tensor: FakeTensor) -> torch.Tensor | None:
    """The data of a fake tensor that was made from numbers, if it is still known."""
    return tensor.constant


@contextlib.contextmanager
def symbolic_metadata() -> Iterator[None]:
    """Let the ops that give a fake tensor's sizes, strides and offset keep symbols: torch turns them into numbers."""
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    aten = torch.ops.aten
    kept = {op: handlers[op] for op in (aten.size.default, aten.stride.default, aten.storage_offset.default)}
    handlers[aten.size.default] = lambda args: tuple(args[0].size())
    handlers[aten.stride.default] = lambda args: tuple(args[0].stride())
    handlers[aten.storage_offset.default] = lambda args: args[0].storage_offset()
    try:
        yield
    finally:
        handlers.update(kept)


plain_getitem = torch._C.TensorBase.__getitem__
plain_setitem = torch._C.TensorBase.__setitem__
plain_bool = torch._C.TensorBase.__bool__


def plain_item(tensor: torch.Tensor) -> Any:
    """The number in a real tensor, past every mode that is active."""
    with torch.utils._mode_utils.no_dispatch():
        return torch._C.TensorBase.item(tensor)


LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "transformers")  # they log what is handled here


def dropout_owner() -> Any:
    """The object through which `torch.nn.functional` calls dropout."""
    return torch._VF


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """How many references torch itself holds to a tensor, and to its storage: each view of it is one of these."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
