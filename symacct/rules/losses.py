"""Losses that ATen has as one op. Of `reduction`, 0 keeps every element, 1 averages (the default), 2 sums."""

from __future__ import annotations

from typing import Any

from symacct.graph import Tensor
from symacct.rules.table import Cost, given, is_number, moved, numel, rule


def loss(self: Tensor, reduction: Any, elementwise: int, transcendental: int = 0) -> Cost:
    """So many operations for each element, and one addition for each unless all are kept."""
    n = numel(self)
    kept = reduction is not None and is_number(reduction, 0)
    return Cost(elementwise=elementwise * n, reduction=int(not kept) * n, transcendental=transcendental * n)


@rule("aten.mse_loss")
def mse_loss(self: Tensor, reduction: Any) -> Cost:
    """(x - y)²: a subtraction and a square per element, then a sum."""
    return loss(self, reduction, 2)


@rule("aten.mse_loss_backward")
def mse_loss_backward(self: Tensor) -> Cost:
    """2 g (x - y) / n: three operations per element."""
    return Cost(elementwise=3 * numel(self))


@rule("aten.huber_loss")
def huber_loss(self: Tensor, reduction: Any) -> Cost:
    """z²/2 or delta (z - delta/2), z = |x - y|: five operations per element, then a sum."""
    return loss(self, reduction, 5)


@rule("aten.smooth_l1_loss")
def smooth_l1_loss(self: Tensor, reduction: Any) -> Cost:
    """z²/2 / beta or z - beta/2, z = |x - y|: six operations per element, then a sum."""
    return loss(self, reduction, 6)


@rule("aten.huber_loss_backward", "aten.smooth_l1_loss_backward")
def huber_loss_backward(self: Tensor) -> Cost:
    """g times x - y within two bounds, over n: a subtraction, two comparisons, two scalings per element."""
    return Cost(elementwise=5 * numel(self))


@rule("aten.binary_cross_entropy")
def binary_cross_entropy(self: Tensor, weight: Tensor | None, reduction: Any) -> Cost:
    """-(y log x + (1 - y) log(1 - x)), logs bounded: eight operations, two calls per element, then a sum."""
    return loss(self, reduction, 8 + given(weight), 2)


@rule("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(self: Tensor, weight: Tensor | None) -> Cost:
    """g (x - y) / max((1 - x) x, tiny): six operations per element."""
    return Cost(elementwise=(6 + given(weight)) * numel(self))


@rule("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: Any
) -> Cost:
    """(1 - y) x - logsigmoid(x): seven operations and two calls per element, then a sum."""
    return loss(self, reduction, 7 + given(weight) + 3 * given(pos_weight), 2)


@rule("aten.soft_margin_loss")
def soft_margin_loss(self: Tensor, reduction: Any) -> Cost:
    """log1p(exp(-y x)): two operations and two calls per element, then a sum."""
    return loss(self, reduction, 2, 2)


@rule("aten.soft_margin_loss_backward")
def soft_margin_loss_backward(self: Tensor) -> Cost:
    """-g y z / (1 + z) / n, z = exp(-y x): seven operations and a call per element."""
    return Cost(elementwise=7 * numel(self), transcendental=numel(self))


@rule("aten.multi_margin_loss")
def multi_margin_loss(self: Tensor, p: Any, weight: Tensor | None) -> Cost:
    """max(0, margin - x_target + x)^p, summed: three operations per element; p = 2 and weights more."""
    squares = p is not None and is_number(p, 2)
    return Cost(elementwise=(3 + squares + given(weight)) * numel(self), reduction=numel(self))


@rule("aten.multi_margin_loss_backward")
def multi_margin_loss_backward(self: Tensor, p: Any, weight: Tensor | None) -> Cost:
    """g past the margin, its sum at the target: four operations per element; p = 2 and weights more."""
    squares = is_number(p, 2)
    return Cost(elementwise=(4 + squares + given(weight)) * numel(self), reduction=numel(self))


@rule("aten.multilabel_margin_loss_forward", "aten.multilabel_margin_loss_backward")
def multilabel_margin_loss(self: Tensor) -> Cost:
    """max(0, 1 - x_target + x), every class a target: three operations and a sum for each pair of classes."""
    pairs = numel(self) * self.shape[-1]
    return Cost(elementwise=3 * pairs, reduction=pairs)


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(self: Tensor, target: Tensor, weight: Tensor | None) -> Cost:
    """-x[target]: one element looked up, negated and added for each target; one product more if weighted."""
    n = numel(target)
    return Cost(
        elementwise=(1 + given(weight)) * n,
        reduction=n,
        read=moved((target, weight)) + n * self.width,
    )


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Tensor, target: Tensor, weight: Tensor | None, total_weight: Tensor
) -> Cost:
    """-g / n at each target, zero elsewhere: a sign and a division for each target, one more if weighted."""
    return Cost(
        elementwise=(2 + given(weight)) * numel(target),
        read=moved((grad_output, target, weight, total_weight)),
    )


@rule("aten._ctc_loss")
def ctc_loss(out: Any) -> Cost:
    """A lattice (batch, time, 2·labels+1): logsumexp of three ways a cell, nine operations, four calls."""
    _, log_alpha = out
    cells = numel(log_alpha)
    return Cost(elementwise=9 * cells, transcendental=4 * cells)


@rule("aten._ctc_loss_backward")
def ctc_loss_backward(log_probs: Tensor, log_alpha: Tensor) -> Cost:
    """The lattice backwards, each cell into its class, then exp(x) - exp(class) for each input."""
    cells, n = numel(log_alpha), numel(log_probs)
    return Cost(
        elementwise=(9 + 5) * cells + 3 * n,
        transcendental=(4 + 2) * cells + 2 * n,
    )
