"""Ops that write or add values at chosen places, and the adjoints of copies.

A functional form reads the whole operand and writes a whole result; one that works in place touches the
chosen places only. Places that are added to are read as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import ZERO, Cost, Expr, moved, numel, rule, tensors


def fresh(self: Tensor, brought: Any, count: Expr, adds: bool) -> Cost:
    """A copy of the operand with `count` elements written or added."""
    return Cost(elementwise=int(adds) * count, read=self.bytes + moved(brought))


def in_place(self: Tensor, brought: Any, count: Expr, adds: bool) -> Cost:
    """`count` elements of the operand written, or read, added to and written."""
    place = count * self.width
    return Cost(elementwise=int(adds) * count, read=moved(brought) + int(adds) * place, written=place)


def broadcast(shapes: Sequence[Sequence[Expr]]) -> Expr:
    """Number of elements of the broadcast of these shapes: along each dimension the length that is not 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return sp.Mul(*(next((n for n in lengths if n != 1), 1) for lengths in zip(*padded, strict=True)))


def places(self: Tensor, indices: Sequence[Any], values: Tensor) -> Expr:
    """Elements that `self[indices]` shows; behind a mask as many as there are values, at most all for one."""
    masks = any(index.dtype in ("bool", "uint8") for index in tensors(indices))
    if masks:
        return numel(values) if values.shape and numel(values) != 1 else numel(self)
    kept = [n for n, index in zip(self.shape, indices, strict=False) if index is None]
    rest = self.shape[len(indices) :]
    return broadcast([index.shape for index in tensors(indices)]) * sp.Mul(*kept, *rest)


@rule("aten.index_put", "aten._unsafe_index_put")
def index_put(self: Tensor, indices: Any, values: Tensor, accumulate: Any) -> Cost:
    """A copy with values at the indexed places; one addition for each of them when they accumulate."""
    return fresh(self, (indices, values), places(self, indices, values), bool(accumulate))


@rule("aten.index_put_", "aten._index_put_impl_")
def index_put_in_place(self: Tensor, indices: Any, values: Tensor, accumulate: Any) -> Cost:
    """Values at the indexed places; one addition for each of them when they accumulate."""
    return in_place(self, (indices, values), places(self, indices, values), bool(accumulate))


@rule("aten.scatter")
def scatter(self: Tensor, index: Tensor, src: Any, reduce: Any) -> Cost:
    """A copy with one element written, or combined when `reduce` says how, for each element of the index."""
    return fresh(self, (index, src), numel(index), reduce is not None)


@rule("aten.scatter_")
def scatter_in_place(self: Tensor, index: Tensor, src: Any, reduce: Any) -> Cost:
    """One element written, or combined when `reduce` says how, for each element of the index."""
    return in_place(self, (index, src), numel(index), reduce is not None)


@rule("aten.scatter_add", "aten.scatter_reduce")
def scatter_add(self: Tensor, index: Tensor, src: Tensor) -> Cost:
    """A copy with one addition or comparison for each element of the index."""
    return fresh(self, (index, src), numel(index), True)


@rule("aten.scatter_add_", "aten.scatter_reduce_")
def scatter_add_in_place(self: Tensor, index: Tensor, src: Tensor) -> Cost:
    """One addition or comparison for each element of the index."""
    return in_place(self, (index, src), numel(index), True)


@rule("aten.index_add", "aten.index_reduce")
def index_add(self: Tensor, index: Tensor, source: Tensor) -> Cost:
    """A copy with one addition or comparison for each element of the source."""
    return fresh(self, (index, source), numel(source), True)


@rule("aten.index_add_", "aten.index_reduce_")
def index_add_in_place(self: Tensor, index: Tensor, source: Tensor) -> Cost:
    """One addition or comparison for each element of the source."""
    return in_place(self, (index, source), numel(source), True)


@rule("aten.index_copy")
def index_copy(self: Tensor, index: Tensor, source: Tensor) -> Cost:
    """A copy with the source's elements written at the indexed places."""
    return fresh(self, (index, source), numel(source), False)


@rule("aten.index_copy_")
def index_copy_in_place(self: Tensor, index: Tensor, source: Tensor) -> Cost:
    """The source's elements written at the indexed places."""
    return in_place(self, (index, source), numel(source), False)


def slices(self: Tensor, dim: Any, index: Tensor) -> Expr:
    """Elements of the slices along `dim` that an index names."""
    return numel(index) * sp.Mul(
        *(n for axis, n in enumerate(self.shape) if axis != int(dim) % len(self.shape))
    )


@rule("aten.index_fill")
def index_fill(self: Tensor, index: Tensor, value: Any) -> Cost:
    """A copy with one value in the indexed slices."""
    return fresh(self, (index, value), ZERO, False)


@rule("aten.index_fill_")
def index_fill_in_place(self: Tensor, dim: Any, index: Tensor, value: Any) -> Cost:
    """One value in the indexed slices."""
    return in_place(self, (index, value), slices(self, dim, index), False)


@rule("aten.put")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: Any) -> Cost:
    """A copy with one element written, or added when they accumulate, for each element of the index."""
    return fresh(self, (index, source), numel(index), bool(accumulate))


@rule("aten.put_")
def put_in_place(self: Tensor, index: Tensor, source: Tensor, accumulate: Any) -> Cost:
    """One element written, or added when they accumulate, for each element of the index."""
    return in_place(self, (index, source), numel(index), bool(accumulate))


@rule("aten.embedding_dense_backward")
def embedding_backward(grad_output: Tensor) -> Cost:
    """Each row of the gradient is added to its row of (v,d): one addition for each of its elements."""
    return Cost(elementwise=numel(grad_output))


@rule("aten.col2im")
def col2im(self: Tensor) -> Cost:
    """Windows are added up where they overlap: one addition for each element of the windows."""
    return Cost(elementwise=numel(self))


@rule("aten.unfold_backward")
def unfold_backward(grad_in: Tensor) -> Cost:
    """Windows are added up where they overlap: one addition for each element of the windows."""
    return Cost(elementwise=numel(grad_in))


@rule(
    "aten._upsample_nearest_exact1d_backward",
    "aten._upsample_nearest_exact2d_backward",
    "aten._upsample_nearest_exact3d_backward",
    "aten.upsample_nearest1d_backward",
    "aten.upsample_nearest2d_backward",
    "aten.upsample_nearest3d_backward",
)
def nearest_backward(grad_output: Tensor) -> Cost:
    """Each gradient is added to the element that was repeated: one addition for each of them."""
    return Cost(elementwise=numel(grad_output))


@rule(
    "aten.reflection_pad1d_backward",
    "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d_backward",
    "aten.replication_pad1d_backward",
    "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)
def pad_backward(grad_output: Tensor) -> Cost:
    """Each gradient is added to the element that was copied; the operand only lends its sizes."""
    return Cost(elementwise=numel(grad_output), read=grad_output.bytes)
