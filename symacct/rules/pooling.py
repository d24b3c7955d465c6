"""Pooling, interpolation and sampling of grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import Cost, Expr, first, moved, numel, rule


def taps(kernel: Sequence[Expr], rank: int) -> Expr:
    """Elements of a window; one number stands for all dimensions."""
    return sp.Mul(*(kernel if len(kernel) == rank else tuple(kernel) * rank))


def pooling(rank: int, *, forward: str, backward: str) -> None:
    """Declare a pooling over `rank` dimensions and its gradient."""

    @rule(*forward.split())
    def pool(kernel_size: Any, out: Any) -> Cost:
        """The mean or maximum of a window: one operation for each output element and tap; padding counts."""
        return Cost(reduction=numel(first(out)) * taps(kernel_size, rank))

    @rule(backward)
    def average_backward(grad_output: Tensor, kernel_size: Any) -> Cost:
        """g / taps added at each tap: a division for each gradient, an addition for each gradient and tap."""
        return Cost(elementwise=numel(grad_output) * (1 + taps(kernel_size, rank)))


pooling(
    2,
    forward="aten.avg_pool2d aten.max_pool2d_with_indices aten.fractional_max_pool2d",
    backward="aten.avg_pool2d_backward",
)
pooling(
    3,
    forward="aten.avg_pool3d aten.max_pool3d_with_indices aten.fractional_max_pool3d",
    backward="aten.avg_pool3d_backward",
)


@rule(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
    "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward",
)
def maximum_backward(grad_output: Tensor, indices: Tensor) -> Cost:
    """g added where the maximum was: one addition for each gradient."""
    return Cost(elementwise=numel(grad_output), read=moved((grad_output, indices)))


@rule(
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_max_pool2d",
    "aten.adaptive_max_pool3d",
)
def adaptive_pool(self: Tensor) -> Cost:
    """The mean or maximum of regions that cover the input: one operation for each input element."""
    return Cost(reduction=numel(self))


@rule("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward")
def adaptive_average_backward(grad_output: Tensor, self: Tensor) -> Cost:
    """g / region added to its elements: one division for each gradient, one addition for each input."""
    return Cost(elementwise=numel(grad_output) + numel(self), read=grad_output.bytes)


def interpolation(points: int, names: str) -> None:
    """Declare interpolations from so many neighbours, and their gradients."""

    @rule(*(f"aten.{name}" for name in names.split()))
    def interpolate(out: Tensor) -> Cost:
        """A weighted sum of 2, 4, 8 or 16 neighbours: as many products and one addition fewer an output."""
        return Cost(elementwise=(2 * points - 1) * numel(out))

    @rule(*(f"aten.{name}_backward" for name in names.split()))
    def interpolate_backward(grad_output: Tensor) -> Cost:
        """Each gradient, weighted, is added to 2, 4, 8 or 16 neighbours: a product and an addition each."""
        return Cost(elementwise=2 * points * numel(grad_output))


interpolation(2, "upsample_linear1d")
interpolation(4, "upsample_bilinear2d")
interpolation(8, "upsample_trilinear3d")
interpolation(16, "upsample_bicubic2d")


def corners(grid: Tensor, mode: Any) -> int:
    """Neighbours of a sample: two a dimension when linear (0), one when nearest (1), four when cubic (2)."""
    return (2, 1, 4)[int(mode)] ** int(grid.shape[-1])


def placing(grid: Tensor, neighbours: int) -> Expr:
    """Coordinates to pixels, ((x + 1) s - 1) / 2, two weights from each, and their products."""
    samples, dimensions = sp.Mul(*grid.shape[:-1]), int(grid.shape[-1])
    return samples * (4 * dimensions + 2 * dimensions + (dimensions - 1) * neighbours)


@rule("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sample(grid: Tensor, interpolation_mode: Any, out: Tensor) -> Cost:
    """A weighted sum of the neighbours of each sample for each channel; the weights once for each sample."""
    neighbours = corners(grid, interpolation_mode)
    return Cost(elementwise=(2 * neighbours - 1) * numel(out) + placing(grid, neighbours))


@rule("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sample_backward(
    grad_output: Tensor, grid: Tensor, interpolation_mode: Any, output_mask: Any
) -> Cost:
    """Per channel and neighbour: two operations for the input, three a coordinate for the grid."""
    neighbours, dimensions = corners(grid, interpolation_mode), int(grid.shape[-1])
    to_input, to_grid = (int(bool(wanted)) for wanted in output_mask)
    each = 2 * to_input + 3 * dimensions * to_grid
    return Cost(elementwise=each * neighbours * numel(grad_output) + placing(grid, neighbours))
