"""A pass of inference worked out: every weight and the cache once, the bytes as traced, and a rate's worth.

Of a divided pass bytes and FLOPs are those of a rank: what ranks hold whole, each of them reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.account import Ledger, add
from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.parallel import Rank
from symacct.plan.fusion import executed
from symacct.plan.question import Case, Question, passes_a_second
from symacct.plan.rank_roofline import staged
from symacct.plan.serving import MILLION, Pass, cache_bytes, looked_up_bytes, moving, picked, weights_read
from symacct.plan.training_time import HOUR, each_step, samples_of, tokens_of, utilisation


@dataclass(frozen=True)
class Served:
    """A pass that reads every weight and the cache once (`least`), and one of every op run alone, as traced.

    FLOPs of both are those that hardware executes; `flops` are the model's under the convention, `counted` at
    the sizes. `cache` are the bytes of the cache that it leaves, `tables` those of weights of which it reads
    some rows alone, `experts` how many of a layer's are read on average. All of that is of a rank where the
    pass is divided.
    `rate` is a measured one, in tokens a second of all `cards`. `seconds` is the time of what was asked to be
    served, at that rate if there is one; `mfu` and `mbu` are its shares of peak and bandwidth.
    """

    least: Pass
    traced: Pass
    flops: Expr
    counted: Number
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


@dataclass(frozen=True, slots=True)
class _Held:
    """What one card has of a pass: bytes of weights, of experts' among them, cache and tables; FLOPs."""

    weights: Expr
    experts: Expr
    cache: Expr
    tables: Expr
    flops: Expr
    ledgers: tuple[Ledger, ...]


def serve(case: Case, question: Question, precision: str, rank: Rank | None = None) -> Served:
    """Work it out, of a rank's share if the pass is divided. Raises SizeError for what only training has."""
    _refused(case, question)
    sizes, card = case.sizes, question.card
    held = _whole(case) if rank is None else _of_rank(case, rank)
    tokens = tokens_in(case)
    read, experts = _read(case, held, tokens)
    flops = max(evaluate(executed(ledger), sizes) for ledger in held.ledgers)
    side = question.side_by_side

    def made(count: Number) -> Pass:
        peak, mfu = card.peak(precision), question.mfu or Fraction(1)
        cards, parts = question.cards // side or 1, None if rank is None else 1
        return Pass(count, flops, tokens, card.needed("bandwidth"), peak, cards, mfu, side, parts)

    moved = max(evaluate(add(e.read + e.written for e in ledger.entries), sizes) for ledger in held.ledgers)
    least = made(read + evaluate(held.cache, sizes))
    mfu, mbu = _measured(case, question, least) if question.rate is not None else (None, None)
    rate = None
    if question.rate is not None:
        rate = passes_a_second(question, int(least.tokens)) * Fraction(least.tokens)
    seconds = question.amount / (rate or least.throughput) if question.amount is not None else None
    counted = case.per_flop * evaluate(held.flops, sizes)
    told = (held.flops, counted, held.cache, held.tables, experts)
    return Served(least, made(moved), *told, seconds, mfu, mbu, rate, question.cards)


def _whole(case: Case) -> _Held:
    graph, formulas = case.ledger.graph, case.formulas
    found = [_experts(case.ledger, case.sizes), cache_bytes(graph) or sp.Integer(0), looked_up_bytes(graph)]
    experts, cache, tables = map(case.under, found)
    return _Held(formulas["bytes.params"], experts, cache, tables, formulas["flops.forward"], (case.ledger,))


def _of_rank(case: Case, rank: Rank) -> _Held:
    """A rank's. Its graph has all experts, of which ep leaves it a part; its share of the states knows."""
    graph, (share,) = rank.graph, rank.shares
    experts = _experts(Ledger(graph, case.ledger.convention), case.sizes) / rank.degrees.experts
    found = [share.states.params, experts, cache_bytes(graph) or sp.Integer(0), looked_up_bytes(graph)]
    ledgers, _, _ = staged(rank, case.ledger, case.sizes)
    weights, own, cache, tables, flops = map(case.under, (*found, rank.flops["flops.forward"]))
    return _Held(weights, own, cache, tables, flops, tuple(ledgers.values()))


def _experts(ledger: Ledger, sizes: Mapping[str, int]) -> Expr:
    """Bytes of the weights of all experts; 0 of a model that picks none."""
    active, total = ledger.formulas.get("params.active"), ledger.formulas["params.total"]
    if active is None or not {"E", "k"} <= set(sizes) or sizes["E"] == sizes["k"]:
        return sp.Integer(0)
    E, k = sizes["E"], sizes["k"]
    return sp.expand((total - active) * E / (E - k)) * ledger.formulas["bytes.params"] / total


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


def _read(case: Case, held: _Held, tokens: int) -> tuple[Number, Fraction | None]:
    """Bytes of the weights that a pass reads, and, of a model that picks experts, how many of a layer's."""
    weights = evaluate(held.weights, case.sizes)
    if "params.active" not in case.formulas or not {"E", "k"} <= set(case.sizes):
        return weights, None
    picks = (case.sizes["E"], case.sizes["k"], tokens)
    idle = evaluate(held.experts, case.sizes) * (1 - Fraction(case.sizes["k"], case.sizes["E"]))
    return weights_read(weights, weights - idle, *picks), picked(*picks)


def _measured(case: Case, question: Question, least: Pass) -> tuple[Fraction, Fraction]:
    """MFU, by the whole model's FLOPs, and the share of the bandwidth that the least bytes take, at the rate."""
    passes = passes_a_second(question, int(least.tokens))
    cards = question.cards
    model = case.per_flop * evaluate(case.formulas["flops.forward"], case.sizes)
    read = least.bytes * passes * (cards if least.parts == 1 else 1)
    return utilisation(model * passes, 1, least.peak, cards), moving(read, least.bandwidth, cards)
