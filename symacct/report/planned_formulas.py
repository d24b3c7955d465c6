"""How `plan` writes formulas: as multiples of N, over common divisors, and solved for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.domination import undominated
from symacct.plan.solving import Inverse
from symacct.report.answer import Answer
from symacct.report.numbers import grouped
from symacct.report.readable import text

Spell = Callable[[Expr, Answer], str]


def written(expr: Expr, answer: Answer, spell: Spell | None = None) -> str:
    """A formula in terms of N, or as `spell` has it; what numbers of ranks divide stands over a common
    divisor.

    >>> from symacct.account import Ledger
    >>> from symacct.report.answer import answer
    >>> from symacct.symbols import symbol
    >>> from symacct.targets import graph_of
    >>> asked = answer(Ledger(graph_of("mlp")))
    >>> written(asked.formulas["params.total"] * 12 / symbol("dp") + 4 * symbol("B"), asked)
    '12·N/dp + 4·B'
    """
    parts: list[str] = []
    for ranks, total in sorted(_collected(expr, set(answer.ledger.graph.symbols)), key=_order):
        sign = "-" if _falls(total) else "+"
        formula = (spell or in_terms_of_n)(-total if sign == "-" else total, answer)
        above, below = sp.fraction(ranks)
        if above != 1:
            formula = f"{bracketed(formula)}·{bracketed(text(answer.terms(sp.expand(above))))}"
        if below != 1:
            under = text(answer.terms(below))
            formula = f"{bracketed(formula)}/{under if below.is_Symbol else f'({under})'}"
        parts.append(f" {sign} {formula}" if parts else f"-{formula}" if sign == "-" else formula)
    return "".join(parts)


def _collected(expr: Expr, own: set[str]) -> list[tuple[Expr, Expr]]:
    """What a formula adds up, as pairs: a quotient of numbers of ranks, and what it is multiplied by.

    What is added over one divisor and taken away over another stands once, as in X·(p·v + p - 1)/(p·v).
    """
    bodies: dict[Expr, list[tuple[Expr, Expr]]] = {}
    for term in sp.Add.make_args(sp.expand(expr)):
        coeff, rest = term.as_coeff_Mul()
        powers = rest.as_powers_dict().items()
        ranks = sp.Mul(*(base**power for base, power in powers if _of_ranks(base, own)))
        bodies.setdefault(rest / ranks, []).append((coeff, ranks))
    groups: dict[Expr, list[Expr]] = {}
    for body, pairs in bodies.items():
        share = sp.Add(*(coeff * ranks for coeff, ranks in pairs))
        both_ways = len(pairs) > 1 and any(coeff < 0 for coeff, _ in pairs)
        if both_ways and undominated([share, sp.Integer(0)]) == [share]:
            coeff, ranks = sp.factor_terms(sp.together(share)).as_coeff_Mul()
            groups.setdefault(ranks, []).append(coeff * body)
            continue
        for coeff, ranks in pairs:
            groups.setdefault(ranks, []).append(coeff * body)
    return [(ranks, sp.Add(*terms)) for ranks, terms in groups.items()]


def _order(pair: tuple[Expr, Expr]) -> tuple[object, ...]:
    ranks, total = pair
    below = sp.fraction(ranks)[1]
    return _falls(total), -max(map(_degree, sp.Add.make_args(total))), sp.count_ops(below), str(below), str(ranks)


def _degree(term: Expr) -> int:
    return sum(int(power) for base, power in term.as_powers_dict().items() if base.is_Symbol)


def _of_ranks(base: Expr, own: set[str]) -> bool:
    names = {size.name for size in base.free_symbols}
    return bool(names) and not names & own


def in_terms_of_n(expr: Expr, answer: Answer) -> str:
    """A formula as a multiple of N, the parameters, and what is left, if that is shorter."""
    plain = text(answer.terms(expr))
    whole = answer.formulas["params.total"]
    if "N" in answer.ledger.graph.symbols or not whole.free_symbols:
        return plain
    main = max(sp.Add.make_args(whole), key=lambda part: (answer.weight(part), str(part)))
    coeff, body = main.as_coeff_Mul()
    parts = (part.as_coeff_Mul() for part in sp.Add.make_args(expr))
    times = sp.floor(next((mine for mine, other in parts if other == body), sp.Integer(0)) / coeff)
    if times < 1:
        return plain
    short = f"{f'{times}·' if times != 1 else ''}N{added(sp.expand(expr - times * whole), answer)}"
    return short if len(short) < len(plain) else plain


def added(rest: Expr, answer: Answer) -> str:
    """A formula as it stands behind another, its sign before it; nothing for 0."""
    if rest == 0:
        return ""
    if _falls(rest):
        return f" - {bracketed(text(answer.terms(sp.expand(-rest))))}"
    more = text(answer.terms(rest))
    return f" - {more[1:]}" if more.startswith("-") else f" + {more}"


def _falls(expr: Expr) -> bool:
    """Whether every term has a minus."""
    return all(part.as_coeff_Mul()[0].is_negative for part in sp.Add.make_args(expr))


def bracketed(formula: str) -> str:
    """A sum in brackets, anything else as it is."""
    depth, inner = 0, False
    for at, character in enumerate(formula):
        depth += (character in "(⌊⌈") - (character in ")⌋⌉")
        inner = inner or bool(depth == 0 and formula[at : at + 3] in (" + ", " - "))
    return f"({formula})" if inner else formula


def limit_name(answer: Answer) -> str:
    """The letter for the card's memory: M, or one that the model leaves free."""
    return "M" if "M" not in answer.ledger.graph.symbols else "M_card"


def closed(inverse: Inverse, answer: Answer, limit: int) -> Iterator[str]:
    """`B ≤ (M - c)/b`, or the root of a quadratic with its coefficients; then what M is."""
    name, letter = inverse.size.name, limit_name(answer)
    moves = inverse.size in answer.formulas["params.total"].free_symbols  # N would hide the size that is solved for
    spell = plainly if moves else in_terms_of_n
    if inverse.a == 0:
        room = f"({letter} - {bracketed(written(inverse.c, answer, spell))})" if inverse.c != 0 else letter
        under = _factor(inverse.b, inverse.size, 1, answer, spell)
        yield f"{name} ≤ {room}/{under if under.isalnum() else f'({under})'}"
    else:
        yield f"{name} ≤ (√(b² + 4·a·({letter} - c)) - b)/(2·a)"
        for key, part, power in (("a", inverse.a, 2), ("b", inverse.b, 1)):
            yield f"{key} = {_factor(part, inverse.size, power, answer, spell)}"
        yield f"c = {written(inverse.c, answer, spell)}"
    yield f"{letter} = {grouped(limit)} B"


def plainly(expr: Expr, answer: Answer) -> str:
    """A formula in the model's own sizes."""
    return text(answer.terms(expr))


def _factor(expr: Expr, size: sp.Symbol, power: int, answer: Answer, otherwise: Spell) -> str:
    """What a power of a size is multiplied by, collected as the product of both would be."""

    def spell(part: Expr, answer: Answer) -> str:
        terms = answer.terms(sp.expand(part * size**power))
        if any((size, power) not in term.factors for term in terms) or len(terms) > 1:
            return otherwise(part, answer)
        bare = (replace(term, factors=tuple(f for f in term.factors if f != (size, power))) for term in terms)
        return text(bare)

    return written(expr, answer, spell)
