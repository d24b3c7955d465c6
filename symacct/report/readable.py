"""Formulas as a person writes them, only for display: collected by meaning, middle dots, raised digits.

    2·B·T·(V·d + 12·L·d²) + 4·B·L·T²·d

Terms of one power of the batch and the data's sizes stand together, in them those of one power of the depth.
The order depends on names and powers alone. `value` gives back the expression that was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, lcm

import sympy as sp
from sympy import Expr

from symacct.graph import Graph, Tensor
from symacct.symbols import GLOSSARY, symbol

Factors = tuple[tuple[Expr, int], ...]
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_RANK = {name: rank for rank, name in enumerate(GLOSSARY)}


@dataclass(frozen=True, slots=True)
class Term:
    """`number` times the factors times the sum of `inner`; an empty `inner` is no bracket."""

    number: sp.Rational
    factors: Factors
    inner: tuple[Term, ...] = ()

    @property
    def degree(self) -> int:
        """Total power of the factors; a quotient counts its numerator less its denominator."""
        return sum(power for _, power in self.factors)


@dataclass(frozen=True, slots=True)
class Reading:
    """Which sizes lead: `batch`, the `data` sizes of the inputs, the `depth` by which regions repeat."""

    batch: frozenset[sp.Symbol]
    data: frozenset[sp.Symbol]
    depth: frozenset[sp.Symbol]


PLAIN = Reading(
    frozenset({symbol("B")}), frozenset({symbol("B"), symbol("T"), symbol("S")}), frozenset({symbol("L")})
)


def reading_of(graph: Graph) -> Reading:
    """The leading sizes of a graph, read off its inputs' shapes and its loops.

    A width that floating inputs share with parameters, such as an MLP's features, is no size of the data.
    """
    inputs = [out for place in graph.sources("input") for out in place.node.outputs if out.shape]
    batch = {out.shape[0] for out in inputs if out.shape[0].is_Symbol} or set(PLAIN.batch)
    widths = _sizes(out for place in graph.sources("parameter") for out in place.node.outputs)
    data = _sizes(out for out in inputs if "int" in out.dtype) | (_sizes(inputs) - widths)
    loops = {loop.size: loop for place in graph.placed() for loop in place.loops}
    depth = {size for loop in loops.values() for size in loop.count.free_symbols} - data
    return Reading(frozenset(batch), frozenset(data | batch), frozenset(depth or PLAIN.depth - data))


def _sizes(tensors: Iterable[Tensor]) -> set[sp.Symbol]:
    return {size for tensor in tensors for dim in tensor.shape for size in dim.free_symbols}


def readable(expr: Expr, reading: Reading = PLAIN) -> tuple[Term, ...]:
    """The terms of an expression, collected. `floor((x - 1)/n)` reads `⌈x/n⌉ - 1`, which is the same."""
    groups: dict[Factors, list[Term]] = {}
    for part in sp.Add.make_args(sp.expand(_with_ceilings(expr))):
        term = _monomial(part)
        groups.setdefault(_data_factors(term, reading), []).append(term)
    order = sorted(groups, key=lambda key: (not key, sum(p for _, p in key), _names(key)))
    return tuple(made for key in order for made in _collected(key, groups[key], reading))


def value(terms: Iterable[Term]) -> Expr:
    """The expression that the terms stand for."""
    return sp.expand(sp.Add(*(_value(term) for term in terms)))


def text(terms: Iterable[Term]) -> str:
    """The terms in one line."""
    return " ".join(pieces(terms))


def shown(expr: Expr, reading: Reading = PLAIN) -> str:
    """An expression in one line."""
    return text(readable(expr, reading))


def pieces(terms: Iterable[Term]) -> list[str]:
    """The terms as texts of their own, each but the first with its sign before it."""
    found = []
    for at, term in enumerate(terms):
        plain = _term(replace(term, number=abs(term.number)))
        sign = "-" if term.number < 0 else "+"
        found.append(f"{sign} {plain}" if at else plain if sign == "+" else f"-{plain}")
    return found or ["0"]


# Collecting


def _with_ceilings(expr: Expr) -> Expr:
    """With each floor of a quotient just below an integer as a ceiling: products of those collect."""
    return expr.replace(lambda e: isinstance(e, sp.floor), _ceiling) if expr.has(sp.floor) else expr


def _ceiling(floor: Expr) -> Expr:
    over, under = sp.fraction(sp.together(floor.args[0]))
    constant, rest = sp.expand(over).as_coeff_Add()
    whole = all(part.as_coeff_Mul()[0].is_Integer for part in sp.Add.make_args(rest)) and rest.is_integer
    if not (under.is_Integer and constant.is_Integer and whole) or (constant + 1) % under:
        return floor
    return sp.ceiling(rest / under) + (constant + 1) / under - 1


def _monomial(part: Expr) -> Term:
    number, body = part.as_coeff_Mul()
    if not number.is_Rational:
        number, body = sp.Integer(1), part
    powers: dict[Expr, int] = {}
    for factor in sp.Mul.make_args(body):
        base, power = factor.as_base_exp()
        if not power.is_Integer:
            base, power = factor, sp.Integer(1)
        if base != 1:
            powers[base] = powers.get(base, 0) + int(power)
    return Term(number, _sorted(powers.items()))


def _data_factors(term: Term, reading: Reading) -> Factors:
    """The factors by the data's sizes, if the batch is among them."""
    if not any(base in reading.batch for base, _ in term.factors):
        return ()
    return tuple(
        (base, power) for base, power in term.factors if power > 0 and _speaks_of(base, reading.data)
    )


