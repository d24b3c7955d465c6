"""A training step in the form in which it is published: 6·N′·D and what attention adds."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from symacct.report.answer import Answer
from symacct.report.readable import text

Expr = sp.Expr
_PER_TOKEN = 6
_TWENTIETH = 19  # a part is within 5 % of a whole while the rest is at most 1/19 of the part


@dataclass(frozen=True, slots=True)
class Tokens:
    """`number · active · tokens + rest`: N′ is `active`, D `tokens`; `bound` says where that part is near."""

    number: int
    active: Expr
    tokens: Expr
    rest: Expr
    bound: str


def tokens_of(answer: Answer, step: Expr) -> Tokens | None:
    """The step in that form; None when its inputs are no tokens, or a size of the model is named D or N."""
    reading = answer.reading
    if {"N", "D"} & set(answer.ledger.graph.symbols) or len(reading.data) != 2 or len(reading.batch) != 1:
        return None
    (batch,) = reading.batch
    (length,) = reading.data - reading.batch
    poly = sp.expand(step)
    if not poly.is_polynomial(batch, length):
        return None
    linear = sp.expand(poly.coeff(batch, 1).coeff(length, 1))
    number = _PER_TOKEN // 2 if answer.ledger.convention.unit == "MAC" else _PER_TOKEN
    active = sp.expand(linear / number)
    if active == 0 or any(not p.as_coeff_Mul()[0].is_Integer for p in sp.Add.make_args(active)):
        return None
    tokens = batch * length
    rest = sp.expand(poly - number * active * tokens)
    return Tokens(number, active, tokens, rest, _bound(answer, number, active, rest, batch, length))


def _bound(answer: Answer, number: int, active: Expr, rest: Expr, batch: Expr, length: Expr) -> str:
    """Up to which length the rest is within 5 % of the step, when it is one term in the length's square."""
    if rest == 0 or rest.is_Add:
        return ""
    factor = rest / (batch * length**2)
    if factor.free_symbols & {batch, length} or sp.fraction(factor)[1] != 1:
        return ""
    scale, body = factor.as_coeff_Mul()
    below = sp.Rational(number) / (_TWENTIETH * scale)
    under = text(answer.terms(below.q * body))
    over = "N′" if below.p == 1 else f"{below.p}·N′"
    here = sp.Rational(number, _TWENTIETH) * active / factor
    known = here.xreplace(
        {s: sp.Integer(answer.sizes[s.name]) for s in here.free_symbols if s.name in answer.sizes}
    )
    said = f"  (here {length} < {int(sp.ceiling(known)):,})" if known.is_Rational else ""
    return f"{number}·N′·D alone is within 5 % while  {length} < {over}/({under}){said}"
