"""A training step in the form in which it is published: 6·N′·D and what attention adds.

Also what any other count of parameters in the place of N′ leaves over, and where 6·N′·D alone is near.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.expressions import to_text
from symacct.report.answer import Answer
from symacct.report.choices import counts
from symacct.report.nearness import BOUNDS, Near, condition, near, spoken
from symacct.report.readable import text

_PER_TOKEN = 6
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
class Tokens:
    """`number · active · tokens + rest`: N′ is `active`, D `tokens`.

    `meaning` says what N′ counts, if it is one of the choices of N; `others` are the other choices, each with
    what its 6·N·D leaves over beyond `rest`, divided by 6·D: N′ less that count. `name` is N, or P where N is
    a size of the model.
    """

    number: int
    active: Expr
    tokens: Expr
    rest: Expr
    meaning: str
    others: tuple[tuple[str, Expr], ...]
    near: Near | None
    name: str = "N"


def tokens_of(answer: Answer, step: Expr) -> Tokens | None:
    """The step in that form; None where `untold` says why not."""
    return None if untold(answer, step) else _tokens(answer, step)


def untold(answer: Answer, step: Expr) -> str:
    """Why a step has no form 6·N′·D; empty where it has one."""
    names, lengths = answer.ledger.graph.symbols, _lengths(answer)
    if "D" in names or {"N", "P"} <= set(names):
        return "sizes of the model have these names"
    if len(answer.reading.batch) != 1 or not lengths:
        return "the inputs are no rows of tokens"
    if len(lengths) > 1:
        told = " and ".join(str(size) for size in lengths)
        return f"the inputs have {len(lengths)} lengths, {told}: relate them by --given"
    (batch,) = answer.reading.batch
    poly = sp.expand(step)
    if not poly.is_polynomial(batch, lengths[0]):
        return f"the step is no polynomial of {batch} and {lengths[0]}"
    linear = sp.expand(poly.coeff(batch, 1).coeff(lengths[0], 1) / _number(answer))
    if linear == 0 or any(not p.as_coeff_Mul()[0].is_Integer for p in sp.Add.make_args(linear)):
        return f"what a token takes is not {_number(answer)} times a number of parameters"
    return ""


def _lengths(answer: Answer) -> list[sp.Symbol]:
    """The sizes of the inputs beside the batch, without those that relations tell."""
    told = answer.reading.data - answer.reading.batch - set(answer.relations.replaced)
    return sorted(told, key=str)


def _number(answer: Answer) -> int:
    return _PER_TOKEN // 2 if answer.ledger.convention.unit == "MAC" else _PER_TOKEN


def _tokens(answer: Answer, step: Expr) -> Tokens:
    (batch,), (length,) = answer.reading.batch, _lengths(answer)
    poly, number = sp.expand(step), _number(answer)
    active = sp.expand(poly.coeff(batch, 1).coeff(length, 1) / number)
    rest = sp.expand(poly - number * active * batch * length)
    region = near(active, number, rest, batch, length, answer.sizes)
    name = "P" if "N" in answer.ledger.graph.symbols else "N"
    return Tokens(number, active, batch * length, rest, *_counted(answer, active), region, name)


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


def said(answer: Answer, found: Tokens) -> Iterator[str]:
    """What N′ and D are, what another N leaves over, and where 6·N′·D alone is near; a line each."""
    used = f" ({found.meaning})" if found.meaning else ""
    prime = f"{found.name}′"
    yield f"{prime} = {text(answer.terms(found.active))}{used},  D = {text(answer.terms(found.tokens))}"
    for words, less in found.others:
        over, sign = more_or_less(less)
        yield f"{words} for {prime} leave {_times(answer, f'{found.number}·D', over)} {sign}"
    if found.near is not None:
        bounds, numbers = (", ".join(map(str, row)) for row in (BOUNDS, found.near.numbers))
        yield (
            f"{found.number}·{prime}·D alone is within {bounds} % while "
            f"{condition(found.near, found.near.length.name, prime, partial(_times, answer))}, n = {numbers}"
        )
        if found.near.here:
            yield f"(here {spoken(found.near.length.name, found.near.here)})"
    elif found.rest != 0:
        yield f"no length alone tells where {found.number}·{prime}·D is near: what is left changes its sign"


def more_or_less(less: Expr) -> tuple[Expr, str]:
    """A difference of counts as a sum that is "more" or, where all its terms are taken away, "less"."""
    if all(part.as_coeff_Mul()[0] < 0 for part in sp.Add.make_args(less)):
        return sp.expand(-less), "less"
    return less, "more"


def as_data(answer: Answer) -> dict[str, Any]:
    """The same for JSON; a reason in the place of all of it where there is no such form.

    `leaves` is the whole step less number·count·tokens; `within` has the condition on all sizes and, where
    the other sizes are known, the lengths `from` and `below`.
    """
    step = answer.formulas["flops.step"]
    reason = untold(answer, step)
    if reason:
        return {"reason": reason}
    found = _tokens(answer, step)
    others = [(words, sp.expand(found.active - less)) for words, less in found.others]
    return {
        "number": found.number,
        "parameters": to_text(found.active),
        "meaning": found.meaning,
        "tokens": to_text(found.tokens),
        "leaves": to_text(found.rest),
        "others": [
            {
                "meaning": words,
                "parameters": to_text(count),
                "leaves": to_text(sp.expand(step - found.number * found.tokens * count)),
            }
            for words, count in others
        ],
        "within": _within(found.active, found.near) if found.near is not None else [],
    }


def _within(active: Expr, region: Near) -> list[dict[str, Any]]:
    rows = []
    for at, (percent, number) in enumerate(zip(BOUNDS, region.numbers, strict=True)):
        sides = (sp.expand(number * region.left), sp.expand(active * region.right))
        row: dict[str, Any] = {"percent": percent, "where": " < ".join(map(to_text, sides))}
        if region.here:
            first, end = region.here[at] or (None, None)
            row |= {"from": first, "below": end}
        rows.append(row)
    return rows


def _times(answer: Answer, head: str, expr: Expr) -> str:
    """A product of a name and an expression, with a bracket where that is a sum."""
    terms = answer.terms(expr)
    whole = text(terms)
    return f"{head}·({whole})" if len(terms) > 1 or whole.startswith("-") else f"{head}·{whole}"
