"""Formulas in which bytes of an element stay symbols w_p, w_g, w_o, w_a, by what a storage holds. No torch.

A graph traced in a 2-byte dtype tells which tensors follow the model's dtype: those that have it. What is not
of that dtype (masks of one byte, float32 statistics and step counts, integers) keeps its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy as sp

from symacct.dtypes import SYMBOLIC, width
from symacct.errors import GraphError, ModelFileError
from symacct.graph import Assumption, Graph, Item, Loop, Node, SymbolInfo, Tensor
from symacct.liveness import timeline
from symacct.symbols import symbol

_OF_SOURCES = {"parameter": "w_p", "buffer": "w_p", "gradient": "w_g", "state": "w_o"}
_CASTS = (
    "in float32 the model runs other ops, without casts: widths stay below 4, and --dtype fp32 derives those "
    "of 4 bytes"
)


def symbolic(graph: Graph, dtype: str, wide: Graph) -> Graph:
    """The graph with symbols for the widths of tensors of `dtype`, in which it was traced.

    `wide` is the same step in float32: where its ops are others, because the model casts, the formulas hold
    for widths below 4 only, and an assumption says so. Raises ModelFileError if a size is named like a width.
    """
    taken = sorted(set(SYMBOLIC) & set(graph.symbols))
    if taken:
        raise ModelFileError(
            f"{graph.target}: the size {taken[0]} has the name of a symbolic width; call it something else"
        )
    same = _ops(graph) == _ops(wide)
    fixed = _fixed(graph, wide, dtype) if same else frozenset()
    classes = {storage: name for storage, name in _classes(graph, dtype).items() if storage not in fixed}
    weights = {
        value: size / width(dtype) * symbol(classes[value]) if value in classes else size
        for value, size in graph.storages.items()
    }
    used = {name for name in SYMBOLIC if name in classes.values()}
    known = {name: SymbolInfo(SYMBOLIC[name], width(dtype)) for name in SYMBOLIC if name in used}
    narrow = [] if same else [name for name in ("w_p", "w_a") if name in used]
    casts = [Assumption("branch", sp.Lt(symbol(name), width("float32")), None, "") for name in narrow]
    made = replace(
        graph,
        items=_renamed(graph.items, classes, dtype),
        storages=weights,
        symbols={**graph.symbols, **known},
        assumptions=(*graph.assumptions, *casts),
        remarks=graph.remarks if same else (*graph.remarks, _CASTS),
        peak=None,
        limits=tuple(limit if limit in wide.limits else replace(limit, more=None) for limit in graph.limits),
        measured=None,
    )
    if graph.peak is None or graph.deaths is None:
        return made
    try:
        return replace(made, peak=tuple((moment.node, live) for moment, live in timeline(made).candidates()))
    except GraphError:
        return made


def _classes(graph: Graph, dtype: str) -> dict[str, str]:
    """The symbol of each storage that has this dtype, by the value that it was made for."""
    tensors, found = graph.tensors(), {}
    for place in graph.placed():
        for out in place.node.outputs:
            if place.node.op in _OF_SOURCES:
                found[out.storage] = _OF_SOURCES[place.node.op]
            else:
                found.setdefault(out.storage, "w_o" if place.node.phase == "optimizer" else "w_a")
    return {storage: name for storage, name in found.items() if tensors[storage].dtype == dtype}


def _fixed(graph: Graph, wide: Graph, dtype: str) -> frozenset[str]:
    """Storages that have this dtype in float32 as well, because the code itself says so."""
    pairs = zip(graph.placed(), wide.placed(), strict=True)
    outputs = (pair for low, high in pairs for pair in zip(low.node.outputs, high.node.outputs, strict=True))
    return frozenset(low.storage for low, high in outputs if low.dtype == high.dtype == dtype)


def _renamed(items: tuple[Item, ...], classes: Mapping[str, str], dtype: str) -> tuple[Item, ...]:
    def tensor(out: Tensor) -> Tensor:
        follows = out.dtype == dtype and out.storage in classes
        return replace(out, dtype=classes[out.storage]) if follows else out

    def item(part: Item) -> Item:
        if isinstance(part, Loop):
            return replace(part, items=_renamed(part.items, classes, dtype))
        return replace(part, outputs=tuple(map(tensor, part.outputs)))

    return tuple(map(item, items))


def _ops(graph: Graph) -> list[tuple[str, str, str]]:
    def key(node: Node) -> tuple[str, str, str]:
        return node.op, node.phase, node.module

    return [key(place.node) for place in graph.placed()]
