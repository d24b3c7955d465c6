"""What a plan starts from: a model's ledger at sizes, and what is asked of it on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.devices import Device, precision_of
from symacct.errors import SizeError
from symacct.graph import Assumption

UNITS = ("tokens", "samples", "steps")
_EXAMPLE = 64


@dataclass(frozen=True)
class Case:
    """A ledger under given relations, at sizes of which one may be left open.

    `under` applies the relations to an expression, `complete` finds the sizes that they tell. `conditions`
    are the model's and the given ones.
    """

    ledger: Ledger
    formulas: Mapping[str, Expr]
    under: Callable[[Expr], Expr]
    sizes: Mapping[str, int]
    conditions: tuple[Assumption, ...] = ()
    complete: Callable[[Mapping[str, int]], dict[str, int]] = dict

    def at(self, **sizes: int) -> Case:
        """The same with these sizes, and those that follow."""
        known = self.complete({**self.sizes, **sizes})
        return Case(self.ledger, self.formulas, self.under, known, self.conditions, self.complete)

    @property
    def per_flop(self) -> int:
        """FLOPs of one unit of the convention: 2 where it counts multiply-adds."""
        return 2 if self.ledger.convention.unit == "MAC" else 1


@dataclass(frozen=True)
class Question:
    """What is asked. `amount` of `unit` (tokens, samples, steps) is trained or served.

    `accumulate`: passes of the traced batch in a step of the optimizer. `rate` is measured: tokens a second
    of all cards together, or with `rate_unit` "step-seconds" the seconds of a step. `replicas` each work on a
    batch of their own; without a number every card is one. `days`: how long it may take, for the cards that
    this needs.
    """

    card: Device
    cards: int = 1
    replicas: int | None = None
    precision: str | None = None
    solve: str | None = None
    unit: str = "tokens"
    amount: Fraction | None = None
    accumulate: int = 1
    mfu: Fraction | None = None
    rate: Fraction | None = None
    rate_unit: str = "tokens-per-second"
    price: Fraction | None = None
    estimate: str = "exact"
    days: Fraction | None = None

    @property
    def side_by_side(self) -> int:
        """How many batches are worked on at the same time."""
        return self.replicas or self.cards


def passes_a_second(question: Question, each: int) -> Fraction:
    """Measured passes of the traced batch a second, `each` tokens a pass, of all cards together."""
    if question.rate is None:
        raise SizeError("no rate was measured")
    if question.rate_unit == "step-seconds":
        return question.accumulate * question.side_by_side / question.rate
    return question.rate / each


def products_in(case: Case, question: Question) -> tuple[str, list[str]]:
    """In which dtype products run, and what a reader must know of that. Raises DeviceError if the card lacks
    it.
    """
    found = {dtype: expr for (dtype,), expr in case.ledger.by("dtype", quantity="product").items()}
    names = list(dict.fromkeys(precision_of(dtype) for dtype in found))
    chosen = question.precision or _main(case, found) or next(iter(question.card.peaks), "fp32")
    question.card.peak(chosen)
    others = [name for name in names if name != chosen]
    if question.precision and names and chosen not in names:
        own = ", ".join(names)
        return chosen, [
            f"products are counted at the peak in {chosen}; the model's bytes are those of its own {own}"
        ]
    if others:
        return chosen, [f"some products run in {', '.join(others)}; all are counted at the peak in {chosen}"]
    return chosen, []


def _main(case: Case, found: Mapping[str, Expr]) -> str:
    """The dtype of most products."""

    def weight(dtype: str) -> float:
        expr = found[dtype]
        return float(
            expr.xreplace({s: sp.Integer(case.sizes.get(s.name, _EXAMPLE)) for s in expr.free_symbols})
        )

    return precision_of(max(found, key=weight)) if found else ""
