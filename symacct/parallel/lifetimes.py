"""When the storages of one rank die: as in the whole step, and what a collective makes with its last reader.

A sum is made in place of its summands; what is scattered dies with the scatter, if nothing else reads it. A gathered
input that is kept for backward dies where the whole tensor would; the part it was gathered from is taken to live as
long, so that live bytes are never less than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import sympy as sp

from symacct.graph import Death, Graph, Loop
from symacct.symbols import symbol

_EARLY = ("forward", "loss")


@dataclass(frozen=True, slots=True)
class Birth:
    """A storage that a collective makes: by which node, in which regions, of which storage, and in which phase."""

    node: str
    loops: tuple[Loop, ...]
    source: str
    phase: str


class Walked(Protocol):
    """What a walk over a graph leaves: births, the last reader of each storage, and where every node stands."""

    graph: Graph
    births: dict[str, Birth]
    last: dict[str, str]
    where: dict[str, tuple[str, tuple[int, ...]]]
    home: dict[str, tuple[int, ...]]


def deaths_of(walk: Walked) -> Mapping[str, tuple[Death, ...]] | None:
    """Where each storage of a rank dies; None where the whole step's deaths follow no rule."""
    if walk.graph.deaths is None:
        return None
    found = dict(walk.graph.deaths)
    for storage, birth in walk.births.items():
        made = walk.home.get(birth.source)
        if birth.source in found and walk.last[birth.source] == birth.node and made == _regions(birth):
            found[birth.source] = (_after(birth.node, birth.loops),)
        reader = walk.last.get(storage, birth.node)
        phase, regions = walk.where[reader]
        if regions == _regions(birth) and (phase in _EARLY) == (birth.phase in _EARLY):
            found[storage] = (_after(reader, birth.loops),)
        elif birth.source in walk.graph.deaths and made == _regions(birth):
            found[storage] = walk.graph.deaths[birth.source]
    return found


def _regions(birth: Birth) -> tuple[int, ...]:
    return tuple(id(loop) for loop in birth.loops)


def _after(node: str, loops: tuple[Loop, ...]) -> Death:
    at = tuple(symbol(f"i{k + 1}") for k in range(len(loops)))
    return Death(node, at, tuple((sp.Integer(0), loop.count - 1) for loop in loops))
