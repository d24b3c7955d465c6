"""What one ledger entry counts under a convention: its model FLOPs, and what only the hardware repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import sympy as sp
from sympy import Expr

from symacct.charges import charged
from symacct.conventions import Convention
from symacct.graph import Placed, Tensor


class Priced(Protocol):
    """A place with its FLOPs by kind; `recomputed` and `causal` speak of its products."""

    @property
    def place(self) -> Placed: ...
    @property
    def product(self) -> Expr: ...
    @property
    def elementwise(self) -> Expr: ...
    @property
    def reduction(self) -> Expr: ...
    @property
    def transcendental(self) -> Expr: ...
    @property
    def recomputed(self) -> Expr: ...
    @property
    def causal(self) -> Expr | None: ...


def model_flops(entry: Priced, now: Convention, tensors: Mapping[str, Tensor]) -> Expr:
    """What the convention counts of an entry, without what only the hardware repeats."""
    total = _unmasked(entry, entry.product - entry.recomputed, now)
    if now.count == "all":
        total = total + entry.elementwise + entry.reduction + entry.transcendental
    total = total / 2 if now.unit == "MAC" else total
    if now.charges and now.count == "products":
        total = total + charged(entry.place, tensors, dict(now.charges))
    return total


def repeated_flops(entry: Priced, now: Convention) -> Expr:
    """The products that fused attention's backward repeats."""
    repeated = _unmasked(entry, entry.recomputed, now)
    return repeated / 2 if now.unit == "MAC" else repeated


def _unmasked(entry: Priced, products: Expr, now: Convention) -> Expr:
    """Of an entry's products, those that the convention counts behind a causal mask."""
    if entry.causal is None or now.attention == "full" or products == 0:
        return products
    if now.attention == "half":
        return products / 2
    return sp.expand(sp.cancel(products * sp.cancel(entry.causal / entry.product)))
