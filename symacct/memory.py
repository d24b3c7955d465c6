"""Who keeps what: for each storage kept for backward, the backward ops that read it; for each view, what it looks at."""

from __future__ import annotations

from symacct.graph import Graph, Placed


def keepers(graph: Graph) -> dict[str, tuple[Placed, ...]]:
    """The backward nodes that read a kept storage, by the value that the storage was made for, in execution order."""
    storage_of = {name: tensor.storage for name, tensor in graph.tensors().items()}
    found: dict[str, list[Placed]] = {name: [] for name in graph.kept or ()}
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
