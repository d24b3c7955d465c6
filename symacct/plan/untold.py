"""Sizes at which no form tells the peak: where layers hardly repeat, or a size is 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy as sp

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.graph import Graph
from symacct.limits import PEAK, peak_told, told
from symacct.plan.fitting import ABOVE, BELOW, EXACT, Demand, Form, Solution, allowed, fit, largest_kind
from symacct.plan.question import Case
from symacct.smallest import hardly_repeats, holds_at

_STEP, _DEEPEST = "the step unfolded there", 24
UNFOLDED = "as the step unfolded at these sizes tells"
_NO_SOLUTION = "the largest {} is not solved for: where layers hardly repeat no form tells the peak"
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
        f"plan the model file, whose run tells of {size} = 1, or make it a plain number there"
    )


def sure(case: Case, solution: Solution | None, found: Demand, memory: int) -> tuple[Solution | None, list[str]]:
    """The solution of an undivided step where it is right, else none and a note that says so.

    Raises SizeError where the answer would be of the size that is not known.
    """
    if solution is None:
        return None, []
    better = _settled(case, solution, found, memory)
    if better is not solution or _holds(case.ledger.graph, solution, case.sizes):
        return better, []
    return None, [_NO_SOLUTION.format(solution.solved.size)]


def _settled(case: Case, solution: Solution, found: Demand, memory: int) -> Solution:
    """A solution that lies where the forms may not hold, by what a step needs at each size there.

    Raises SizeError where nothing tells that.
    """
    graph, solved = case.ledger.graph, solution.solved
    few = _few(graph, solved.size)
    if found.bound != EXACT or (solved.number or 0) > few:
        return solution
    fits = allowed(case.conditions, solved.size, case.sizes)
    at = {x: case.at(**{solved.size: x}).sizes for x in range(1, few + 1) if fits(x)}
    if not at or all(peak_told(graph, {name: sizes[name] for name in graph.symbols}) for sizes in at.values()):
        return solution
    needs = {x: _need(found, graph, sizes, solution) for x, sizes in at.items()}
    number = max((x for x, need in needs.items() if need <= memory), default=None)
    behind = next((x for x in range((number or 0) + 1, few + _DEEPEST) if fits(x)), None)
    made = replace(solved, number=number, next=behind, binding=None, gaps=())
    if behind is None:
        return Solution(made, None, None, solution.kind, solution.condition)
    told = as_told(found, graph, case.at(**{solved.size: behind}).sizes, solution)
    stop = fit(told, memory, case.at(**{solved.size: behind}).sizes)
    form = replace(stop.form, phase=_STEP) if stop.form.phase == UNFOLDED else stop.form
    short = 0 if number is not None else stop.short
    return Solution(replace(made, short=short), form, None, largest_kind(told, case.at(**{solved.size: behind}).sizes))


def _few(graph: Graph, size: str) -> int:
    """The largest number for a size at which forms may not hold: 1, or as many layers as hardly repeat."""
    loops = {loop.size for place in graph.placed() for loop in place.loops}
    return max((n for n in range(1, _DEEPEST) if hardly_repeats(graph, {size: n})), default=1) if size in loops else 1


def _need(found: Demand, graph: Graph, sizes: Sizes, solution: Solution) -> Number:
    return max(evaluate(form.bytes, sizes) for form in as_told(found, graph, sizes, solution).forms)


def _holds(graph: Graph, solution: Solution, sizes: Sizes) -> bool:
    """Whether what was solved for by the forms of an undivided step is right: they hold at its depth, and at its size.

    Raises SizeError where they do not, and the answer would be of that size.
    """
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
