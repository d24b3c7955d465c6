"""One step of a model under the recorder: build, forward, loss, backward, optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from symacct.errors import ModelFileError
from symacct.graph import MASTER
from symacct.liveness import EARLY
from symacct.records import Trace, template
from symacct.tracing import inference, private
from symacct.tracing.held import Held
from symacct.tracing.masters import MasterWeights, casting
from symacct.tracing.patches import patched
from symacct.tracing.private import FakeTensorMode, SymbolicSizes
from symacct.tracing.recorder import Recorder
from symacct.tracing.shape_functions import Shaping
from symacct.tracing.source import ModelSource
from symacct.tracing.stepping import checked, dense, remarks, stepping
from symacct.tracing.user_code import guarding

TRAINING = "train"
RECOMPUTED = "_symacct_recomputed"  # what a class says whose calls go through a checkpoint by choice


def trace_symbolic(source: ModelSource, mode: str, device: str, fixed: dict[str, int] | None = None) -> Trace:
    """Run once with every size a symbol (but those `fixed`), on fake tensors. Guards and pins come along."""
    sizes = SymbolicSizes({**source.dims, **(fixed or {})}, fixed or ())
    trace = Trace(dict(sizes.sizes))
    _run(source, mode, device, trace, sizes.fake_mode())
    _settle(trace, sizes)
    return trace


def trace_concrete(
    source: ModelSource, mode: str, device: str, sizes: dict[str, int], first: bool = False, stepped: bool = True
) -> Trace:
    """Run once at these numbers, on fake tensors: the same ops, no data, no arithmetic.

    The step is a steady one, with the optimizer's state in place; with `first` it is the first, which makes that state.
    A step that is not `stepped` ends where the optimizer's begins.

    A ready model (no named sizes) whose ops depend on its data runs on a copy with the data it came with.
    """
    trace = Trace(dict(sizes))
    try:
        _run(source, mode, device, trace, FakeTensorMode(allow_non_fake_inputs=True), first, stepped)
        return trace
    except ModelFileError as error:
        if not private.is_data_dependent(error.__cause__):
            raise
    trace = Trace(dict(sizes))
    if not sizes:
        _run(source, mode, device, trace, None, first, stepped)
        return trace
    known = SymbolicSizes(dict(sizes), sizes)
    _run(source, mode, device, trace, known.fake_mode(), first, stepped)
    _settle(trace, known)
    return trace


def trace_real(source: ModelSource, mode: str, sizes: dict[str, int], first: bool = False) -> Trace:
    """Run once for real, on the CPU, at these sizes: real tensors, real kernels, real births and deaths."""
    trace = Trace(dict(sizes))
    _run(source, mode, "cpu", trace, None, first)
    return trace


def _settle(trace: Trace, sizes: SymbolicSizes) -> None:
    """Turn torch's expressions into ours, once the run has said all it knows about them."""
    from symacct.records import Record, Value

    ours = sizes.ours

    def settle(value: Value) -> Value:
        return Value(value.id, tuple(map(ours, value.shape)), value.dtype, value.storage)

    def argument(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(argument, part))
        return ours(part) if hasattr(part, "free_symbols") else part

    trace.records = [
        Record(
            r.op, tuple((n, argument(a)) for n, a in r.arguments), tuple(map(settle, r.outputs)),
            r.phase, r.module, r.source, r.name, r.notes,
        )
        for r in trace.records
    ]
    trace.storages = {number: ours(size) for number, size in trace.storages.items()}
    trace.pins = sizes.pins()
    trace.guards = sizes.guards()
    trace.merged = sizes.merged()
    trace.sizes = dict(sizes.hints)


def _run(source: ModelSource, mode: str, device: str, trace: Trace, fake: FakeTensorMode | None, first: bool = False, stepped: bool = True) -> None:
    source = inference.in_mode(source, mode)
    holder: list[Recorder] = []
    built: dict[int, str] = {}

    def recompute(function: Any) -> Any:
        return holder[0].wrap_recomputed(function) if holder else function

    with patched(device, recompute, source.modules, trace.branches.append, built), fake or contextlib.nullcontext(), torch.inference_mode(False), torch.enable_grad():
        with guarding(source, "model(...)"):
            model = source.model(trace.sizes)
        with guarding(source, "inputs(...)"):
            inputs = source.inputs(trace.sizes)
        if not isinstance(unwrapped(model), torch.nn.Module):
            raise ModelFileError(f"{source.name}: model(...) returned a {type(model).__name__}; it must return an nn.Module")
        model = private.own_copy(unwrapped(model), fake)
        inputs = private.fake_inputs(inputs, fake)
        model.train(mode == TRAINING)
        trace.remarks += _recomputed(model)
        recorder = Recorder(trace, model, device, built)
        holder.append(recorder)
        optimizer = _prepared_optimizer(source, model, recorder, first) if mode == TRAINING and stepped else None
        cache = _cache(source, model, mode, trace.sizes, fake)
        if source.accumulated and mode == TRAINING:
            _micro_step(source, model, fake, device, trace.sizes)
        _bring_in(recorder, model, inputs, optimizer, cache)
        if mode == TRAINING:
            held = [inputs]
            del inputs
            _training_step(source, model, held, optimizer, recorder)
        else:
            _inference(source, model, inputs, recorder, cache)


