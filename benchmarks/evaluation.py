"""How many configurations a second a derived formula is evaluated at."""

from __future__ import annotations

import time

import numpy as np

import symacct
from symacct.expressions import evaluate, evaluator

CONFIGURATIONS = 1_000_000
_LARGEST = {"B": 64, "T": 8192, "V": 131072, "L": 96, "d": 8192, "h": 64, "f": 32768}


def rate(key: str = "flops.step", rounds: int = 5) -> float:
    """Evaluations a second of a formula of gpt2 in the best round; a sample is compared with exact values."""
    formula = symacct.derive("gpt2").formulas[key]
    random = np.random.default_rng(0)
    sizes = {name: random.integers(1, most, CONFIGURATIONS) for name, most in _LARGEST.items()}
    compute = evaluator(formula, exact="int64")
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        values = compute(**sizes)
        seconds.append(time.perf_counter() - began)
    for at in range(0, CONFIGURATIONS, CONFIGURATIONS // 20):
        point = {name: int(column[at]) for name, column in sizes.items()}
        if values[at] != evaluate(formula, point):
            raise RuntimeError(f"{key} at {point}: {values[at]} is wrong")
    return CONFIGURATIONS / min(seconds)
