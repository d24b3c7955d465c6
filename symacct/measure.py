"""Real steps of a model on the present device, and a matrix product to compare them with. Imports torch.

A step is that of the ledger: train() with zero_grad(set_to_none=True), forward, loss, backward and the
optimizer's step; or eval() under no_grad. A step of prefill fills an empty cache, one of decode reads a token
behind T cached ones. Each is timed from an idle device to an idle device.
"""

from __future__ import annotations

import contextlib
import copy
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from symacct.account import Ledger
from symacct.errors import ModelFileError, SymacctError, Unsupported
from symacct.evaluation import evaluate
from symacct.oracles import default_loss
from symacct.plan.roofline import chief_dtype
from symacct.plan.speed import Clock, Product, Timing, timed
from symacct.report.numbers import size
from symacct.tracing.inference import CACHED, checked, in_mode
from symacct.tracing.run import unwrapped
from symacct.tracing.source import ModelSource

DEVICES = ("cuda", "cpu")
SIDES = {"cuda": 8192, "cpu": 1024}
_REPEATS = 10
_SEED = 1
Step = Callable[[Any], Any]


def present(asked: str | None = None) -> str:
    """Where to run: the device asked for, else CUDA if there is one. Raises Unsupported for an absent one."""
    here = torch.cuda.is_available()
    if asked == "cuda" and not here:
        raise Unsupported(
            "--device cuda: torch finds no CUDA device here; leave the option out to measure on the CPU"
        )
    return asked or ("cuda" if here else "cpu")


def measure(
    source: ModelSource,
    ledger: Ledger,
    sizes: Mapping[str, int],
    device: str,
    count: int = 10,
    warmup: int = 3,
    clock: Clock = time.perf_counter_ns,
    side: int | None = None,
) -> Timing:
    """Time `count` steps of a source at these sizes after `warmup` others, then a product of its dtype.

    Raises Unsupported where memory does not suffice, ModelFileError where the model's own code fails.
    """
    _check_memory(ledger, sizes, device)
    with _guarded(source.name), contextlib.redirect_stdout(sys.stderr):
        nanoseconds, peak = _steps(source, ledger.graph.mode, sizes, device, count, warmup, clock)
    if device == "cuda":
        torch.cuda.empty_cache()  # the model is gone: room for the product
    product = timed_product(chief_dtype(ledger, sizes), device, clock, side)
    narrow = device == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return Timing(nanoseconds, warmup, device, named(device), product, peak, narrow)


def _steps(
    source: ModelSource,
    mode: str,
    sizes: Mapping[str, int],
    device: str,
    count: int,
    warmup: int,
    clock: Clock,
) -> tuple[tuple[int, ...], int | None]:
    """Nanoseconds of each step, and on CUDA the most bytes that tensors held."""
    step, prepare = _step(source, mode, sizes, device)
    if device != "cuda":
        return timed(step, count, warmup, clock, prepare), None
    torch.cuda.reset_peak_memory_stats()
    found = timed(_waiting(step, device), count, warmup, clock, prepare)
    return found, torch.cuda.max_memory_allocated()


def timed_product(
    dtype: str, device: str, clock: Clock = time.perf_counter_ns, side: int | None = None
) -> Product:
    """The fastest of several square products, in torch's dtype of this name."""
    n = side or SIDES[device]
    a, b = (torch.randn(n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(a)
    found = timed(_waiting(lambda _: torch.mm(a, b, out=out), device), _REPEATS, 2, clock)
    return Product(n, dtype, min(found))


def named(device: str) -> str:
    """What the device calls itself."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _step(
    source: ModelSource, mode: str, sizes: Mapping[str, int], device: str
) -> tuple[Step, Callable[[], Any]]:
    """A step of the model, and what makes its cache; every tensor on the device."""
    source = in_mode(source, mode)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(_SEED)
        model = unwrapped(source.model(sizes)).to(device)
        inputs = tree_map_only(torch.Tensor, lambda t: t.to(device), source.inputs(sizes))
    model.train(mode == "train")
    if mode == "train":
        return _training(source, model, inputs, sizes), lambda: None

    def step(cache: Any) -> None:
        with torch.no_grad():
            _call(model, inputs, **(cache or {}))

    return step, _caches(source, model, mode, sizes, device)


def _training(source: ModelSource, model: torch.nn.Module, inputs: Any, sizes: Mapping[str, int]) -> Step:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = (source.optimizer or torch.optim.AdamW)(trained) if trained else None
    judge = source.loss
    held: dict[str, Any] = {}

    def step(_: Any) -> None:
        held.clear()
        model.zero_grad(set_to_none=True)
        output = _call(model, inputs)
        loss = default_loss(output) if judge is None else judge(output, sizes, inputs)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        held.update(output=output, loss=loss)  # alive to the end of the step, as in the ledger's peak

    return step


def _caches(
    source: ModelSource, model: torch.nn.Module, mode: str, sizes: Mapping[str, int], device: str
) -> Callable[[], Any]:
    """What gives each step its own cache: empty before a prompt, with the prompt's tokens before decoding."""
    make = source.cache
    if mode not in CACHED or make is None:
        return lambda: None
    with torch.device(device):
        full = make(model, sizes)
    if mode == "decode" and source.prompt is not None:
        prompt = tree_map_only(torch.Tensor, lambda t: t.to(device), source.prompt(sizes))
        with torch.no_grad():
            _call(model, prompt, **full)
        checked(source, full)
    return lambda: copy.deepcopy(full)


def _call(model: torch.nn.Module, inputs: Any, **cache: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs, **cache)
    return model(*inputs, **cache) if isinstance(inputs, tuple | list) else model(inputs, **cache)


def _waiting(step: Step, device: str) -> Step:
    """The step, finished when the device is."""
    if device != "cuda":
        return step

    def whole(given: Any) -> None:
        step(given)
        torch.cuda.synchronize()

    return whole


@contextlib.contextmanager
def _guarded(name: str) -> Iterator[None]:
    try:
        yield
    except SymacctError:
        raise
    except torch.OutOfMemoryError as error:
        raise Unsupported(
            f"{name}: no memory for a step at these sizes ({_first_line(error)}); take smaller ones"
        ) from error
    except Exception as error:
        raised = f"{type(error).__name__}: {_first_line(error)}"
        raise ModelFileError(f"{name}: a step at these sizes raised {raised}") from error


def _check_memory(ledger: Ledger, sizes: Mapping[str, int], device: str) -> None:
    """Refuse sizes whose tensors exceed what the device has, before it tries."""
    found = ledger.formulas
    least = max(int(evaluate(found[key], sizes)) for key in ("bytes.peak", "bytes.params") if key in found)
    there = memory(device)
    if there is not None and least > there:
        held = f"{ledger.graph.target} holds {size(least)} of tensors at these sizes"
        raise Unsupported(f"{held}, and this {device} has {size(there)}; take smaller sizes")


def memory(device: str) -> int | None:
    """Bytes of memory of the device; None where the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
