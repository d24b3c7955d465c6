"""Bytes kept for backward, tensor by tensor: at a cost, and of what the model holds anyway; and those of gradients."""

from __future__ import annotations

import sympy as sp
from sympy import Expr

from symacct.graph import HELD, Graph, total_over


def saved_bytes(graph: Graph) -> dict[str, Expr]:
    """Bytes kept for backward by each value's storage, over all its repetitions; each storage once, and none
    of what the model holds anyway (parameters, buffers, tensors that are plain attributes)."""
    held = held_by_model(graph)
    return {value: size for value, size in _kept_bytes(graph).items() if value not in held}


def saved_buffers(graph: Graph) -> dict[str, Expr]:
    """Bytes of buffers, and of plain tensors that the model holds, to which autograd refers: kept for backward at
    no further cost."""
    held = held_by_model(graph)
    return {value: size for value, size in _kept_bytes(graph).items() if value in held}


def gradient_bytes(graph: Graph) -> Expr:
    """Bytes that gradients hold, each storage once. That of a parameter which the code puts in front of other data
    (`cat`) is a part of the whole's gradient, and holds all of it: once where the parameters of all layers are put
    together, else once in each layer."""
    found: dict[str, Expr] = {}
    for place in graph.sources("gradient"):
        depth = {size for loop in place.loops for size in loop.count.free_symbols}
        for out in place.node.outputs:
            whole = graph.storages.get(out.storage, out.bytes)
            if not {s.name for s in whole.free_symbols} <= set(graph.symbols):  # it grows in backward as this in forward
                whole = out.bytes
            together = bool(depth & whole.free_symbols)
            found[out.storage] = whole if together else sp.expand(total_over(whole, place.loops))
    return sp.Add(*found.values())


def held_by_model(graph: Graph) -> set[str]:
    """The values of buffers, and of tensors that are plain attributes of the model."""
    places = [*graph.sources("buffer"), *(p for p in graph.sources("constant") if HELD in p.node.notes)]
    return {out.value for place in places for out in place.node.outputs}


def _kept_bytes(graph: Graph) -> dict[str, Expr]:
    loops = {out.value: p.loops for p in graph.placed() for out in p.node.outputs}
    found = {}
    for name, count in (graph.kept or {}).items():
        size, around = graph.storages[name], loops[name]
        whole = sp.expand(count - sp.Mul(*(loop.count for loop in around))) == 0
        found[name] = sp.expand(total_over(size, around) if whole else count * size)
    return found
