"""How long a rank waits for its links in a step: one rule for a plan's numbers and a search's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_WAITED = ("tp", "cp", "ep", "pp")


def waited(seconds: Mapping[str, Any], work: Any, most: Callable[[Any, Any], Any] = max) -> Any:
    """Seconds waited, of those that traffic takes on each axis alone, beside `work` seconds of arithmetic.

    Traffic of tp, cp, ep and pp is waited for; that of dp runs beside the backward pass, two thirds of the
    arithmetic, and what is left of it is waited for. `most` is the larger of two, elementwise for arrays.
    """
    return sum(seconds.get(axis, 0) for axis in _WAITED) + most(0, seconds.get("dp", 0) - 2 * work / 3)
