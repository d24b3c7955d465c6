"""Parameters that work on one token where each token picks k of E experts."""

from __future__ import annotations

from collections.abc import Mapping

import sympy as sp
from sympy import Expr

from symacct.graph import Graph, Placed, total_over
from symacct.symbols import symbol

_PICKING = ("aten.bmm", "aten.baddbmm", "aten._grouped_mm", "aten.index", "aten.index_select", "aten.embedding")
_COPIES = ("aten._to_copy", "aten.clone")


def active_parameters(graph: Graph) -> Expr | None:
    """Parameters that work on one token: of stacked or repeated experts k of E. None where no code picks k of E."""
    experts, chosen = symbol("E"), symbol("k")
    if not {"E", "k"} <= set(graph.symbols) or not any(_picks(place) for place in graph.ops):
        return None
    routed = _routed(graph)
    total = sp.Integer(0)
    for place in graph.sources("parameter"):
        tensor = place.node.outputs[0]
        size = sp.expand(total_over(tensor.numel, place.loops))
        stacked = tensor.shape and tensor.shape[0] == experts and (len(tensor.shape) > 2 or tensor.storage in routed)
        listed = any(loop.size == "E" for loop in place.loops)
        total += size * chosen / experts if stacked or listed else size
    return sp.expand(total)


def _picks(place: Placed) -> bool:
    """Whether an op gives the k largest of the scores of experts."""
    return place.node.op == "aten.topk" and dict(place.node.arguments).get("k") == symbol("k")


def _routed(graph: Graph) -> set[str]:
    """Storages of what stands in products with one matrix for each expert, or is looked up by expert; a cast is its source."""
    storages = {name: value.storage for name, value in graph.tensors().items()}
    made = copied_from(graph, storages)
    used = (storages[ref.value] for place in graph.ops if place.node.op in _PICKING for ref in place.node.refs)
    return {made.get(storage, storage) for storage in used}


def copied_from(graph: Graph, storages: Mapping[str, str]) -> dict[str, str]:
    """The storage that each copy of another dtype or layout was made from; `storages` are those of all values."""
    made: dict[str, str] = {}
    for place in graph.ops:
        if place.node.op in _COPIES:
            source = next((storages[ref.value] for ref in place.node.refs), "")
            made.update({out.storage: made.get(source, source) for out in place.node.outputs})
    return made
