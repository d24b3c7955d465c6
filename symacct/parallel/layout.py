"""How the ranks of one mesh axis hold a tensor: whole, in parts along a dimension, or as summands.

The vocabulary is that of torch's DTensor: Replicate, Shard, Partial. A shard may lie inside a dimension: after
(B, T, d) → (B·T, d) the part of T lies behind B rows, which `outer` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import sympy as sp
from sympy import Expr

ONE = sp.Integer(1)
GRADIENT = "gradient"  # the note of a collective that a step needs once, however many micro-batches it has


@dataclass(frozen=True, slots=True)
class Whole:
    """Every rank holds the whole tensor."""


@dataclass(frozen=True, slots=True)
class Summand:
    """Every rank holds a tensor of the full shape; their sum is meant."""


@dataclass(frozen=True, slots=True)
class Part:
    """Every rank holds 1/t of dimension `dim`.

    `outer`: indices of the dimension that vary slower than the divided factor (B in B·T, 3 in the rows of a fused
    q, k, v). `pieces`: the sizes of unequal pieces that are divided one by one. `sequence`: divided along the
    sequence, so that a product gathers it rather than its weight.
    """

    dim: int
    outer: Expr = ONE
    pieces: tuple[Expr, ...] = ()
    sequence: bool = False
    origin: str = field(default="", compare=False)  # the parameter whose division this one follows from

    def at(self, dim: int, outer: Expr = ONE) -> Part:
        """The same division, found in another dimension."""
        return replace(self, dim=dim, outer=outer)

    def moved(self, dim: int) -> Part:
        """The same dimension, now at another place."""
        return replace(self, dim=dim)

    def fits(self, other: Layout) -> bool:
        """Whether two divisions are of the same elements."""
        return isinstance(other, Part) and (self.dim, self.outer, self.pieces) == (other.dim, other.outer, other.pieces)


Layout = Whole | Summand | Part
WHOLE, SUMMAND = Whole(), Summand()


def local_shape(shape: tuple[Expr, ...], layout: Layout, ranks: Expr) -> tuple[Expr, ...]:
    """What one rank holds of a shape."""
    if not isinstance(layout, Part):
        return shape
    return tuple(sp.expand(size / ranks) if k == layout.dim else size for k, size in enumerate(shape))


def divided(shape: tuple[Expr, ...], layout: Part) -> tuple[Expr, ...]:
    """The sizes that the number of ranks has to divide."""
    if layout.pieces:
        return layout.pieces
    return (sp.expand(shape[layout.dim] / layout.outer),)


def viewed(part: Part, before: tuple[Expr, ...], after: tuple[Expr, ...], integral: Callable[[Expr], bool]) -> Part | None:
    """Where a division lies after a view of another shape; None where no single dimension holds it.

    Both shapes list the same elements in row-major order, so the divided factor keeps its place: behind the same
    number of slower indices. `integral` tells whether a quotient of sizes is an integer in the domain at hand.
    """
    if part.pieces:
        same = [k for k, size in enumerate(after) if size == before[part.dim] and sp.expand(_product(after[:k]) - _product(before[: part.dim])) == 0]
        return part.at(same[0]) if same else None
    slower = _product(before[: part.dim]) * part.outer
    for dim, size in enumerate(after):
        if size != 1 and sp.expand(slower - _product(after[:dim])) == 0:
            return part.at(dim)
    ahead: Expr = ONE
    for dim, size in enumerate(after):
        behind = ahead * size
        if not integral(slower / behind):
            return part.at(dim, sp.cancel(slower / ahead)) if integral(slower / ahead) and integral(behind / slower) else None
        ahead = behind
    return None


def _product(sizes: tuple[Expr, ...]) -> Expr:
    return sp.Mul(*sizes)


__all__ = ["SUMMAND", "WHOLE", "Layout", "Part", "Summand", "Whole", "divided", "local_shape", "viewed"]
