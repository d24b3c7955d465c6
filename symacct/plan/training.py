"""A training run worked out: FLOPs of a step by each way of counting, time, and what a measured rate comes
to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.parallel import Rank
from symacct.plan.question import Case, Question, passes_a_second
from symacct.plan.training_time import (
    DAY,
    PER_TOKEN,
    Run,
    cards_for,
    each_step,
    estimates,
    in_products,
    overhead,
    tokens_of,
    utilisation,
)


@dataclass(frozen=True)
class PerToken:
    """FLOPs of a token: `6·active + rest`, where `active` are the parameters in products, if there are
    such.
    """

    flops: Expr
    active: Expr | None
    rest: Expr


@dataclass(frozen=True)
class Training:
    """Training time. `step` are the FLOPs of one traced step by each way of counting, `chosen` the one that
    is used.

    `run` is the work at the peak, of a divided step that of the busiest rank; `at_mfu` at the share of it
    that was asked for, else measured. `optimizer` are the optimizer's products as a share of a step's,
    `in_time` the cards that finish in the days that were asked for. `rank` are the FLOPs of a step on the
    busiest rank.
    """

    step: Mapping[str, Expr]
    chosen: str
    run: Run
    at_mfu: Run | None = None
    steps: Fraction | None = None
    mfu: Fraction | None = None
    hfu: Fraction | None = None
    per_token: PerToken | None = None
    optimizer: Fraction = Fraction(0)
    in_time: int | None = None
    rank: Expr | None = None


def train(case: Case, question: Question, precision: str, rank: Rank | None = None) -> Training:
    """Work it out, where a step is divided by a rank's own FLOPs: what ranks do alike, each takes time for.

    Raises SizeError for an estimate or a unit that the model does not have.
    """
    graph, sizes, formulas = case.ledger.graph, case.sizes, case.formulas
    found = estimates(graph, formulas, case.ledger.convention)
    if question.estimate not in found:
        raise SizeError(f"{graph.target} has no estimate {question.estimate}; there is {', '.join(found)}")
    peak = question.card.peak(precision)
    step = Fraction(evaluate(found[question.estimate], sizes))
    total, steps = _work(case, question, step)
    mfu, hfu = _measured(case, question, step, peak) if question.rate is not None else (None, None)
    share = question.mfu if question.mfu is not None else mfu
    at_mfu = Run(total, peak, question.cards, share) if share is not None else None
    own = evaluate(formulas["flops.step"], sizes)
    optimizer = (
        overhead(evaluate(formulas["flops.optimizer"], sizes), question.accumulate * own)
        if own
        else Fraction(0)
    )
    per_token = _per_token(case, found[question.estimate])
    mine = None if rank is None else _of_rank(case, rank)
    busiest = None
    if rank is not None and question.estimate == "exact":
        one = Fraction(evaluate(mine, sizes)) * (1 + Fraction(evaluate(rank.idle, sizes)))
        busiest = one * (1 if steps is None else steps)
    run = Run(total, peak, question.cards, busiest=busiest)
    in_time = _in_time(question, at_mfu or run) if question.days is not None else None
    told = (found, question.estimate, run, at_mfu, steps, mfu, hfu, per_token, optimizer, in_time)
    return Training(*told, mine)


def _of_rank(case: Case, rank: Rank) -> Expr:
    """FLOPs of a step on the rank with most to do, with what backward computes again."""
    return sp.expand(case.per_flop * case.under(rank.flops["flops.hardware"]))


def _in_time(question: Question, run: Run) -> int:
    """The fewest cards that finish in the days; of a divided step whole replicas of it."""
    days = Fraction(question.days or 0) * DAY
    each = question.cards // question.side_by_side
    share = utilisation(run.flops, run.seconds, run.peak, run.cards)
    return -(-cards_for(run.flops, days, run.peak, share) // each) * each


def _work(case: Case, question: Question, step: Fraction) -> tuple[Number, Fraction | None]:
    """FLOPs of what is trained, and the steps that it takes; of one step where no amount is said."""
    passes = question.accumulate * question.side_by_side
    if question.amount is None:
        return step * passes, None
    if question.unit == "steps":
        return step * passes * question.amount, question.amount
    each = each_step(question.unit, case.ledger.graph, case.sizes)
    return step * question.amount / each, question.amount / (each * passes)


def _per_token(case: Case, step: Expr) -> PerToken | None:
    tokens = tokens_of(case.ledger.graph)
    if tokens is None:
        return None
    tokens = case.under(tokens)
    used = in_products(step, tokens)
    each = sp.expand(step / tokens)
    return PerToken(each, used, sp.expand(each - PER_TOKEN * used) if used is not None else each)


def _measured(case: Case, question: Question, step: Fraction, peak: int) -> tuple[Fraction, Fraction]:
    """MFU and HFU of a measured rate."""
    by_step = question.rate_unit == "step-seconds"
    instead = "give the seconds of a step with --step-seconds"
    each = 1 if by_step else each_step("tokens", case.ledger.graph, case.sizes, instead)
    passes = passes_a_second(question, each)
    counted = (evaluate(case.formulas[key], case.sizes) for key in ("flops.hardware", "flops.step"))
    hardware, model = (case.per_flop * flops for flops in counted)
    mfu = utilisation(step * passes, 1, peak, question.cards)
    return mfu, mfu + utilisation((hardware - model) * passes, 1, peak, question.cards)
