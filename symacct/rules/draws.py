"""Random draws, which count no FLOPs, and what is done with them."""

from __future__ import annotations

from typing import Any

from symacct.graph import Tensor
from symacct.rules.table import ZERO, Cost, moved, numel, rule


@rule(
    "aten.cauchy",
    "aten.exponential",
    "aten.geometric",
    "aten.log_normal",
    "aten.rand",
    "aten.rand_like",
    "aten.randint",
    "aten.randint_like",
    "aten.randn",
    "aten.randn_like",
    "aten.random",
    "aten.randperm",
    "aten.uniform",
    "aten.normal_",
)
def draw() -> Cost:
    """Random values: nothing is read, the output is written once."""
    return Cost(read=ZERO)


@rule("aten.normal")
def normal(mean: Any, std: Any) -> Cost:
    """Random values around given means: these are read, the output is written once."""
    return Cost(read=moved((mean, std)))


@rule("aten.poisson", "aten.multinomial")
def draw_from() -> Cost:
    """Random values from given weights: these are read, the output is written once."""
    return Cost()


@rule("aten.bernoulli")
def bernoulli(out: Tensor) -> Cost:
    """A draw below p: one comparison for each element."""
    return Cost(elementwise=numel(out))


@rule("aten.bernoulli_")
def bernoulli_in_place(p: Any, out: Tensor) -> Cost:
    """A draw below p: one comparison for each element, whose old value is not read."""
    return Cost(elementwise=numel(out), read=moved(p))


@rule("aten.native_dropout")
def dropout(input: Tensor, p: Any, train: Any) -> Cost:
    """x (draw < keep) / keep: a comparison and two multiplications per element; a copy when not training."""
    dropping = int(bool(train) and p != 0)
    return Cost(elementwise=3 * dropping * numel(input))


@rule("aten.native_dropout_backward")
def dropout_backward(out: Tensor) -> Cost:
    """g mask / keep: two multiplications per element."""
    return Cost(elementwise=2 * numel(out))
