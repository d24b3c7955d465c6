"""What each ATen op costs: one rule an op, in files by kind. `table` states the conventions.

>>> from symacct.graph import Tensor
>>> from symacct.symbols import symbol
>>> m, k, n = (symbol(name) for name in "mkn")
>>> a, b, c = (Tensor(name, shape, "bfloat16", name) for name, shape in zip("abc", ((m, k), (k, n), (m, n))))
>>> cost = price("aten.mm", {"self": a, "mat2": b}, c)
>>> cost.product, cost.read, cost.written
(2*k*m*n, 2*k*m + 2*k*n, 2*m*n)
>>> RULES["aten.mm"].law
'(…,m,k) by (…,k,n): one multiply-add for each (…,m,k,n).'
"""

from __future__ import annotations

from symacct.rules import (
    attention,
    collectives,
    contraction,
    copies,
    draws,
    losses,
    normalisation,
    optimizer,
    pointwise,
    pooling,
    reduction,
    rnn,
    scatter,
    softmax,
    views,
)
from symacct.rules.table import RULES, Cost, DuplicateRule, Rule, find, price, rule

__all__ = ["RULES", "Cost", "DuplicateRule", "Rule", "find", "price", "rule"]

FILES = (
    attention,
    collectives,
    contraction,
    copies,
    draws,
    losses,
    normalisation,
    optimizer,
    pointwise,
    pooling,
    reduction,
    rnn,
    scatter,
    softmax,
    views,
)
