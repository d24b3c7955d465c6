"""Recording a run: every ATen call that eager PyTorch makes, as it makes it.

A dispatch mode sees forward, backward and optimizer alike. It holds numbers and weak references, never a tensor:
one strong reference would make autograd clone gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from symacct.graph import HELD
from symacct.liveness import EARLY
from symacct.records import Record, Trace, Use, Value
from symacct.tracing import private
from symacct.tracing.held import Held
from symacct.tracing.lines import user_line
from symacct.tracing.private import expression_of
from symacct.tracing.regenerated import Regenerated
from symacct.tracing.results import bytes_of, positions, room_of, rooms
from symacct.tracing.shape_functions import result_of
from symacct.tracing.statistics import STATISTICS

_SKIPPED = frozenset({"aten._assert_async", "aten._assert_scalar", "aten.sym_constrain_range",
                      "aten.sym_constrain_range_for_size", "aten._assert_tensor_metadata"})


class Recorder(TorchDispatchMode):
    """Appends a `Record` for each op call to `trace`, with phase, module path and source line."""

    def __init__(self, trace: Trace, model: torch.nn.Module, device: str, built: dict[int, str]) -> None:
        super().__init__()
        self.trace = trace
        self.device = device
        self.phase = "forward"
        self.recomputing = 0
        self.paused = False
        self.line = ""  # the line of a call that is made again
        self.modules: list[str] = []
        self.early: set[tuple[int, str]] = set()  # (parameter, key) of states that the optimizer made when it was built
        self.leaves: set[int] = set()  # storages of inputs that require a gradient
        self._names: dict[int, list[str]] = {}
        self._built: dict[str, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._names.setdefault(id(module), []).append(name)
            self._built[name] = built.get(id(module), "")
        self._values: dict[int, tuple[weakref.ref[torch.Tensor], Value]] = {}
        self._alive: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._in_storage: dict[int, list[Value]] = {}
        self._numbered: list[Value] = []
        self._owner: dict[int, str] = {}
        self._forward_of: dict[int, tuple[str, str]] = {}
        self._schemas: dict[Any, tuple[str, tuple[str, ...]]] = {}
        self._regenerated = Regenerated(self)

    # What the recorder is told

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow module calls, and record, for the length of the block."""
        entered = torch_module.register_module_forward_pre_hook(self._enter)
        left = torch_module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with self, private.before_backward(self._differentiated):
                yield
        finally:
            entered.remove()
            left.remove()

    def bring_in(self, tensor: torch.Tensor, kind: str, name: str, *notes: str) -> int:
        """Record a tensor that exists before the step, or before its part that uses it; with the note "after", one
        that the step leaves behind. It may be a part of its storage, or have one element many times."""
        fresh, value = len(self.trace.storages), self._value(tensor)
        if value.storage == fresh:
            self.trace.storages[fresh] = room_of(tensor)
        owner, phase = name.rpartition(".")[0], "after" if "after" in notes else f"{kind}s"
        self._owner.setdefault(value.storage, owner)
        if kind == "input" and tensor.requires_grad:
            self.leaves.add(value.storage)
        self.trace.records.append(Record(kind, (), (value,), phase, owner, "", name, notes))
        return value.id

    def note_kept(self, loss: torch.Tensor, held: Held) -> None:
        """Call when only the loss is held: whatever else lives is kept for backward. What the model holds is
        where autograd refers to it."""
        given = ("parameter", "buffer", "state", "gradient")
        lasting = {out.storage for r in self.trace.records if r.op in given for out in r.outputs}
        theirs, saving = held.storages(), held.saved()
        own = {number for key, number in self._alive.items() if key in theirs}
        saved = {number for key, number in self._alive.items() if key in saving}
        self.trace.kept = (set(self._alive.values()) - lasting - own - {self._storage(loss)}) | saved
        self.trace.records[:] = [
            replace(r, notes=(HELD,)) if r.op == "constant" and r.outputs[0].storage in own else r
            for r in self.trace.records
        ]

    def note_read(self) -> None:
        """Call after backward: an input whose gradient is wanted is held for that; it is kept only if backward read it."""
        storage = {out.id: out.storage for r in self.trace.records for out in r.outputs}
        backward = (r for r in self.trace.records if r.phase in ("backward", "recompute"))
        read = {storage[use.value] for r in backward for use in r.uses if use.value in storage}
        self.trace.kept -= self.leaves - read

    def forget_states(self, names: set[str]) -> None:
        """Call after backward: a parameter that has no gradient has no state but what the optimizer was built with."""
        late = (r.op == "state" and EARLY not in r.notes for r in self.trace.records)
        self.trace.drop([made and r.name.rpartition(".")[0] in names for made, r in zip(late, self.trace.records, strict=True)])

    def owns(self, tensor: torch.Tensor, module: str) -> None:
        """Attribute what the optimizer does to this tensor's storage to a module."""
        self._owner[self._storage(tensor)] = module

    def value_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor that was recorded, if it was."""
        known = self._values.get(id(tensor))
        return known[1].id if known is not None and known[0]() is tensor else None

    def wrap_recomputed(self, function: Any) -> Any:
        """The function that a checkpoint calls again in backward, marked while it does so."""

        def recompute(*args: Any, **kwargs: Any) -> Any:
            if not private.in_backward():
                return function(*args, **kwargs)
            self.recomputing += 1
            outer, self.modules = self.modules, []
            try:
                return function(*args, **kwargs)
            finally:
                self.recomputing -= 1
                self.modules = outer

        return recompute

    # Module paths

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        names = self._names.get(id(module), [""])
        parent = self.modules[-1] if self.modules else ""
        inside = [name for name in names if name.startswith(f"{parent}." if parent else "")]
        self.modules.append((inside or names)[0])

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        if self.modules:
            self.modules.pop()

    # The calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        known = self._schemas.get(func)
        if known is None:
            schema = func._schema
            known = self._schemas[func] = (
                f"{func.namespace}.{schema.name.partition('::')[2]}",
                tuple(argument.name for argument in schema.arguments),
            )
        op, names = known
        if op == "aten.size":
            return list(args[0].shape)
        if op.startswith(("prim.", "profiler.")) or op in _SKIPPED:
            return func(*args, **kwargs)
        self._forget(self._regenerated.gone(func.is_view, args[0] if args else None))
        arguments = tuple((name, self._argument(value)) for name, value in zip(names, args, strict=False))
        arguments += tuple((name, self._argument(value)) for name, value in kwargs.items())
        phase, module, source = self._place(arguments)
        result = result_of(op, func, args, kwargs, self.device)
        if op in STATISTICS:
            result = STATISTICS[op](args, result, self.device)
        if op == "aten.lift_fresh":
            self._lifted(args[0], result)
        before, outputs = len(self.trace.storages), tuple(self._outputs(result))
        for tensor, room in rooms(op, dict(zip(names, args, strict=False)) | kwargs, result, self.device):
            if (number := self._storage(tensor)) >= before:
                self.trace.storages[number] = room
        self.trace.records.append(Record(op, arguments, outputs, phase, module, source))
        self.trace.calls[len(self.trace.records) - 1] = (func, positions(result))
        if func.is_view:
            self._regenerated.made(op, args[0], result)
        if phase == "optimizer":
            for out in outputs:
                self._owner.setdefault(out.storage, module)
        return result

    def _forget(self, views: list[tuple[int, Record]]) -> None:
        """These views never were. The node before theirs is of the op that they were made for."""
        for number, view in views:
            self._in_storage[view.outputs[0].storage].remove(view.outputs[0])
            self._forward_of.setdefault(number - 1, (view.module, view.source))

    def _differentiated(self, nodes: Iterable[Any]) -> None:
        """Backward starts from these nodes now."""
        self._forget(self._regenerated.gone(False, None))
        self._regenerated.replace(nodes)

    def _place(self, arguments: tuple[tuple[str, Any], ...]) -> tuple[str, str, str]:
        """Phase, module path and source line of the call about to be made."""
        if self.recomputing:
            return "recompute", self.modules[-1] if self.modules else "", user_line(3) or self.line
        if self.phase == "backward":
            return ("backward", *self._backward_origin())
        if self.phase == "optimizer":
            return "optimizer", self._owner_of(arguments), ""
        module = self.modules[-1] if self.modules else ""
        line = user_line(3) or self._built.get(module, "")
        self._forward_of.setdefault(private.sequence_number(), (module, line))
        return self.phase, module, line

    def _backward_origin(self) -> tuple[str, str]:
        node = private.running_node()
        if node is None:
            return "", ""
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._owner.get(self._storage(variable), ""), ""
        return self._forward_of.get(node._sequence_nr(), ("", ""))

    def _owner_of(self, arguments: Any) -> str:
        owners = {self._owner[value.storage] for value in self._used(arguments) if value.storage in self._owner}
        return owners.pop() if len(owners) == 1 else ""

    def _used(self, argument: Any) -> Iterator[Value]:
        if isinstance(argument, Use):
            yield self._numbered[argument.value]
        elif isinstance(argument, tuple):
            for part in argument:
                yield from self._used(part)

    # Values and storages

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Use(self._operand(value).id)
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(part) for part in value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return expression_of(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return str(value)

    def _outputs(self, result: Any) -> Iterator[Value]:
        if isinstance(result, torch.Tensor):
            yield self._value(result)
        elif isinstance(result, (list, tuple)):
            for part in result:
                yield from self._outputs(part)

    def _value(self, tensor: torch.Tensor) -> Value:
        """The value that this tensor is; a new one when it was not seen before."""
        known = self._values.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        shape = tuple(map(expression_of, tensor.shape))
        value = Value(len(self._numbered), shape, str(tensor.dtype).removeprefix("torch."), self._storage(tensor))
        self._numbered.append(value)
        self._remember(tensor, value)
        self._in_storage.setdefault(value.storage, []).append(value)
        return value

    def _remember(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = (weakref.ref(tensor), value)

    def _operand(self, tensor: torch.Tensor) -> Value:
        """The value of an operand. One never seen is a new face that autograd gave to a saved value, or a constant."""
        known = self._values.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        faces = self._in_storage.get(self._storage(tensor))
        if faces:
            shape = tuple(map(expression_of, tensor.shape))
            value = next((face for face in reversed(faces) if face.shape == shape), faces[-1])
            self._remember(tensor, value)
            return value
        value = self._value(tensor)
        module = self.modules[-1] if self.modules else ""
        self.trace.records.append(Record("constant", (), (value,), self.phase, module, "", ""))
        return value

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        number = self._alive.get(key)
        if number is None:
            number = self._alive[key] = len(self.trace.storages)
            self.trace.storages[number] = bytes_of(tensor)
            self._watchers[number] = weakref.ref(storage, lambda _, key=key, number=number: self._died(key, number))  # type: ignore[misc]
        return number

    def _lifted(self, made: torch.Tensor, result: torch.Tensor) -> None:
        """A tensor made of numbers, and the fake one that now stands for it: one storage, that lives as the second does."""
        number, storage = self._storage(made), result.untyped_storage()
        key, old = storage._cdata, made.untyped_storage()._cdata
        if key != old and key not in self._alive:
            self._alive[key] = self._alive.pop(old)
            self._watchers[number] = weakref.ref(storage, lambda _: self._died(key, number))

    def _died(self, key: int, number: int) -> None:
        if self._alive.get(key) == number:
            del self._alive[key]
        self._watchers.pop(number, None)
        self.trace.deaths.append((len(self.trace.records), number))


def _current() -> Recorder | None:
    return next((mode for mode in private.dispatch_modes() if isinstance(mode, Recorder)), None)


@contextmanager
def paused() -> Iterator[None]:
    """What runs in the block is not recorded, nor seen by any other mode where nothing records."""
    recorder = _current()
    if recorder is None:
        with private.no_dispatch_modes():
            yield
        return
    recorder.paused = True
    try:
        yield
    finally:
        recorder.paused = False


def standing() -> list[str]:
    """The paths of the modules that run now, outermost first; nothing where nothing records."""
    recorder = _current()
    return list(recorder.modules) if recorder is not None else []


@contextmanager
def standing_at(modules: list[str], line: str) -> Iterator[None]:
    """Calls of the block belong to these modules and this line."""
    recorder = _current()
    if recorder is None:
        yield
        return
    before, recorder.modules, recorder.line = recorder.modules, modules, line
    try:
        yield
    finally:
        recorder.modules, recorder.line = before, ""
