"""A step divided among cards, as a plan needs it: what the fullest rank holds, and what goes over the
links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.parallel import Rank, Share
from symacct.parallel.collectives import PASSES, Traffic
from symacct.plan.fitting import Demand, Form
from symacct.plan.serving import cache_bytes, moving
from symacct.plan.solving import Ceiling, fewest
from symacct.symbols import symbol

Expr = sp.Expr
Under = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank sends over one axis by collectives of one kind: how many in a step, bytes by ring, seconds.

    `formula` is `payload · (ranks - 1)/ranks`, or `payload` alone where `ranks` is None. `seconds` over all
    links of the card one way, which is half of what they carry both ways; None without a figure.
    """

    axis: str
    kind: str
    count: Number
    formula: Expr
    payload: Expr
    ranks: Expr | None
    bytes: Number
    seconds: Fraction | None


def demand_of(rank: Rank, under: Under, stage: str = "") -> Demand:
    """The demand of a rank, by its states and what it keeps: a lower bound, for temporaries of single ops are
    outside.

    A form for each kind of stage; bytes by kind are those of the stage that is named, else of the first.
    """
    cached = cache_bytes(rank.graph)
    extra = {"KV cache": under(cached)} if cached is not None else {}
    kinds = {share.stage.name: {**_kinds(share, under), **extra} for share in rank.shares}
    forms = tuple(Form(sp.expand(sp.Add(*parts.values())), phase=name) for name, parts in kinds.items())
    return Demand(kinds.get(stage) or next(iter(kinds.values())), forms, False)


def _kinds(share: Share, under: Under) -> dict[str, Expr]:
    found = {
        "weights": share.states.params,
        "gradients": share.states.grads,
        "optimizer state": share.states.optimizer,
        "kept for backward": share.kept,
        "gathered for a while": share.gathered,
    }
    return {kind: under(expr) for kind, expr in found.items() if expr is not None and expr != 0}


def sent(rank: Rank, under: Under, sizes: Mapping[str, int], link: int | None) -> tuple[Sent, ...]:
    """The traffic of a step by axis and kind of collective, the most bytes first."""
    groups: dict[tuple[str, str], list[Traffic]] = {}
    for traffic in rank.traffic:
        groups.setdefault((traffic.axis, traffic.kind), []).append(traffic)
    found = [_sent(axis, kind, rows, under, sizes, link) for (axis, kind), rows in groups.items()]
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _sent(
    axis: str, kind: str, rows: list[Traffic], under: Under, sizes: Mapping[str, int], link: int | None
) -> Sent:
    def total(values: Iterable[Expr]) -> Expr:
        return under(sp.expand(sp.Add(*values)))

    volume, passes = total(row.ring for row in rows), PASSES[kind]
    payload = total((passes or 1) * row.payload for row in rows)
    ranks = {row.ranks for row in rows}
    number = evaluate(volume, sizes)
    plain = passes is None or len(ranks) > 1
    return Sent(
        axis,
        kind,
        evaluate(total(row.count for row in rows), sizes),
        volume,
        volume if plain else payload,
        None if plain else ranks.pop(),
        number,
        moving(2 * number, link) if link is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Fewest:
    """The fewest data-parallel ranks with which a step fits; None where none are enough.

    `form` is the one that asks for most of them: `over/n + rest`.
    """

    size: sp.Symbol
    number: int | None
    form: Form
    over: Expr
    rest: Expr


def fewest_ranks(rank: Rank, wanted: Demand, memory: int, sizes: Mapping[str, int]) -> Fewest:
    """Solve for the data-parallel ranks. Raises SizeError where their number changes no byte."""
    size = rank.names.of["dp"]
    if not any(size in form.bytes.free_symbols for form in wanted.forms):
        raise SizeError(
            f"--solve {size.name}: with zero=0 every rank holds all states; divide them, as in zero=3"
        )
    known = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != size.name}
    ceilings = [Ceiling(form.bytes.xreplace(known), memory) for form in wanted.forms]
    counts = [fewest([ceiling], size) for ceiling in ceilings]
    hardest = max(range(len(counts)), key=lambda k: (counts[k] is None, counts[k] or 0))
    form = wanted.forms[hardest]
    over = sp.expand(form.bytes).coeff(size, -1)
    return Fewest(size, counts[hardest], form, over, sp.expand(form.bytes - over / size))
