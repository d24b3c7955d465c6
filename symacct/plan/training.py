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

    `run` is the work at the peak, `at_mfu` at the share of it that was asked for, else measured. `optimizer`
    are the optimizer's products as a share of a step's, `in_time` the cards that finish in the days that were
    asked for.
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


def train(case: Case, question: Question, precision: str) -> Training:
    """Work it out. Raises SizeError for an estimate or a unit that the model does not have."""
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
    run = Run(total, peak, question.cards)
    in_time = None
    if question.days is not None:
        in_time = cards_for(total, question.days * DAY, peak, share or 1)
    return Training(found, question.estimate, run, at_mfu, steps, mfu, hfu, per_token, optimizer, in_time)


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
    passes = passes_a_second(question, 1 if by_step else each_step("tokens", case.ledger.graph, case.sizes))
    counted = (evaluate(case.formulas[key], case.sizes) for key in ("flops.hardware", "flops.step"))
    hardware, model = (case.per_flop * flops for flops in counted)
    mfu = utilisation(step * passes, 1, peak, question.cards)
    return mfu, mfu + utilisation((hardware - model) * passes, 1, peak, question.cards)