def unwrapped(model: Any) -> torch.nn.Module:
    """The user's own module inside torch.compile's and DDP's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _recomputed(model: torch.nn.Module) -> list[str]:
    """Which modules were chosen to be recomputed, in words."""
    chosen = [path for path, module in model.named_modules() if getattr(module, RECOMPUTED, False)]
    whole = {template(path) for path in chosen} - {template(path) for path, _ in model.named_modules() if path not in chosen}
    paths = dict.fromkeys(name if (name := template(path)) in whole else path for path in chosen)
    return [f"recomputed in backward: {', '.join(paths)}"] if paths else []


def _prepared_optimizer(source: ModelSource, model: torch.nn.Module, recorder: Recorder, first: bool) -> Any:
    """The optimizer with its state in place, so that the recorded step is a steady one, unless it is to be the first."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        return None
    dense(source.name, model)
    with guarding(source, "optimizer(...)"):
        made = checked(source.name, source.optimizer(trainable) if source.optimizer else torch.optim.AdamW(trainable))
        recorder.trace.remarks += remarks(made, frozen=any(not p.requires_grad for p in model.parameters()))
        recorder.early = {(id(p), key) for p, state in made.state.items() for key in state}
        if first:
            return made
        for p in trainable:
            p.grad = torch.empty_like(p)
        with stepping(recorder.trace.remarks.append), Shaping():
            made.step()
        made.zero_grad(set_to_none=True)
    return made


def _cache(source: ModelSource, model: torch.nn.Module, mode: str, sizes: Any, fake: FakeTensorMode | None) -> dict[str, Any]:
    """The keywords that bring the cache into the step: empty before a prompt, with the prompt's tokens before decoding."""
    if mode not in inference.CACHED or source.cache is None or source.prompt is None:
        return {}
    with guarding(source, "cache(...)"):
        cache = source.cache(model, sizes)
    if mode == "decode":
        with guarding(source, "filling the cache"), torch.no_grad():
            _call(model, private.fake_inputs(source.prompt(sizes), fake), **cache)
        inference.checked(source, cache)
    return cache


