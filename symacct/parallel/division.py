"""What one mesh axis divides, and what it could not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import Expr

from symacct.graph import Node
from symacct.parallel.layout import Part


@dataclass(frozen=True, slots=True)
class Division:
    """What one mesh axis divides: parameters by label, and, if named, the sequence between the divided products.

    `again`: a gathered input of a product is not kept; backward gathers it anew (Megatron). Else it is kept (torch).
    `caches`: how the parts of a cache are held. `tokens`: inputs of whole numbers are divided along the sequence too, as under context parallelism.
    """

    ranks: Expr
    params: Mapping[str, Part]
    sequence: tuple[Expr, ...] = ()
    again: bool = True
    tokens: bool = False
    caches: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An op that cannot be divided as asked, and the parameters whose division met there."""

    node: Node
    why: str
    origins: tuple[str, ...]
