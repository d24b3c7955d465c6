"""Softmax and its relatives along one dimension."""

from __future__ import annotations

from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import Cost, Expr, numel, rule


def rows(tensor: Tensor, dim: Any) -> Expr:
    """Number of slices along a dimension: the product of the others."""
    rank = len(tensor.shape)
    return sp.Mul(*(n for axis, n in enumerate(tensor.shape) if rank == 0 or axis != int(dim) % rank))


@rule("aten._softmax", "aten._masked_softmax")
def softmax(out: Tensor) -> Cost:
    """exp(x - max) / sum: per element a maximum and a sum, a subtraction and a division, one call."""
    n = numel(out)
    return Cost(elementwise=2 * n, reduction=2 * n, transcendental=n)


@rule("aten._safe_softmax")
def safe_softmax(out: Tensor) -> Cost:
    """A softmax that is 0 for rows of minus infinity: one comparison and one conjunction per element more."""
    return softmax(out) + Cost(elementwise=numel(out), reduction=numel(out))


@rule("aten._log_softmax")
def log_softmax(dim: Any, out: Tensor) -> Cost:
    """x - max - log(sum exp(x - max)): per element two reductions, two subtractions, a call; a log a row."""
    n = numel(out)
    return Cost(elementwise=2 * n, reduction=2 * n, transcendental=n + rows(out, dim))


@rule("aten._softmax_backward_data")
def softmax_backward(out: Tensor) -> Cost:
    """y (g - sum(g y)): per element two multiplications, a subtraction, a sum."""
    return Cost(elementwise=3 * numel(out), reduction=numel(out))


@rule("aten._masked_softmax_backward")
def masked_softmax_backward(grad_output: Tensor) -> Cost:
    """y (g - sum(g y)): per element two multiplications, a subtraction, a sum."""
    return softmax_backward(grad_output)


@rule("aten._log_softmax_backward_data")
def log_softmax_backward(out: Tensor) -> Cost:
    """g - exp(y) sum(g): per element a multiplication, a subtraction, a sum, one call."""
    n = numel(out)
    return Cost(elementwise=2 * n, reduction=n, transcendental=n)


@rule("aten.logsumexp")
def logsumexp(self: Tensor, out: Tensor) -> Cost:
    """max + log(sum exp(x - max)): per element two reductions, a subtraction, a call; two more a row."""
    n, results = numel(self), numel(out)
    return Cost(elementwise=n + results, reduction=2 * n, transcendental=n + results)
