"""When the storages of one rank die: as in the whole step, and what a collective makes with its last reader.

A sum is made in place of its summands; what is scattered dies with the scatter, if nothing else reads it. A gathered
input that is kept for backward dies where the whole tensor would; the part it was gathered from is taken to live as
long, so that live bytes are never less than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import sympy as sp

from symacct.graph import Death, Loop
from symacct.symbols import symbol

if TYPE_CHECKING:
    from symacct.parallel.sharding import Birth, Sharder

_EARLY = ("forward", "loss")


def deaths_of(sharder: Sharder) -> Mapping[str, tuple[Death, ...]] | None:
    """Where each storage of a rank dies; None where the whole step's deaths follow no rule."""
    if sharder.graph.deaths is None:
        return None
    found = dict(sharder.graph.deaths)
    for storage, birth in sharder.births.items():
        made = sharder.home[birth.source] if birth.source in sharder.home else None
        if birth.source in found and sharder.last[birth.source] == birth.node and made == _regions(birth):
            found[birth.source] = (_after(birth.node, birth.loops),)
        reader = sharder.last.get(storage, birth.node)
        phase, regions = sharder.where[reader]
        if regions == _regions(birth) and (phase in _EARLY) == (birth.phase in _EARLY):
            found[storage] = (_after(reader, birth.loops),)
        elif birth.source in sharder.graph.deaths and made == _regions(birth):
            found[storage] = sharder.graph.deaths[birth.source]
    return found


def _regions(birth: Birth) -> tuple[int, ...]:
    return tuple(id(loop) for loop in birth.loops)


def _after(node: str, loops: tuple[Loop, ...]) -> Death:
    at = tuple(symbol(f"i{k + 1}") for k in range(len(loops)))
    return Death(node, at, tuple((sp.Integer(0), loop.count - 1) for loop in loops))
