"""The moments of a rank's step that may hold its peak, as one matrix: for many degrees at once, one product.

A column is a nature of storages times a monomial in the sizes that a search leaves open; a row is a moment.
What the nature weighs follows from the degrees, as in `parallel.peak`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.liveness import Timeline
from symacct.parallel.peak import Nature, Peaks
from symacct.symbols import symbol

At = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Moments:
    """`bytes` of moments by column; a column's nature, its monomial, and whether it counts the layers
    behind the first.

    `depth` is the name of the number of layers in monomials.
    """

    natures: tuple[Nature, ...]
    monomials: tuple[Expr, ...]
    columns: tuple[tuple[int, int, bool], ...]
    bytes: Any
    depth: str


def moments_of(peaks: Peaks, depth: str, numbers: Mapping[sp.Symbol, Expr]) -> Moments | None:
    """The moments of a graph at these sizes, the depth and what they leave out open; None where deaths
    follow no rule.
    """
    line = peaks.line
    known = {size: number for size, number in numbers.items() if size.name != depth}
    if line is None or any(
        not s.is_positive for size in peaks.graph.storages.values() for s in size.free_symbols
    ):
        return None
    table: dict[tuple[Nature, Expr, bool], Any] = {}
    plain, layers = _counts(line, depth, known)
    for number, value in enumerate(line.values):
        nature = peaks.nature(value)
        for term in sp.Add.make_args(sp.expand(peaks.graph.storages[value].xreplace(known))):
            size, monomial = term.as_coeff_Mul()
            for counts, behind in ((plain + layers, False), (layers, True)):
                column = float(size) * counts[:, number]
                if column.any():
                    key = nature, monomial, behind
                    table[key] = table.get(key, 0.0) + column
    natures = list(dict.fromkeys(nature for nature, _, _ in table))
    monomials = list(dict.fromkeys(monomial for _, monomial, _ in table))
    columns = tuple(
        (natures.index(nature), monomials.index(monomial), behind) for nature, monomial, behind in table
    )
    return Moments(
        tuple(natures), tuple(monomials), columns, _undominated(np.stack(list(table.values()), axis=1)), depth
    )


def _counts(line: Timeline, depth: str, known: Mapping[sp.Symbol, Expr]) -> tuple[Any, Any]:
    """How many of each value live at each moment: a number, and one that the layers multiply."""
    powers, counts = line.tally()
    found = [np.zeros(counts.shape[1:]), np.zeros(counts.shape[1:])]
    for power, rows in zip(powers, counts, strict=True):
        sizes = dict(zip(line.structural, power, strict=True))
        scale = float(sp.Mul(*(known[symbol(name)] for name, on in sizes.items() if on and name != depth)))
        found[sizes.get(depth, 0)] += scale * rows
    return found[0], found[1]


def _undominated(rows: Any) -> Any:
    """The rows that no other reaches in every column."""
    rows = np.unique(rows, axis=0)
    order = np.argsort(-rows.sum(axis=1))
    kept: list[Any] = []
    for row in rows[order]:
        if not any((other >= row).all() for other in kept):
            kept.append(row)
    return np.stack(kept)
