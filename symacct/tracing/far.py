"""Sizes that code takes as numbers, tried far from the examples: whether a run there still is what the formulas say."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from symacct.domain import Domain
from symacct.errors import SymacctError
from symacct.graph import Graph
from symacct.limits import LIMITED
from symacct.records import Pin
from symacct.tracing.limits import Limits

_FAR = 31  # times as large: past the lengths of chunks and blocks that code compares a size with, and as divisible


def lifted_of(pins: Iterable[Pin], dims: Container[str], structural: Container[str]) -> list[str]:
    """The sizes that the code takes as numbers and that ops do not repeat by."""
    return [pin.expression for pin in pins if pin.expression in dims and pin.expression not in structural]


def with_far_sizes(graph: Graph, dims: Mapping[str, int], lifted: Sequence[str], depths: Mapping[str, int]) -> Graph:
    """The graph with a remark where bytes of a run at far values of the lifted sizes are not the formulas'.

    Of a symbol torch notes each comparison; of a number none. Where the model takes no such sizes nothing is said.
    """
    if not lifted or not isinstance(graph.limits, Limits):
        return graph
    point = {name: value * _FAR if name in lifted else depths.get(name, value) for name, value in dims.items()}
    if not Domain(tuple(dims), graph.assumptions).holds(point):
        return graph
    try:
        lacking = graph.limits.lacking(point, LIMITED)
    except SymacctError:  # the model's own code says no to these sizes
        return graph
    wrong = [key for key, bytes_ in lacking.items() if bytes_]
    if not wrong:
        return graph
    at = ", ".join(f"{name} = {point[name]}" for name in lifted)
    remark = (
        f"{', '.join(lifted)}: a number to the code, whose comparisons with it cannot be seen; at {at} a run has other "
        f"{' and '.join(wrong)} than the formulas, which hold near the sizes that were run ({', '.join(f'{n} = {dims[n]}' for n in lifted)})"
    )
    return replace(graph, remarks=(*graph.remarks, remark))
