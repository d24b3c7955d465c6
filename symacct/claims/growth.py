"""The regimes that a field means by "to leading order": wide models, deep ones, long inputs."""

from __future__ import annotations

from collections.abc import Set

import sympy as sp

from symacct.claims.leading import Regime, widths_of
from symacct.claims.names import size_of
from symacct.graph import Graph
from symacct.report.readable import Reading, reading_of
from symacct.symbols import GLOSSARY, symbol

_COUNTS = ("V", "C", "h", "h_kv", "E", "k")


def usual(graph: Graph, weights: Set[sp.Symbol], each: bool = True) -> list[Regime]:
    """The regimes tried when none is stated: wide models, wide and deep ones, long inputs, deep models.

    `weights` are the sizes of parameters that products use. Widths grow together, and so do the sides of one
    input: no one of them grows alone, as then the one term that has it would lead. `each` adds the lengths
    of one input while those of the others stay; not for a claim in N, which speaks of wide models.
    """
    reading = reading_of(graph)
    names = [symbol(name) for name in graph.symbols]
    known = widths_of(graph)
    inputs = [
        {s for out in place.node.outputs for dim in out.shape for s in dim.free_symbols}
        for place in graph.sources("input")
    ]
    long = (reading.data | set().union(*inputs) - weights) - reading.batch - known
    groups = [
        known,
        known | _unnamed(graph, weights, reading, long),
        known | reading.depth if known else set(),
        long,
        reading.depth,
    ]
    groups += [long & sides for sides in inputs] if each else []
    found: dict[frozenset[sp.Symbol], Regime] = {}
    for group in groups:
        grown = sorted((s for s in names if s in group), key=lambda s: s in reading.depth)
        if grown:
            text = f"{', '.join(s.name for s in grown)} → ∞, the other sizes fixed"
            found.setdefault(frozenset(grown), Regime(dict.fromkeys(grown, 1), text))
    return list(found.values())


def _unnamed(graph: Graph, weights: Set[sp.Symbol], reading: Reading, long: Set[sp.Symbol]) -> set[sp.Symbol]:
    """Sizes of weights that may be widths too: of no meaning, or of any where no width is known."""
    known = widths_of(graph)
    counted = {size_of(concept, graph) for concept in _COUNTS}
    told = {name for name, info in graph.symbols.items() if info.meaning or name in GLOSSARY}
    free = {symbol(name) for name in set(graph.symbols) - counted - (told if known else set())}
    return (free & weights) - reading.data - reading.depth - long - _kernels(graph)


def _kernels(graph: Graph) -> set[sp.Symbol]:
    """The sides of kernels that convolutions slide over their input."""
    tensors, found = graph.tensors(), set[sp.Symbol]()
    for place in graph.ops:
        if place.node.phase == "forward" and "conv" in place.node.op:
            _, *weight = place.node.refs
            found |= {
                s for ref in weight[:1] for dim in tensors[ref.value].shape[2:] for s in dim.free_symbols
            }
    return found