def _speaks_of(base: Expr, sizes: frozenset[sp.Symbol]) -> bool:
    return bool(base.free_symbols) and base.free_symbols <= sizes


def _collected(key: Factors, members: list[Term], reading: Reading) -> list[Term]:
    """One product by `key` of the members' rest, or the members themselves when they share nothing."""
    inner = _by_depth([_without(term, key) for term in members], reading)
    if len(inner) == 1:
        only = inner[0]
        common = _content(only.inner) if only.inner else sp.Integer(1)
        rest = tuple(_divided(term, common) for term in only.inner)
        return [Term(only.number * common, _sorted((*key, *only.factors)), rest)]
    common = _content(inner)
    if not key and common == 1:
        return inner
    return [Term(common, key, tuple(_divided(term, common) for term in inner))]


def _by_depth(terms: list[Term], reading: Reading) -> list[Term]:
    groups: dict[Factors, list[Term]] = {}
    for term in terms:
        key = tuple((base, power) for base, power in term.factors if power > 0 and base in reading.depth)
        groups.setdefault(key, []).append(term)
    made: list[tuple[bool, Term]] = []
    for key, members in groups.items():
        if key and len(members) > 1:
            inner = sorted((_without(term, key) for term in members), key=_by_degree)
            made.append((True, Term(sp.Integer(1), key, tuple(inner))))
        else:
            made += [(bool(key), term) for term in members]
    return [term for _, term in sorted(made, key=lambda pair: _by_meaning(*pair))]


def _by_meaning(deep: bool, term: Term) -> tuple[object, ...]:
    """Tables (V·d, T·d) first, then what the depth repeats, then the rest."""
    table = any(base.is_Symbol and base.name[0].isupper() for base, _ in term.factors)
    degree = -term.degree - max((t.degree for t in term.inner), default=0)
    return (1 if deep else 0 if table else 2, degree if deep or not table else 0, _names(term.factors))


def _by_degree(term: Term) -> tuple[object, ...]:
    return (-term.degree, _names(term.factors))


def _content(terms: Iterable[Term]) -> sp.Rational:
    """The greatest number that divides every term, of a bracket its inner terms."""
    numbers = [n for term in terms for n in ([term.number * t.number for t in term.inner] or [term.number])]
    whole = gcd(*(int(n.p) for n in numbers))
    return sp.Rational(whole or 1, lcm(*(int(n.q) for n in numbers)))


def _divided(term: Term, number: sp.Rational) -> Term:
    if not term.inner:
        return replace(term, number=term.number / number)
    return replace(term, inner=tuple(_divided(t, number) for t in term.inner))


def _without(term: Term, key: Factors) -> Term:
    taken = dict(key)
    left = tuple((base, power - taken.get(base, 0)) for base, power in term.factors)
    return replace(term, factors=tuple((base, power) for base, power in left if power))


def _sorted(factors: Iterable[tuple[Expr, int]]) -> Factors:
    return tuple(sorted(factors, key=lambda pair: _name(pair[0])))


def _names(factors: Factors) -> tuple[object, ...]:
    """Names and powers for comparison: higher powers of an earlier name come first, then longer products."""
    return (*((*_place(base), -power) for base, power in factors), (len(_RANK) + 1,))


def _place(base: Expr) -> tuple[int, str]:
    name = str(base)
    return (-1 if name == "V" else _RANK.get(name, len(_RANK))), name


def _name(base: Expr) -> tuple[object, ...]:
    """Capitals by alphabet, then small letters as the glossary has them, then everything else."""
    name = str(base)
    if not base.is_Symbol:
        return (2, 0, name)
    return (0, 0, name) if name[0].isupper() else (1, _RANK.get(name, len(_RANK)), name)


def _value(term: Term) -> Expr:
    bracket = value(term.inner) if term.inner else sp.Integer(1)
    return term.number * sp.Mul(*(base**power for base, power in term.factors)) * bracket


# Writing


def _term(term: Term) -> str:
    over = [_power(base, power) for base, power in term.factors if power > 0]
    under = [_power(base, -power) for base, power in term.factors if power < 0]
    if term.inner:
        over.append(f"({text(term.inner)})")
    if term.number.p != 1 or not over:
        over.insert(0, str(term.number.p))
    if term.number.q != 1:
        under.insert(0, str(term.number.q))
    above = "·".join(over)
    if not under:
        return above
    return f"{above}/{under[0]}" if len(under) == 1 else f"{above}/({'·'.join(under)})"


def _power(base: Expr, power: int) -> str:
    return _atom(base) + (str(power).translate(_RAISED) if power != 1 else "")


def _atom(base: Expr) -> str:
    if base.is_Symbol:
        return str(base.name)
    brackets = {sp.floor: "⌊⌋", sp.ceiling: "⌈⌉"}.get(base.func)
    if brackets:
        return brackets[0] + _quotient(base.args[0]) + brackets[1]
    names = {sp.Max: "max", sp.Min: "min", sp.Mod: "mod"}
    if base.func in names:
        args = base.args if base.func is sp.Mod else sorted(base.args, key=str)
        return f"{names[base.func]}({', '.join(map(_quotient, args))})"
    return f"({_quotient(base)})" if base.is_Add else str(base)


def _quotient(expr: Expr) -> str:
    """A sum of fractions over one denominator."""
    over, under = sp.fraction(sp.together(expr))
    above, below = text(readable(over)), text(readable(under))
    if under == 1:
        return above
    above = f"({above})" if sp.expand(over).is_Add else above
    return f"{above}/({below})" if under.is_Mul or under.is_Add else f"{above}/{below}"
