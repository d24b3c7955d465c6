"""Normalisation by statistics of a row, a group or a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symacct.graph import Tensor
from symacct.rules.table import Cost, first, given, moved, numel, rule


def normalised(out: Any, affine: int, centred: bool = True) -> Cost:
    """(x - mean) rstd, then scale and shift: one square, a sum or two, a root for each statistic."""
    result, rstd = first(out), out[-1]
    n, statistics = numel(result), numel(rstd)
    return Cost(
        elementwise=(2 + centred + affine) * n + statistics,
        reduction=(1 + centred) * n,
        transcendental=statistics,
    )


@rule("aten.native_layer_norm", "aten.native_group_norm")
def layer_norm(weight: Tensor | None, bias: Tensor | None, out: Any) -> Cost:
    """(x - mean) rstd w + b: per element two sums, up to five operations; per row eps and a root."""
    return normalised(out, given(weight, bias))


@rule("aten._fused_rms_norm")
def rms_norm(weight: Tensor | None, out: Any) -> Cost:
    """x rsqrt(mean(x²) + eps) w: per element one sum, a square, up to two scalings; per row eps and rsqrt."""
    return normalised(out, given(weight), centred=False)


def normalised_backward(grad: Tensor, weight: Any, mask: Sequence[Any], centred: bool) -> Cost:
    """Gradients of the input, the scale and the shift, each when wanted.

    Input: g w, its two sums, (g w - sum/n - x̂ sum/n) rstd. Scale: sum of g x̂. Shift: sum of g.
    """
    n = numel(grad)
    to_input, to_weight, to_bias = (int(bool(wanted)) for wanted in (*mask, False)[:3])
    rebuilt = (1 + centred) * (to_input or to_weight)
    of_input = to_input * (4 + centred + given(weight))
    return Cost(
        elementwise=(rebuilt + of_input + to_weight) * n,
        reduction=(to_input * (1 + centred) + to_weight + to_bias) * n,
    )


@rule("aten.native_layer_norm_backward", "aten.native_group_norm_backward")
def layer_norm_backward(grad_out: Tensor, weight: Tensor | None, output_mask: Any) -> Cost:
    """x̂; input: g w, two sums, five operations; scale: a product and a sum; shift: a sum."""
    return normalised_backward(grad_out, weight, output_mask, centred=True)


@rule("aten._fused_rms_norm_backward")
def rms_norm_backward(grad_out: Tensor, weight: Tensor | None, output_mask: Any) -> Cost:
    """x̂ rebuilt; g w, one sum and four operations for the input; a product and a sum for the scale."""
    return normalised_backward(grad_out, weight, output_mask, centred=False)


def batch_normalised(input: Tensor, affine: int, training: int, running: Sequence[Tensor]) -> Cost:
    """(x - mean) rstd w + b by channel, the statistics from the batch in training, else the running ones."""
    n, channels = numel(input), input.shape[1]
    updates = 6 * int(bool(training and running)) * channels
    return Cost(
        elementwise=(2 + training + affine) * n + channels + updates,
        reduction=2 * training * n,
        transcendental=channels,
    )


def with_running(cost: Cost, out: Any, running: Sequence[Tensor], training: int) -> Cost:
    """The same cost; training also writes the running statistics."""
    return Cost(
        elementwise=cost.elementwise,
        reduction=cost.reduction,
        transcendental=cost.transcendental,
        written=moved(out) + training * moved(running),
    )


@rule("aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.cudnn_batch_norm")
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: Any,
    out: Any,
) -> Cost:
    """(x - mean) rstd w + b: in training per element two sums and up to five operations, else up to four."""
    running = tuple(t for t in (running_mean, running_var) if t is not None)
    cost = batch_normalised(input, given(weight, bias), int(bool(training)), running)
    return with_running(cost, out, running, int(bool(training)))


@rule("aten._batch_norm_with_update")
def batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    out: Any,
) -> Cost:
    """(x - mean) rstd w + b and new running statistics: per element two sums and up to five operations."""
    running = (running_mean, running_var)
    return with_running(batch_normalised(input, given(weight, bias), 1, running), out, running, 1)


@rule("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update")
def batch_norm_in_use(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Cost:
    """(x - mean) rstd w + b with running statistics: up to four operations per element, a root a channel."""
    return batch_normalised(input, given(weight, bias), 0, ())


@rule("aten.native_batch_norm_backward")
def batch_norm_backward(grad_out: Tensor, weight: Tensor | None, train: Any, output_mask: Any) -> Cost:
    """In training as a layer norm's, by channel; with running statistics the input's gradient is g w rstd."""
    if train:
        return normalised_backward(grad_out, weight, output_mask, centred=True)
    n = numel(grad_out)
    to_input, to_weight, to_bias = (int(bool(wanted)) for wanted in output_mask)
    return Cost(
        elementwise=(to_input * (1 + given(weight)) + 3 * to_weight) * n,
        reduction=(to_weight + to_bias) * n,
    )


@rule("aten.batch_norm_backward")
def batch_norm_backward_update(
    grad_out: Tensor, weight: Tensor | None, update: Any, output_mask: Any
) -> Cost:
    """In training as a layer norm's, by channel; with running statistics the input's gradient is g w rstd."""
    return batch_norm_backward(grad_out, weight, update, output_mask)


@rule("aten.cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(grad_output: Tensor, weight: Tensor | None) -> Cost:
    """As a layer norm's, by channel, with all three gradients."""
    return normalised_backward(grad_output, weight, (True, True, True), centred=True)


@rule("aten._weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor) -> Cost:
    """v g / |v|: a square, a sum and a scaling per element; a root and a division per norm."""
    return Cost(elementwise=2 * numel(v) + numel(g), reduction=numel(v), transcendental=numel(g))


@rule("aten._weight_norm_interface_backward")
def weight_norm_backward(saved_v: Tensor, saved_g: Tensor) -> Cost:
    """g/|v| (u - v sum(u v)/|v|²): four operations and a sum per element, four operations per norm."""
    return Cost(elementwise=4 * numel(saved_v) + 4 * numel(saved_g), reduction=numel(saved_v))
