"""Cold processes, timed: a fresh interpreter each, rounds of all of them in turn, the median of each."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ALONE = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the clock, seconds of the processor, and what the process wrote to stdout."""

    clock: float
    processor: float
    stdout: str


def run(words: Sequence[str]) -> Cost:
    """Run `python WORDS` to its end. Raises RuntimeError with its stderr when it fails."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, **_ALONE}
    )
    clock, after = time.perf_counter() - began, os.times()
    if done.returncode:
        raise RuntimeError(f"python {' '.join(words)}: {done.stderr.strip()}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(clock, used, done.stdout)


def medians(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Cost]:
    """Each command's median cost. The commands take turns: a busy spell of the machine hits them all."""
    runs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            runs[name].append(run(words))
    return {
        name: Cost(
            statistics.median(cost.clock for cost in costs),
            statistics.median(cost.processor for cost in costs),
            costs[0].stdout,
        )
        for name, costs in runs.items()
    }
