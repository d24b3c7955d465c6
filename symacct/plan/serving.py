"""Latency, throughput and cost of serving: a pass takes as long as its bytes or its FLOPs, whichever is
longer.

The bytes of a pass are every weight once, and the cache once, as in Pope et al. 2022, kipply's "Transformer
Inference Arithmetic" and Stanford's CS336, lecture 10: the least that memory must deliver, but for tables of which
a pass reads some rows alone. What those hold is told beside it. Where each sequence
picks k of E experts, only the experts that some sequence picks are read: the expectation for uniform picks,
or all that could be.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.account import add
from symacct.evaluation import Number
from symacct.graph import Graph, total_over
from symacct.plan.training_time import HOUR

MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a model: bytes moved, FLOPs, and the tokens that come out of it or go into it.

    `bandwidth` in B/s and `peak` in FLOP/s are those of a card; `cards` share a pass, and `replicas` of them
    work side by side. `mfu` is the share of the peak that products reach. `parts`: in how many equal parts
    the cards do it; None for as many as cards, 1 where bytes and FLOPs are those of the busiest card.
    """

    bytes: Number
    flops: Number
    tokens: Number
    bandwidth: int
    peak: int
    cards: int = 1
    mfu: Fraction = Fraction(1)
    replicas: int = 1
    parts: int | None = None

    @property
    def moving(self) -> Fraction:
        """Seconds that the bytes take."""
        return moving(self.bytes, self.bandwidth, self.parts or self.cards)

    @property
    def computing(self) -> Fraction:
        """Seconds that the FLOPs take."""
        return Fraction(self.flops) / ((self.parts or self.cards) * self.peak * self.mfu)

    @property
    def seconds(self) -> Fraction:
        """The longer of the two: both go on at the same time."""
        return max(self.moving, self.computing)

    @property
    def limit(self) -> str:
        """What bounds it: "compute" or "memory"."""
        return "compute" if self.computing >= self.moving else "memory"

    @property
    def throughput(self) -> Fraction:
        """Tokens a second, of all sequences and replicas together."""
        return self.replicas * Fraction(self.tokens) / self.seconds

    def cost(self, price: Number) -> Fraction:
        """Of a million tokens, in the unit of `price`, that of a card for an hour."""
        return Fraction(price) * self.cards * self.seconds / HOUR * MILLION / self.tokens


def moving(count: Number, bandwidth: Number, ways: int = 1) -> Fraction:
    """Seconds for bytes over memory or a link of this bandwidth, in `ways` equal parts at once."""
    return Fraction(count) / (bandwidth * ways)


def cache_bytes(graph: Graph, width: int | None = None) -> Expr | None:
    """Bytes of the cache that a step leaves; with `width`, in elements of so many bytes. None without a
    cache.
    """
    left = [place for place in graph.sources("cache") if "after" in place.node.notes]
    if not left:
        return None
    sizes = ((out.numel * (width or out.width), place.loops) for place in left for out in place.node.outputs)
    return add(sp.expand(total_over(size, loops)) for size, loops in sizes)


def looked_up_bytes(graph: Graph) -> Expr:
    """Bytes of the tables of which a pass reads some rows alone: parameters that nothing but lookups use."""
    looked = {ref.value for place in graph.ops if place.node.op.startswith("aten.embedding") for ref in place.node.refs}
    used = {ref.value for place in graph.ops if not place.node.op.startswith("aten.embedding") for ref in place.node.refs}
    tables = [place for place in graph.sources("parameter") if {out.value for out in place.node.outputs} <= looked - used]
    return add(sp.expand(total_over(out.bytes, place.loops)) for place in tables for out in place.node.outputs)


def picked(experts: int, chosen: int, picks: int) -> Fraction:
    """How many of the experts at least one of `picks` tokens picks, on average, if each picks `chosen`
    uniformly.
    """
    return experts * (1 - (1 - Fraction(chosen, experts)) ** picks)


def weights_read(total: Number, active: Number, experts: int, chosen: int, picks: int) -> Fraction:
    """Parameters that a pass over `picks` tokens reads: what every token uses, and the experts that some
    token picks.

    `active` are those that work on one token: the common ones and `chosen` of the experts.
    """
    if experts == chosen:
        return Fraction(total)
    expert = Fraction(total - active, experts - chosen)
    return active + (picked(experts, chosen, picks) - chosen) * expert
