"""At which sizes formulas are put to the test: seeded random points of the graph's domain, small enough for a CPU.

A generic point has sizes of at least 2, pairwise different; there the recorded ops must be the graph's, node by node.
At a degenerate one (a size of 1) torch takes shortcuts, and only totals have to agree.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import sympy as sp

from symacct.domain import Domain
from symacct.errors import TraceError
from symacct.graph import Graph, loops_in
from symacct.symbols import symbol

_HIGH = 9
_PATIENCE = 250
_MISSED = 12  # draws in a row that found no sizes: there are none with what is given
_CHOOSY = 60
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class Point:
    """Sizes to run at, and whether every op there must be the graph's own."""

    sizes: Mapping[str, int]
    generic: bool


def structural(graph: Graph) -> tuple[str, ...]:
    """The sizes by which regions of the graph repeat."""
    return tuple(dict.fromkeys(loop.size for loop in loops_in(graph.items)))


def countable(graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether every region repeats a whole number of times, 0 included, at these sizes."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    counts = (loop.count.xreplace(numbers) for loop in loops_in(graph.items))
    return all(count.is_Integer and count >= 0 for count in counts)


def generic_points(graph: Graph, names: tuple[str, ...], seed: int) -> Iterator[Point]:
    """Endless seeded points of the domain with all sizes 2 or more, and pairwise different where that can be."""
    yield from _points(graph, names, seed, {})


def degenerate_points(graph: Graph, names: tuple[str, ...], seed: int) -> Iterator[Iterator[Point]]:
    """For each of batch and sequence length among the sizes: points at which it is 1."""
    for number, name in enumerate(n for n in ("B", "T") if n in names):
        yield _points(graph, names, seed + 7919 * (number + 1), {name: 1})


def points_with(graph: Graph, names: tuple[str, ...], seed: int, given: Mapping[str, int]) -> Iterator[Point]:
    """Endless seeded points of the domain with some sizes given, the others pairwise different where that can be."""
    yield from _points(graph, names, seed, given)


def scaled_points(graph: Graph, names: tuple[str, ...], seed: int) -> Iterator[Point]:
    """Seeded points near the example that was traced: each size times 1, 2 or 3. For models whose domain is not known."""
    rng = random.Random(seed)
    for _ in range(100):
        sizes = {name: graph.symbols[name].traced_at * rng.randint(1, 3) for name in names}
        sizes |= {name: rng.randint(2, _DEEPEST) for name in structural(graph)}
        if countable(graph, sizes) and Domain(names, graph.assumptions).holds(sizes):
            yield Point(sizes, min(sizes.values()) > 1)


def _points(graph: Graph, names: tuple[str, ...], seed: int, given: Mapping[str, int]) -> Iterator[Point]:
    rng = random.Random(seed)
    domain = Domain(names, graph.assumptions)
    repeated = [name for name in structural(graph) if name not in given]
    shapes = {size for place in graph.placed() for out in place.node.outputs for size in out.shape if size.free_symbols and not size.is_Symbol}
    missed = 0
    for attempt in range(400):
        if missed == _MISSED:  # each drew thousands of sizes
            return
        fixed = {**{name: rng.randint(1, _DEEPEST) for name in repeated}, **given}
        # ever larger sizes: a model with many strides or a window has a smallest input
        high = max(_HIGH, 3 * len(names) // 2) + 4 * (attempt // 50)
        try:
            sizes = next(domain.points(rng.randrange(1 << 30), low=2, high=high, fixed=fixed))
        except TraceError:
            missed += 1
            continue
        missed = 0
        free = [value for name, value in sizes.items() if name not in fixed]
        apart = len(set(free)) == len(free) and all(value > 1 for value in free)
        apart = apart and (attempt > _CHOOSY or not _narrow(shapes, sizes))
        if countable(graph, sizes) and (apart or attempt > _PATIENCE):
            yield Point(sizes, not given and apart)


def _narrow(shapes: Iterable[sp.Expr], sizes: Mapping[str, int]) -> bool:
    """Whether a dimension is 1 there, such as T - 1 at T = 2: torch's shortcuts for sizes of 1 are taken then too."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    return any(size.xreplace(numbers) == 1 for size in shapes)
