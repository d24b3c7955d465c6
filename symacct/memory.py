"""Who keeps what: for each storage kept for backward, how often, in which sum it counts, and the backward ops that
read it; for each view, what it looks at."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.graph import Graph, Placed, total_over
from symacct.saved import held_by_model, saved_buffers, saved_bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """What is there for backward to read: how often and how many bytes over all repetitions, the formula that
    counts them, and the backward ops that read it, in execution order. No formula counts a parameter, nor a buffer
    that only a recomputation reads: the model holds both, and autograd refers to the first alone."""

    times: Expr
    bytes: Expr
    counted_in: str
    readers: tuple[Placed, ...]

    @property
    def held(self) -> bool:
        """Whether the model holds it anyway, so that it costs nothing to keep."""
        return self.counted_in != "bytes.saved"


def kept(graph: Graph) -> dict[str, Kept]:
    """What is kept for backward, by the value that the storage was made for. Where what is kept follows no rule,
    only what the model holds anyway is told."""
    readers = keepers(graph)
    found = {}
    for key, sizes in (("bytes.saved", saved_bytes(graph)), ("bytes.saved_buffers", saved_buffers(graph))):
        for value, size in sizes.items():
            found[value] = Kept((graph.kept or {})[value], size, key, readers.get(value, ()))
    made = makers(graph)
    for value, places in readers.items():
        if value not in found and places:
            size = graph.storages.get(value, graph.tensors()[value].bytes)
            found[value] = Kept(made[value].times, sp.expand(total_over(size, made[value].loops)), "", places)
    return found


def keepers(graph: Graph) -> dict[str, tuple[Placed, ...]]:
    """The backward nodes that read a storage which is kept or which the model holds anyway, by the value that the
    storage was made for, in execution order."""
    storage_of = {name: tensor.storage for name, tensor in graph.tensors().items()}
    parameters = {out.value for place in graph.sources("parameter") for out in place.node.outputs}
    asked = [*(graph.kept or ()), *held_by_model(graph), *parameters]
    found: dict[str, list[Placed]] = {name: [] for name in asked if storage_of[name] == name}
    for place in graph.ops:
        if place.node.phase not in ("backward", "recompute") or _is_view(place, storage_of):
            continue
        for storage in dict.fromkeys(storage_of[ref.value] for ref in place.node.refs):
            if storage in found:
                found[storage].append(place)
    return {name: tuple(places) for name, places in found.items()}


def makers(graph: Graph) -> dict[str, Placed]:
    """The node that makes each value."""
    return {out.value: place for place in graph.placed() for out in place.node.outputs}


def _is_view(place: Placed, storage_of: dict[str, str]) -> bool:
    """Whether a node only gives another face to a storage: what reads that face is the reader."""
    return bool(place.node.outputs) and all(out.storage != out.value for out in place.node.outputs) and not place.node.op.endswith("_")
