"""A step divided among cards, as a plan needs it: what the fullest rank holds, and what goes over the
links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.parallel import Rank, Share
from symacct.parallel.collectives import PASSES, Traffic
from symacct.plan.fitting import ABOVE, BELOW, EXACT, Demand, Form, least
from symacct.plan.serving import cache_bytes, moving
from symacct.plan.solving import Ceiling, fewest
from symacct.symbols import symbol

Under = Callable[[Expr], Expr]
GATHERED, WHOLE_FOR_A_WHILE = "gathered for a while", "gradients before they are scattered"


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank sends over one axis by collectives of one kind: how many in a step, bytes by ring, seconds.

    `formula` is `payload · (ranks - 1)/ranks`, or `payload` alone where `ranks` is None. `tree` are the
    bytes of the busiest rank of a double binary tree, at most; None where only a ring is used. `seconds`
    over all links of the card one way, which is half of what they carry both ways; None without a figure.
    """

    axis: str
    kind: str
    count: Number
    formula: Expr
    payload: Expr
    ranks: Expr | None
    bytes: Number
    seconds: Fraction | None
    tree: Expr | None = None
    tree_bytes: Number = 0


def demand_of(rank: Rank, under: Under, stage: str = "") -> Demand:
    """The demand of a rank: forms for each kind of stage, and bytes by kind of the one that is named, else
    the first.

    The peak of a traced moment is exact where nothing but the moment's own storages is alive; with other
    micro-batches under way, or gradients and weights that are divided, it is a bound from above. Where deaths
    follow no rule, one from below.
    """
    cached = cache_bytes(rank.graph)
    extra: dict[str, Expr] = {"KV cache": under(cached)} if cached is not None else {}
    kinds = {share.stage.name: {**_kinds(share, under), **extra} for share in rank.shares}
    shown = kinds.get(stage) or next(iter(kinds.values()))
    if all(share.peak for share in rank.shares):
        forms = {under(live): share.stage.name for share in rank.shares for live in share.peak or ()}
        degrees = rank.degrees
        whole = degrees.stages == degrees.micro_batches == 1 and degrees.zero < 2
        return Demand(
            shown, tuple(Form(live, phase=name) for live, name in forms.items()), EXACT if whole else ABOVE
        )
    below = [form for name, parts in kinds.items() for form in least(parts, name)]
    return Demand(shown, tuple(below), BELOW)


def stage_of(form: Form) -> str:
    """The kind of stage that a form is about."""
    return form.phase.partition(", ")[0]


def _kinds(share: Share, under: Under) -> dict[str, Expr]:
    found = {
        "weights": share.states.params,
        "gradients": share.states.grads,
        "optimizer state": share.states.optimizer,
        "kept for backward": share.kept,
        GATHERED if share.peaks.degrees.zero == 3 else WHOLE_FOR_A_WHILE: share.gathered,
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
    tree = total(row.tree for row in rows) if kind == "all_reduce" else None
    return Sent(
        axis,
        kind,
        evaluate(total(row.count for row in rows), sizes),
        volume,
        volume if plain else payload,
        None if plain else ranks.pop(),
        number,
        moving(2 * number, link) if link is not None else None,
        tree,
        0 if tree is None else evaluate(tree, sizes),
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
    above = [evaluate(form.bytes, {**sizes, size.name: max((count or 1) - 1, 1)}) for form, count in zip(wanted.forms, counts, strict=True)]
    hardest = max(range(len(counts)), key=lambda k: (counts[k] is None, counts[k] or 0, above[k]))
    form = wanted.forms[hardest]
    over = sp.expand(form.bytes).coeff(size, -1)
    return Fewest(size, counts[hardest], form, over, sp.expand(form.bytes - over / size))
