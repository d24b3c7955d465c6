"""Updates of whole lists of tensors: one operation for each arithmetic operation and element.

The fused optimizers count what the same update counts when it is written with `_foreach_` ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.pointwise import COUNTS, power_counts, scaled
from symacct.rules.table import Cost, Expr, given, is_number, moved, numel, rule

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
BINARY = "mul clamp_max clamp_min maximum minimum lerp"


def count(lists: Any) -> Expr:
    """Elements of all tensors of a list."""
    return sp.Add(*map(numel, lists))


def foreach(name: str) -> None:
    """Declare the list form of a pointwise op: the same operations for each element of each tensor."""
    elementwise, transcendental = COUNTS[name]

    @rule(f"aten._foreach_{name}")
    def price(self: Sequence[Tensor]) -> Cost:
        """For each tensor of the list what the op for one tensor counts."""
        n = count(self)
        return Cost(elementwise=elementwise * n, transcendental=transcendental * n)


for _name in f"{UNARY} {BINARY}".split():
    foreach(_name)


@rule("aten._foreach_div")
def foreach_div(self: Sequence[Tensor]) -> Cost:
    """x / y: one division for each element of each tensor."""
    return Cost(elementwise=count(self))


@rule("aten._foreach_add", "aten._foreach_sub")
def foreach_add(self: Sequence[Tensor], alpha: Any) -> Cost:
    """x + alpha * y: one addition for each element of each tensor, one multiplication unless alpha is 1."""
    return Cost(elementwise=(1 + scaled(alpha)) * count(self))


@rule("aten._foreach_addcmul", "aten._foreach_addcdiv")
def foreach_addcmul(self: Sequence[Tensor], value: Any, scalars: Any) -> Cost:
    """x + value * y * z: two operations for each element of each tensor, a third unless the value is 1."""
    factors = given(scalars) or scaled(value)
    return Cost(elementwise=(2 + factors) * count(self))


@rule("aten._foreach_pow")
def foreach_pow(exponent: Any, out: Sequence[Tensor]) -> Cost:
    """x ** y: multiplications for the exponents 2, 3, -1 and -2, else one call, for each element."""
    single = not isinstance(exponent, list | tuple)
    elementwise, transcendental = power_counts(exponent) if single else (0, 1)
    return Cost(elementwise=elementwise * count(out), transcendental=transcendental * count(out))


def decayed(weight_decay: Any) -> int:
    """g + decay * p: two operations when there is a decay."""
    return 0 if weight_decay is None or is_number(weight_decay, 0) else 2


def adam(self: Any, amsgrad: Any, maximize: Any, grad_scale: Any, decay: int) -> Cost:
    """m = lerp (3), v = b v + (1 - b) g g (4), sqrt(v) / c + eps (2 and a root), p - step m / that (3)."""
    n = count(self)
    extras = bool(amsgrad) + bool(maximize) + given(grad_scale) + decay
    return Cost(elementwise=(12 + extras) * n, transcendental=n)


@rule("aten._fused_adamw")
def fused_adamw(
    self: Any,
    exp_avgs: Any,
    exp_avg_sqs: Any,
    max_exp_avg_sqs: Any,
    weight_decay: Any,
    amsgrad: Any,
    maximize: Any,
    grad_scale: Any,
) -> Cost:
    """AdamW: twelve operations and a root for each parameter, one more to decay it."""
    decay = int(decayed(weight_decay) > 0)
    cost = adam(self, amsgrad, maximize, grad_scale, decay)
    written = moved((self, exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else None))
    return Cost(elementwise=cost.elementwise, transcendental=cost.transcendental, written=written)


@rule("aten._fused_adam")
def fused_adam(
    self: Any,
    exp_avgs: Any,
    exp_avg_sqs: Any,
    max_exp_avg_sqs: Any,
    weight_decay: Any,
    amsgrad: Any,
    maximize: Any,
    grad_scale: Any,
) -> Cost:
    """Adam: twelve operations and a root for each parameter, two more to decay it."""
    cost = adam(self, amsgrad, maximize, grad_scale, decayed(weight_decay))
    written = moved((self, exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else None))
    return Cost(elementwise=cost.elementwise, transcendental=cost.transcendental, written=written)


@rule("aten._fused_sgd")
def fused_sgd(
    self: Any,
    momentum_buffer_list: Any,
    weight_decay: Any,
    momentum: Any,
    dampening: Any,
    nesterov: Any,
    maximize: Any,
    is_first_step: Any,
    grad_scale: Any,
) -> Cost:
    """SGD: p - lr g, two operations for each parameter; decay 2, momentum 2 or 3 if dampened, nesterov 2."""
    moving = not is_number(momentum, 0)
    damped = not is_number(dampening, 0)
    buffered = 0 if not moving or is_first_step else 2 + damped
    each = (
        2
        + decayed(weight_decay)
        + buffered
        + 2 * bool(moving and nesterov)
        + bool(maximize)
        + given(grad_scale)
    )
    return Cost(elementwise=each * count(self), written=moved((self, momentum_buffer_list)))


@rule("aten._fused_adagrad")
def fused_adagrad(self: Any, state_sums: Any, weight_decay: Any, maximize: Any, grad_scale: Any) -> Cost:
    """Adagrad: s + g g (2), sqrt(s) + eps (1 and a root), p - lr g / that (3) for each parameter; decay 2."""
    n = count(self)
    each = 6 + decayed(weight_decay) + bool(maximize) + given(grad_scale)
    return Cost(elementwise=each * n, transcendental=n, written=moved((self, state_sums)))


@rule("aten._amp_foreach_non_finite_check_and_unscale_")
def unscale(self: Any, found_inf: Tensor) -> Cost:
    """g / scale and whether it is finite: a multiplication and a comparison for each element."""
    return Cost(elementwise=2 * count(self), written=moved((self, found_inf)))


@rule("aten._amp_update_scale_")
def update_scale(self: Tensor, growth_tracker: Tensor) -> Cost:
    """The next loss scale: a comparison and a multiplication."""
    return Cost(elementwise=2 * numel(self), written=moved((self, growth_tracker)))
