"""Sizes at which no form tells the peak: where layers hardly repeat, or a size is 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy as sp

from symacct.errors import SizeError
from symacct.graph import Graph
from symacct.limits import PEAK, peak_told, told
from symacct.plan.fitting import ABOVE, BELOW, EXACT, Demand, Form, Solution
from symacct.smallest import holds_at

UNFOLDED = "as the step unfolded at these sizes tells"
NO_SOLUTION = "the largest {} is not solved for: where layers hardly repeat no form tells the peak"
_UNTOLD = (
    "the forms of the peak do not hold at these sizes, where layers hardly repeat or a size is 1; make that "
    "size a plain number in the model file"
)

Sizes = Mapping[str, int]


def as_told(found: Demand, graph: Graph, sizes: Sizes, solution: Solution | None = None) -> Demand:
    """The demand of an undivided step, its peak as a number where its forms do not hold at these sizes.

    Raises SizeError where nothing tells it; of a size that was solved for, with what would not fit.
    """
    known = {name: sizes[name] for name in graph.symbols}
    if found.bound == BELOW or peak_told(graph, known):
        return found
    peak = told(graph, PEAK, known, lambda: None) if found.exact else None
    if peak is None:
        raise SizeError(_why(sizes, solution))
    return replace(found, forms=(Form(sp.Integer(peak), phase=UNFOLDED),))


def _why(sizes: Sizes, solution: Solution | None) -> str:
    solved = solution.solved if solution is not None else None
    if solved is None or sizes[solved.size] != 1 or solved.next is None:
        return _UNTOLD
    size, after = solved.size, solved.next if solved.number is not None else 2
    return (
        f"no {size} from {after} on fits into this memory, and of {size} = 1 no form tells the peak; "
        f"to know of {size} = 1, make it a plain number in the model file"
    )


def solvable(graph: Graph, solution: Solution | None, sizes: Sizes) -> bool:
    """Whether what was solved for by the forms of an undivided step is right: they hold at its depth, and at its size.

    Raises SizeError where they do not, and the answer would be of that size.
    """
    if solution is None:
        return True
    size, number = solution.solved.size, solution.solved.number or solution.solved.smallest
    deep = {name: value for name, value in sizes.items() if name in graph.symbols and name != size}
    right = holds_at(graph, deep) if number > 1 else peak_told(graph, {**deep, size: number})
    if not right and size not in sizes:
        raise SizeError(_why({size: number}, solution))
    return right


def bounded(wanted: Demand, graph: Graph, sizes: Sizes) -> Demand:
    """The demand of a rank, from above where layers hardly repeat: a form of them need not be reached."""
    if wanted.bound != EXACT or holds_at(graph, {name: sizes[name] for name in graph.symbols}):
        return wanted
    return replace(wanted, bound=ABOVE)
