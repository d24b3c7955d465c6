"""A pass of inference worked out: every weight and the cache once, the bytes as traced, and what a rate comes to."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.plan.question import Case, Question, passes_a_second
from symacct.plan.serving import MILLION, Pass, cache_bytes, looked_up_bytes, moving, picked, weights_read
from symacct.plan.training_time import HOUR, each_step, samples_of, tokens_of, utilisation


@dataclass(frozen=True)
class Served:
    """A pass that reads every weight and the cache once (`least`), and one of every op run alone, as traced.

    `cache` are the bytes of the cache that it leaves, `tables` those of weights of which it reads some rows alone,
    `experts` how many of a layer's are read on average.
    `rate` is a measured one, in tokens a second of all `cards`. `seconds` is the time of what was asked to be
    served, at that rate if there is one; `mfu` and `mbu` are its shares of peak and bandwidth.
    """

    least: Pass
    traced: Pass
    cache: Expr
    tables: Expr
    experts: Fraction | None = None
    seconds: Fraction | None = None
    mfu: Fraction | None = None
    mbu: Fraction | None = None
    rate: Fraction | None = None
    cards: int = 1

    def cost(self, price: Number) -> Fraction:
        """Of a million tokens, in the unit of `price`, that of a card for an hour: at the measured rate if there
        is one, else at the least time.
        """
        if self.rate is None:
            return self.least.cost(price)
        return Fraction(price) * self.cards / self.rate / HOUR * MILLION


def serve(case: Case, question: Question, precision: str) -> Served:
    """Work it out. Raises SizeError for what only training has."""
    _refused(case, question)
    sizes, formulas, card = case.sizes, case.formulas, question.card
    cached = cache_bytes(case.ledger.graph)
    cache = case.under(cached) if cached is not None else sp.Integer(0)
    tokens = tokens_in(case)
    read, experts = _read(case, tokens)
    flops = case.per_flop * evaluate(formulas["flops.forward"], sizes)
    side = question.side_by_side

    def made(count: Number) -> Pass:
        peak, mfu = card.peak(precision), question.mfu or Fraction(1)
        return Pass(
            count, flops, tokens, card.needed("bandwidth"), peak, question.cards // side or 1, mfu, side
        )

    moved = evaluate(formulas["bytes.read"], sizes) + evaluate(formulas["bytes.written"], sizes)
    least = made(read + evaluate(cache, sizes))
    mfu, mbu = _measured(question, least) if question.rate is not None else (None, None)
    rate = None
    if question.rate is not None:
        rate = passes_a_second(question, int(least.tokens)) * Fraction(least.tokens)
    seconds = question.amount / (rate or least.throughput) if question.amount is not None else None
    return Served(least, made(moved), cache, case.under(looked_up_bytes(case.ledger.graph)), experts, seconds, mfu, mbu, rate, question.cards)


def _refused(case: Case, question: Question) -> None:
    mode = case.ledger.graph.mode
    if question.unit == "steps" and question.amount is not None:
        raise SizeError(
            f"--steps are those of an optimizer, and mode {mode} has none; say how much with --tokens"
        )
    options = {
        "--micro-batches": question.accumulate > 1,
        f"--flops {question.estimate}": question.estimate != "exact",
        "--days": question.days is not None,
    }
    for option in (name for name, given in options.items() if given):
        raise SizeError(f"{option} is of training, and mode {mode} does not train; leave it out")


def tokens_in(case: Case) -> int:
    """Tokens that a pass brings out (decode) or takes in; samples of a model that has none."""
    graph, sizes = case.ledger.graph, case.sizes
    batch = samples_of(graph)
    if graph.mode == "decode" and batch is not None:
        return int(evaluate(batch, sizes))
    return each_step("tokens" if tokens_of(graph) is not None else "samples", graph, sizes)


def _read(case: Case, tokens: int) -> tuple[Number, Fraction | None]:
    """Bytes of the weights that a pass reads, and, of a model that picks experts, how many of them."""
    weights = evaluate(case.formulas["bytes.params"], case.sizes)
    active = case.formulas.get("params.active")
    if active is None or not {"E", "k"} <= set(case.sizes):
        return weights, None
    total = evaluate(case.formulas["params.total"], case.sizes)
    picks = (case.sizes["E"], case.sizes["k"], tokens)
    read = weights_read(total, evaluate(active, case.sizes), *picks)
    return read * Fraction(weights, total), picked(*picks)


def _measured(question: Question, least: Pass) -> tuple[Fraction, Fraction]:
    """MFU, and the share of the bandwidth that the least bytes take, of a measured rate."""
    passes = passes_a_second(question, int(least.tokens))
    cards = question.cards
    return utilisation(least.flops * passes, 1, least.peak, cards), moving(
        least.bytes * passes, least.bandwidth, cards
    )
