"""What verification compares of memory: bytes kept for backward and the peak, storage by storage.

With CPU behaviour both are compared with a real run: saved tensors as autograd's hooks see them, and the
births and deaths of every storage. With CUDA behaviour the same is read off a run on fake tensors; where
there is a GPU, a real step there is measured too, and without one a note says that it was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from symacct.graph import HELD, Graph
from symacct.oracles import default_loss
from symacct.records import Trace
from symacct.tracing.run import trace_real, unwrapped
from symacct.tracing.source import ModelSource

HOOKS = "tensors that autograd's hooks saw in a real run"
LIVES = "births and deaths of storages in a real run"
FAKE = "births and deaths of storages in a run on fake tensors, CUDA behaviour"
_BLOCK = 512
UNSEEN = (
    "no GPU here: torch.cuda.max_memory_allocated is not compared, kept bytes and the peak are those of fake "
    "tensors with CUDA behaviour"
)
FIRST = "births and deaths of storages in a real first step"
ON_GPU = "bytes that a real step on the GPU asks the allocator for at most, workspaces left out"


def observed(
    source: ModelSource, graph: Graph, sizes: dict[str, int], saved_by_hooks: tuple[int, int], fake: Trace
) -> Iterator[tuple[str, str, int]]:
    """(formula key, oracle, what it saw) for kept bytes and the peak at these sizes. `saved_by_hooks` are bytes
    beside those of the model's own tensors, and of its buffers."""
    if graph.device == "cpu":
        yield "bytes.peak", LIVES, live_peak(trace_real(source, graph.mode, sizes))
    else:
        yield "bytes.peak", FAKE, live_peak(fake)
    if graph.mode == "train" and graph.device == "cpu":
        yield "bytes.saved", HOOKS, saved_by_hooks[0]
        yield "bytes.saved_buffers", HOOKS, saved_by_hooks[1]
    elif graph.mode == "train":
        own = held_by_model(fake)
        yield "bytes.saved", FAKE, sum(fake.storages[storage] for storage in fake.kept - own)
        yield "bytes.saved_buffers", FAKE, sum(fake.storages[storage] for storage in fake.kept & own)


def held_by_model(trace: Trace) -> set[int]:
    """The storages of buffers, and of tensors that the model holds as plain attributes."""
    return {out.storage for r in trace.records if r.op == "buffer" or HELD in r.notes for out in r.outputs}


def first_peak(source: ModelSource, sizes: dict[str, int]) -> int:
    """The peak of a real first step on the CPU, which makes the optimizer's state."""
    return live_peak(trace_real(source, "train", sizes, first=True))


def gpu() -> bool:
    """Whether a GPU is there to run on."""
    return torch.cuda.is_available()


def on_gpu(source: ModelSource, sizes: dict[str, int]) -> tuple[int, int]:
    """The peak of a steady step on the GPU: bytes asked for, and bytes of the allocator's blocks.

    What libraries allocate once for themselves (cuBLAS's workspace) is there before the step that is
    measured, and left out of both. Raises RuntimeError where the model does not run there.
    """
    model = unwrapped(source.model(sizes)).cuda().train()
    inputs = tree_map_only(
        torch.Tensor, lambda t: t.detach().cuda().requires_grad_(t.requires_grad), source.inputs(sizes)
    )
    optimizer = (source.optimizer or torch.optim.AdamW)([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        _step(source, model, inputs, optimizer, sizes)
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    held = _blocks(
        [*model.parameters(), *model.buffers(), *tree_leaves((inputs, list(optimizer.state.values())))]
    )
    before = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    output = _step(source, model, inputs, optimizer, sizes)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del output
    idle_asked = before["requested_bytes.all.current"] - held[0]
    idle_blocks = before["allocated_bytes.all.current"] - held[1]
    on_host = sum(
        t.untyped_storage().nbytes()
        for t in tree_leaves(list(optimizer.state.values()))
        if isinstance(t, torch.Tensor) and not t.is_cuda
    )
    return after["requested_bytes.all.peak"] - idle_asked + on_host, after[
        "allocated_bytes.all.peak"
    ] - idle_blocks


def _step(
    source: ModelSource, model: torch.nn.Module, inputs: Any, optimizer: Any, sizes: dict[str, int]
) -> Any:
    """One training step; the output comes back, as the caller of a step holds it."""
    optimizer.zero_grad(set_to_none=True)
    output = (
        model(**inputs)
        if isinstance(inputs, dict)
        else model(*inputs)
        if isinstance(inputs, tuple)
        else model(inputs)
    )
    loss = source.loss(output, sizes, inputs) if source.loss is not None else default_loss(output)
    loss.backward()
    optimizer.step()
    return output


def _blocks(tensors: Iterable[Any]) -> tuple[int, int]:
    """Bytes of the distinct storages on the GPU, and of the blocks of 512 bytes that hold them."""
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in tensors
        if isinstance(t, torch.Tensor) and t.is_cuda
    }
    return sum(storages.values()), sum(-(-size // _BLOCK) * _BLOCK for size in storages.values())


def live_peak(trace: Trace) -> int:
    """The most bytes alive at once: what the caller gave or got lives all the time, buffers from the start, the
    rest from birth to death."""
    storages = {out.id: out.storage for r in trace.records for out in r.outputs}
    given, held = set(), {storages[value] for value in trace.outputs}
    for record in trace.records:
        there = {out.storage for out in record.outputs}
        given |= there if record.op in ("parameter", "buffer", "state", "input") else set()
        held |= there if record.op in ("parameter", "state", "input") else set()
    changes = [0] * (len(trace.records) + 1)
    born = dict.fromkeys(given, 0)
    for number, record in enumerate(trace.records):
        for out in record.outputs:
            born.setdefault(out.storage, number)
    ends = {storage: at for at, storage in trace.deaths if storage not in held}
    for storage, start in born.items():
        changes[start] += trace.storages[storage]
        changes[max(start, ends.get(storage, len(trace.records)))] -= trace.storages[storage]
    live = most = 0
    for change in changes[:-1]:
        live += change
        most = max(most, live)
    return most
