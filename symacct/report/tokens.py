"""A training step in the form in which it is published: 6·N′·D and what attention adds.

Also what any other count of parameters in the place of N′ leaves over, and where 6·N′·D alone is near.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.report.answer import Answer
from symacct.report.choices import counts
from symacct.report.readable import text
from symacct.symbols import symbol

_PER_TOKEN = 6
BOUNDS = (1, 5, 10)  # percent
_USED = {"matmul": "used in products", "active matmul": "used in products on one token"}
_WORDS = {
    "all": "all parameters",
    "trainable": "trainable ones",
    "active": "those that work on one token",
    "non-embedding": "those outside tables",
    "matmul": "those used in products",
    "active matmul": "those used in products on one token",
}


@dataclass(frozen=True, slots=True)
class Near:
    """`number · active · tokens` alone is within BOUNDS percent while `length` < active/(n·width), by bound.

    `here` are the first lengths that are too long, where the other sizes are known.
    """

    length: sp.Symbol
    width: Expr
    numbers: tuple[sp.Rational, ...]
    here: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """`number · active · tokens + rest`: N′ is `active`, D `tokens`.

    `meaning` says what N′ counts, if it is one of the choices of N; `others` are the other choices, each with
    what its 6·N·D leaves over beyond `rest`, divided by 6·D: N′ less that count.
    """

    number: int
    active: Expr
    tokens: Expr
    rest: Expr
    meaning: str
    others: tuple[tuple[str, Expr], ...]
    near: Near | None


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
    meaning, others = _counted(answer, active)
    return Tokens(
        number, active, tokens, rest, meaning, others, _near(answer, number, active, rest, batch, length)
    )


def _counted(answer: Answer, active: Expr) -> tuple[str, tuple[tuple[str, Expr], ...]]:
    """What N′ counts, and N′ less each other choice of N; counts that are equal are told once."""
    meaning = ""
    others: dict[Expr, str] = {}
    for choice, count in counts(answer.ledger).items():
        less = sp.expand(active - answer.under(count))
        if less == 0:
            meaning = _USED.get(choice, meaning or _WORDS[choice])
        else:
            others.setdefault(less, _WORDS[choice])
    return meaning, tuple((words, less) for less, words in others.items())


def _near(
    answer: Answer, number: int, active: Expr, rest: Expr, batch: Expr, length: sp.Symbol
) -> Near | None:
    """A part is within p % of a whole while the rest is at most p/(100 - p) of the part."""
    factor = sp.expand(rest / (batch * length**2))
    parts = [part.as_coeff_Mul() for part in sp.Add.make_args(factor)]
    polynomial = factor.is_polynomial(*factor.free_symbols)
    if not factor.free_symbols or factor.free_symbols & {batch, length} or not polynomial:
        return None
    if not all(scale.is_Rational and scale > 0 for scale, _ in parts):
        return None
    scale = sp.gcd_list([scale for scale, _ in parts])
    width = sp.expand(factor / scale)
    numbers = tuple(sp.Rational(100 - bound, bound) * scale / number for bound in BOUNDS)
    sizes = {symbol(name): sp.Integer(value) for name, value in answer.sizes.items()}
    limits = [(active / (n * width)).xreplace(sizes) for n in numbers]
    known = all(limit.is_Rational for limit in limits)
    return Near(length, width, numbers, tuple(int(sp.ceiling(x)) for x in limits) if known else ())


def said(answer: Answer, found: Tokens) -> Iterator[str]:
    """What N′ and D are, what another N leaves over, and where 6·N′·D alone is near; a line each."""
    used = f" ({found.meaning})" if found.meaning else ""
    yield f"N′ = {text(answer.terms(found.active))}{used},  D = {text(answer.terms(found.tokens))}"
    for words, less in found.others:
        over, sign = more_or_less(less)
        yield f"{words} for N′ leave {_times(answer, f'{found.number}·D', over)} {sign}"
    if found.near is not None:
        near = found.near
        bounds, numbers = (", ".join(map(str, row)) for row in (BOUNDS, near.numbers))
        yield (
            f"{found.number}·N′·D alone is within {bounds} % while "
            f"{near.length} < N′/({_times(answer, 'n', near.width)}), n = {numbers}"
        )
        if near.here:
            yield f"(here {near.length} < {', '.join(f'{n:,}' for n in near.here)})"


def more_or_less(less: Expr) -> tuple[Expr, str]:
    """A difference of counts as a sum that is "more" or, where all its terms are taken away, "less"."""
    if all(part.as_coeff_Mul()[0] < 0 for part in sp.Add.make_args(less)):
        return sp.expand(-less), "less"
    return less, "more"


def _times(answer: Answer, head: str, expr: Expr) -> str:
    """A product of a name and an expression, with a bracket where that is a sum."""
    terms = answer.terms(expr)
    whole = text(terms)
    return f"{head}·({whole})" if len(terms) > 1 or whole.startswith("-") else f"{head}·{whole}"
