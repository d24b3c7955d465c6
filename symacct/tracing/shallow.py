"""Depths at which a folded form does not hold: a region that repeats L - 2 times stands for less than nothing at L = 1.

Often the formulas hold there too, as where the layers beside the region are like those in it. Where they do not,
because layers of another kind come first, the depth leaves their domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.errors import SymacctError
from symacct.graph import Assumption, Graph, total_over
from symacct.records import Trace
from symacct.symbols import symbol


def deep_enough(
    graph: Graph, run: Callable[[Mapping[str, int]], Trace], example: Mapping[str, int]
) -> Graph:
    """The graph with `L > 1` where at depth 1 a count is negative, and what a run there makes is not what it says."""
    loops = {loop.index + loop.size + str(loop.count): loop for p in graph.placed() for loop in p.loops}
    found = []
    for name in dict.fromkeys(loop.size for loop in loops.values()):
        counts = [loop.count for loop in loops.values() if symbol(name) in loop.count.free_symbols]
        depth, wrong = 1, 0
        while any(count.xreplace({symbol(name): sp.Integer(depth)}).is_negative for count in counts):
            wrong = depth if _differs(graph, run, {**example, name: depth}) else wrong
            depth += 1
        if wrong:
            found.append(Assumption("branch", sp.Gt(symbol(name), wrong), None, ""))
    return replace(graph, assumptions=(*graph.assumptions, *found))


def _differs(graph: Graph, run: Callable[[Mapping[str, int]], Trace], sizes: dict[str, int]) -> bool:
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    if not all(a.holds(numbers) for a in graph.assumptions):
        return False
    try:
        made = _made(run(sizes))
    except SymacctError:  # a depth that the model does not have
        return False
    said: dict[str, Expr] = {}
    for place in graph.placed():
        for out in place.node.outputs:
            if out.storage == out.value:
                said[place.node.op] = said.get(place.node.op, sp.Integer(0)) + total_over(out.numel, place.loops)
    pairs = [(said.get(op, sp.Integer(0)).xreplace(numbers), made.get(op, sp.Integer(0))) for op in {*said, *made}]
    return any(one != other for one, other in pairs if one.is_number and other.is_number)


def _made(trace: Trace) -> dict[str, Expr]:
    """By op, the elements of what it makes in storages of their own; a count that depends on data is a symbol."""
    seen: set[int] = set()
    found: dict[str, Expr] = {}
    for record in trace.records:
        for out in record.outputs:
            if out.storage not in seen:
                seen.add(out.storage)
                found[record.op] = found.get(record.op, sp.Integer(0)) + sp.Mul(*out.shape)
    return found
