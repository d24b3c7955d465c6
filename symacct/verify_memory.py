"""What verification compares of memory: bytes kept for backward and the peak, storage by storage.

With CPU behaviour both are compared with a real run: saved tensors as autograd's hooks see them, and the births and
deaths of every storage. With CUDA behaviour the same is read off a run on fake tensors, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from symacct.records import Trace
from symacct.tracing.run import trace_real
from symacct.tracing.source import ModelSource

HOOKS = "tensors that autograd's hooks saw in a real run"
LIVES = "births and deaths of storages in a real run"
FAKE = "births and deaths of storages in a run on fake tensors, CUDA behaviour"
UNSEEN = "no GPU here: torch.cuda.max_memory_allocated is not compared, kept bytes and the peak are those of fake tensors with CUDA behaviour"


def observed(source: ModelSource, device: str, sizes: dict[str, int], saved_by_hooks: int, fake: Trace) -> Iterator[tuple[str, str, int]]:
    """(formula key, oracle, what it saw) for kept bytes and the peak at these sizes."""
    if device == "cpu":
        yield "bytes.saved", HOOKS, saved_by_hooks
        yield "bytes.peak", LIVES, live_peak(trace_real(source, "train", sizes))
    else:
        yield "bytes.saved", FAKE, sum(fake.storages[storage] for storage in fake.kept)
        yield "bytes.peak", FAKE, live_peak(fake)


def live_peak(trace: Trace) -> int:
    """The most bytes alive at once: what the caller gave or got lives all the time, the rest from birth to death."""
    given = {out.storage for r in trace.records if r.op in ("parameter", "buffer", "state", "input") for out in r.outputs}
    storages = {out.id: out.storage for r in trace.records for out in r.outputs}
    held = given | {storages[value] for value in trace.outputs}
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
