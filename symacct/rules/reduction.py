"""Sums, extrema, orderings, scans and norms: one operation for each element consumed.

Orderings (sort, topk, median, unique) count one comparison an element: how many more depends on the values
and on the kernel's algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import Cost, Expr, first, given, is_number, moved, numel, rule


@rule(
    "aten._is_all_true",
    "aten._is_any_true",
    "aten.all",
    "aten.amax",
    "aten.amin",
    "aten.any",
    "aten.argmax",
    "aten.argmin",
    "aten.argsort",
    "aten.bincount",
    "aten.count_nonzero",
    "aten.cummax",
    "aten.cummin",
    "aten.cumprod",
    "aten.cumsum",
    "aten.equal",
    "aten.histc",
    "aten.kthvalue",
    "aten.mean",
    "aten.median",
    "aten.mode",
    "aten.msort",
    "aten.nanmedian",
    "aten.nonzero",
    "aten.prod",
    "aten.sort",
    "aten.sum",
    "aten.topk",
    "aten.unique_consecutive",
    "aten.unique_dim",
    "aten._unique2",
)
def reduction(self: Tensor) -> Cost:
    """One addition, multiplication or comparison for each element consumed."""
    return Cost(reduction=numel(self))


@rule("aten.max", "aten.min")
def extremum(self: Tensor, other: Tensor | None, out: Any) -> Cost:
    """One comparison for each element consumed; between two tensors one for each element produced."""
    return Cost(elementwise=numel(out)) if other is not None else Cost(reduction=numel(self))


@rule("aten.aminmax")
def aminmax(self: Tensor) -> Cost:
    """Two comparisons for each element consumed."""
    return Cost(reduction=2 * numel(self))


@rule("aten.nansum")
def nansum(self: Tensor) -> Cost:
    """One comparison and one addition for each element consumed."""
    return Cost(elementwise=numel(self), reduction=numel(self))


@rule("aten.trace")
def trace(self: Tensor) -> Cost:
    """(n,m): one addition for each element of the diagonal."""
    n, m = self.shape
    shorter = sp.Min(n, m)
    return Cost(reduction=shorter, read=shorter * self.width)


@rule("aten.logcumsumexp")
def logcumsumexp(self: Tensor) -> Cost:
    """max + log1p(exp(min - max)) at each step: three operations, two calls, a sum for each element."""
    n = numel(self)
    return Cost(elementwise=3 * n, reduction=n, transcendental=2 * n)


@rule("aten.searchsorted")
def searchsorted(out: Tensor) -> Cost:
    """One search for each value, counted as one comparison; its depth depends on the boundaries."""
    return Cost(elementwise=numel(out))


@rule("aten.bucketize")
def bucketize(out: Tensor) -> Cost:
    """One search for each value, counted as one comparison; its depth depends on the boundaries."""
    return Cost(elementwise=numel(out))


@rule("aten.var", "aten.var_mean")
def variance(self: Tensor) -> Cost:
    """Mean, then the sum of (x - mean)²: a subtraction, a square and two additions for each element."""
    return Cost(elementwise=2 * numel(self), reduction=2 * numel(self))


@rule("aten.std", "aten.std_mean")
def deviation(self: Tensor, out: Any) -> Cost:
    """A variance, and one root for each element produced."""
    return variance(self) + Cost(transcendental=numel(first(out)))


def norm_of(n: Expr, rows: Expr, power: Any) -> Cost:
    """(sum |x|^p)^(1/p) over n elements into `rows` results."""
    if power is None or is_number(power, 2):
        return Cost(elementwise=n, reduction=n, transcendental=rows)
    if is_number(power, 1) or is_number(power, 0) or power in (float("inf"), -float("inf")):
        return Cost(elementwise=n, reduction=n)
    return Cost(elementwise=n, reduction=n, transcendental=n + rows)


@rule("aten.linalg_vector_norm")
def vector_norm(self: Tensor, ord: Any, out: Tensor) -> Cost:
    """Square and sum of each element, a root for each result; powers for an order not 0, 1, 2, infinity."""
    return norm_of(numel(self), numel(out), ord)


@rule("aten.norm")
def norm(self: Tensor, p: Any, out: Tensor) -> Cost:
    """Square and sum of each element, a root for each result; powers for an order not 0, 1, 2, infinity."""
    return norm_of(numel(self), numel(out), p)


@rule("aten._foreach_norm")
def foreach_norm(self: Sequence[Tensor], ord: Any, out: Sequence[Tensor]) -> Cost:
    """Per tensor: square and sum of each element, a root; powers for an order not 0, 1, 2, infinity."""
    return norm_of(sp.Add(*map(numel, self)), sp.Add(*map(numel, out)), ord)


@rule("aten._foreach_max")
def foreach_max(self: Sequence[Tensor]) -> Cost:
    """One comparison for each element of each tensor."""
    return Cost(reduction=sp.Add(*map(numel, self)))


@rule("aten.dist")
def dist(self: Tensor, p: Any, out: Tensor) -> Cost:
    """The norm of a difference: one subtraction for each element more than the norm."""
    return norm_of(numel(self), numel(out), p) + Cost(elementwise=numel(self))


@rule("aten.renorm", "aten.embedding_renorm_")
def renorm(self: Tensor) -> Cost:
    """Rows are scaled to a bound: square, sum and scaling of each element, a root for each row."""
    return Cost(elementwise=2 * numel(self), reduction=numel(self), transcendental=self.shape[0])


def pair_distances(pairs: Expr, width: Expr, power: Any) -> Cost:
    """A norm of `width` differences for each pair."""
    return norm_of(pairs * width, pairs, power) + Cost(elementwise=pairs * width)


@rule("aten._cdist_forward")
def cdist(x1: Tensor, p: Any, out: Tensor) -> Cost:
    """(…,n,w) against (…,m,w): the norm of w differences for each (…,n,m)."""
    return pair_distances(numel(out), x1.shape[-1], p)


@rule("aten._pdist_forward")
def pdist(self: Tensor, p: Any, out: Tensor) -> Cost:
    """(n,w) against itself: the norm of w differences for each pair."""
    return pair_distances(numel(out), self.shape[-1], p)


@rule("aten._cdist_backward")
def cdist_backward(x1: Tensor, cdist: Tensor) -> Cost:
    """g (a - b) / distance, summed: three operations and one addition for each pair and coordinate."""
    n = numel(cdist) * x1.shape[-1]
    return Cost(elementwise=3 * n, reduction=n)


@rule("aten._pdist_backward")
def pdist_backward(self: Tensor, pdist: Tensor) -> Cost:
    """g (a - b) / distance, added to both: three operations, two additions for each pair and coordinate."""
    n = numel(pdist) * self.shape[-1]
    return Cost(elementwise=3 * n, reduction=2 * n)


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None
) -> Cost:
    """(v,d) looked up and summed by bag: an addition for each element looked up, a product if weighted."""
    looked_up = numel(indices) * weight.shape[-1]
    return Cost(
        elementwise=given(per_sample_weights) * looked_up,
        reduction=looked_up,
        read=looked_up * weight.width + moved((indices, offsets)),
    )


@rule("aten._embedding_bag_backward", "aten._embedding_bag_dense_backward")
def embedding_bag_backward(grad: Tensor, indices: Tensor) -> Cost:
    """A bag's gradient is added to each of its rows of (v,d): one addition for each element looked up."""
    return Cost(elementwise=numel(indices) * grad.shape[-1])