def _bring_in(recorder: Recorder, model: torch.nn.Module, inputs: Any, optimizer: Any, cache: dict[str, Any]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, parameter in model.named_parameters():
        tied = [f"tied:{other}" for other in names[id(parameter)] if other != name]
        recorder.bring_in(parameter, "parameter", name, *(["trainable"] if parameter.requires_grad else []), *tied)
    for name, buffer in model.named_buffers():
        recorder.bring_in(buffer, "buffer", name)
    for name, tensor in _tensors(inputs, "input"):
        recorder.bring_in(tensor, "input", name)
    for name, tensor in inference.tensors_of(cache):
        recorder.bring_in(tensor, "cache", name)
    if optimizer is not None:
        _bring_in_states(recorder, model, optimizer)
    _bring_in_gradients(recorder, model, optimizer if isinstance(optimizer, MasterWeights) else None)


def _bring_in_states(recorder: Recorder, model: torch.nn.Module, optimizer: Any) -> None:
    by_parameter = {id(p): name for name, p in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        name = by_parameter.get(id(parameter), "")
        for key, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                notes = [EARLY] if (id(parameter), key) in recorder.early else []
                notes += [MASTER] if key == MASTER and isinstance(optimizer, MasterWeights) else []
                recorder.bring_in(tensor, "state", f"{name}.{key}", *notes)
                recorder.owns(tensor, name.rpartition(".")[0])


def _bring_in_gradients(recorder: Recorder, model: torch.nn.Module, optimizer: MasterWeights | None = None) -> None:
    """The gradients that are there: after backward those of the step; before it those that outlive steps."""
    buffers = {id(p): buffer for p, buffer in optimizer.gradients()} if optimizer is not None else {}
    known = {out.id for record in recorder.trace.records if record.op == "gradient" for out in record.outputs}
    for name, parameter in model.named_parameters():
        for gradient in (parameter.grad, buffers.get(id(parameter))):
            if gradient is not None and recorder.value_of(gradient) not in known:
                recorder.owns(gradient, name.rpartition(".")[0])
                recorder.bring_in(gradient, "gradient", name)


def _micro_step(source: ModelSource, model: torch.nn.Module, fake: FakeTensorMode | None, device: str, sizes: Any) -> None:
    """An earlier micro-batch, which is not recorded: it leaves its gradients."""
    inputs = private.fake_inputs(source.inputs(sizes), fake)
    with guarding(source, "an earlier micro-batch"), casting(source, device):
        output = _call(model, inputs)
        loss = _loss_of(source, output, sizes, inputs)
    if loss.requires_grad:
        with guarding(source, "the backward pass of an earlier micro-batch"):
            loss.backward()


def _tensors(tree: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, part in tree.items():
            yield from _tensors(part, str(key))
    elif isinstance(tree, (list, tuple)):
        for position, part in enumerate(tree):
            yield from _tensors(part, f"{name}_{position}")


def _call(model: torch.nn.Module, inputs: Any, **more: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs, **more)
    return model(*inputs, **more) if isinstance(inputs, tuple) else model(inputs, **more)


def _kind(given: Any) -> str:
    return f"one with {given.dim()}" if isinstance(given, torch.Tensor) else f"a {type(given).__name__}"


def _loss_of(source: ModelSource, output: Any, sizes: Any, inputs: Any) -> torch.Tensor:
    if source.loss is not None:
        given = source.loss(output, sizes, inputs)
        if not isinstance(given, torch.Tensor) or given.dim():
            raise ModelFileError(f"{source.name}: loss(...) must return a tensor without dimensions, not {_kind(given)}")
        return given
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    tree = output if isinstance(output, (torch.Tensor, dict, list, tuple)) else vars(output)
    parts = [t for _, t in _tensors(tree, "output") if t.is_floating_point()]
    if not parts:
        raise ModelFileError(f"{source.name}: the output holds no floating tensor to sum; define loss(output)")
    total = parts[0].sum()
    for part in parts[1:]:
        total = total + part.sum()
    return total


def _training_step(source: ModelSource, model: Any, held: list[Any], optimizer: Any, recorder: Recorder) -> None:
    """Forward, loss, backward, step. `held` holds the inputs, which are let go before backward, as the output is:
    what lives on then, autograd keeps."""
    own = Held(model)
    with recorder.watching():
        loss = _forward_and_loss(source, model, held, recorder)
        recorder.note_kept(loss, own)
        recorder.phase = "backward"
        if loss.requires_grad:
            with guarding(source, "the backward pass"):
                loss.backward()
        recorder.note_read()
        if not isinstance(optimizer, MasterWeights):  # which takes the gradients from the parameters
            recorder.forget_states({name for name, p in model.named_parameters() if p.requires_grad and p.grad is None})
        recorder.phase = "optimizer"
        _bring_in_gradients(recorder, model)
        if optimizer is not None:
            with guarding(source, "the optimizer's step"), stepping(recorder.trace.remarks.append):
                optimizer.step()


def _forward_and_loss(source: ModelSource, model: Any, held: list[Any], recorder: Recorder) -> torch.Tensor:
    inputs = held.pop()
    with guarding(source, "the forward pass"), casting(source, recorder.device):
        output = _call(model, inputs)
    recorder.phase, recorder.modules = "loss", []
    with guarding(source, "loss(...)"), casting(source, recorder.device):
        loss = _loss_of(source, output, recorder.trace.sizes, inputs)
    recorder.trace.outputs = _values(output, recorder)
    return loss


def _values(output: Any, recorder: Recorder) -> tuple[int, ...]:
    return tuple(v for _, t in _tensors(output, "output") if (v := recorder.value_of(t)) is not None)


def _inference(source: ModelSource, model: Any, inputs: Any, recorder: Recorder, cache: dict[str, Any]) -> None:
    with torch.no_grad(), recorder.watching(), guarding(source, "the forward pass"):
        output = _call(model, inputs, **cache)
    if cache:
        for name, tensor in inference.tensors_of(inference.checked(source, cache)):
            recorder.bring_in(tensor, "cache", name, "after")
        recorder.trace.remarks += inference.parts_of_longer(recorder.trace)
    recorder.trace.outputs = _values(output, recorder)
