"""What a person knows of the sizes: relations such as `f = 4*d` and `h | d`, numbers such as `B=8,T=1024`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import sympy as sp

from symacct.domain import Domain
from symacct.errors import SizeError
from symacct.expressions import parse, to_text
from symacct.graph import Assumption
from symacct.symbols import symbol

Expr = sp.Expr


@dataclass(frozen=True)
class Relations:
    """Given relations: what each size is replaced by, what divides what, and the texts of all of them."""

    texts: tuple[str, ...] = ()
    replaced: Mapping[sp.Symbol, Expr] = field(default_factory=dict)
    conditions: tuple[Assumption, ...] = ()

    def apply(self, expr: Expr, domain: Domain) -> Expr:
        """The expression under these relations and the domain's own."""
        if not self.texts:
            return expr
        if isinstance(expr, sp.Max):  # a peak has many forms: sympy would compare each with each
            return sp.Max(*dict.fromkeys(self.apply(form, domain) for form in expr.args), evaluate=False)
        known = Domain(domain.names, (*domain.assumptions, *self.conditions))
        return sp.expand(known.rewrite(expr.xreplace(dict(self.replaced))))

    def completed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes, with those that the relations tell. Raises SizeError where they break one."""
        known = dict(sizes)
        numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
        for name, expr in self.replaced.items():
            if not expr.free_symbols <= set(numbers):
                continue
            told = expr.xreplace(numbers)
            if not told.is_Integer or told < 1:
                raise SizeError(f"{name} = {to_text(expr)} would be {told}: a size is a positive integer")
            if known.setdefault(name.name, int(told)) != told:
                broken = f"{name} = {to_text(expr)} (--given), which is {told} here"
                raise SizeError(f"{name} = {known[name.name]} breaks {broken}")
        full = {symbol(name): sp.Integer(value) for name, value in known.items()}
        for a in self.conditions:
            if (a.left.free_symbols | a.right.free_symbols) <= set(full) and not a.holds(full):
                raise SizeError(f"{_spelled(a, full)} breaks {a.short} (--given)")
        return known


def relations(texts: Iterable[str], names: Collection[str]) -> Relations:
    """Read relations between these sizes. Raises SizeError for one that contradicts those before it."""
    made = Relations()
    for text in texts:
        left, sign, right = text.partition("|")
        if sign:
            made = _dividing(made, parse(left, names), parse(right, names))
            continue
        left, sign, right = text.replace("==", "=").partition("=")
        if not sign or "=" in right:
            raise SizeError(
                f"--given {text!r}: write an equality, as in 'f=4*d', or a divisibility, as in 'h | d'"
            )
        made = _equal(made, parse(left, names), parse(right, names))
    return made


def _dividing(known: Relations, divisor: Expr, multiple: Expr) -> Relations:
    text = f"{to_text(divisor)} | {to_text(multiple)}"
    condition = Assumption("divides", multiple, divisor, "--given")
    if divisor.is_Integer and multiple.is_Integer and multiple % divisor:
        raise SizeError(f"--given {text!r} is false")
    return Relations((*known.texts, text), known.replaced, (*known.conditions, condition))


def _equal(known: Relations, left: Expr, right: Expr) -> Relations:
    """One relation more; one that follows from the others changes nothing."""
    text = f"{to_text(left)} = {to_text(right)}"
    left, right = (sp.expand(side.xreplace(dict(known.replaced))) for side in (left, right))
    rest = sp.expand(left - right)
    if rest == 0:
        return Relations((*known.texts, text), known.replaced, known.conditions)
    if _one_sign(rest):
        before = (
            f" contradicts {', '.join(known.texts)}" if known.texts else " cannot hold for positive sizes"
        )
        raise SizeError(f"--given {text!r}{before}: it would need {to_text(left)} = {to_text(right)}")
    name, expr = _solved(text, left, right, rest)
    replaced = {old: sp.expand(value.xreplace({name: expr})) for old, value in known.replaced.items()}
    return Relations((*known.texts, text), {**replaced, name: expr}, known.conditions)


def _solved(text: str, left: Expr, right: Expr, rest: Expr) -> tuple[sp.Symbol, Expr]:
    """The size that the relation tells, and what it is."""
    for name, other in ((left, right), (right, left)):
        if name.is_Symbol and name not in other.free_symbols:
            return name, other
    found = []
    for name in sorted(rest.free_symbols, key=str):
        factor = rest.coeff(name, 1)
        told = (
            sp.expand(-rest.xreplace({name: sp.Integer(0)}) / factor)
            if factor.is_Rational and factor
            else None
        )
        if (
            told is not None
            and name not in told.free_symbols
            and sp.expand(rest - factor * (name - told)) == 0
        ):
            found.append((name, told))
    if not found:
        raise SizeError(f"--given {text!r}: no size can be read off it; write it as name = formula")
    return min(found, key=lambda pair: (sp.fraction(sp.together(pair[1]))[1] != 1, pair[0].name))


def _one_sign(rest: Expr) -> bool:
    """Whether a difference of positive sizes is never 0, because all its terms have one sign."""
    signs = {part.as_coeff_Mul()[0].is_positive for part in sp.Add.make_args(rest)}
    return len(signs) == 1


def numbers(texts: Iterable[str]) -> dict[str, int]:
    """Read `B=8,T=1024`. Raises SizeError for what is no such list, and for a size given twice."""
    found: dict[str, int] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, sign, digits = (word.strip() for word in part.partition("="))
        try:
            value = int(digits)
        except ValueError:
            value = None
        if not name or not sign or value is None:
            raise SizeError(f"--at {part!r}: write whole numbers by name, as in --at B=8,T=1024")
        if found.setdefault(name, value) != value:
            raise SizeError(f"--at gives {name} twice, as {found[name]} and as {value}")
        if value < 1:
            raise SizeError(f"{name} = {value}: a size is a positive integer")
    return found


def _spelled(a: Assumption, numbers: Mapping[sp.Symbol, sp.Integer]) -> str:
    sizes = sorted(a.left.free_symbols | a.right.free_symbols, key=str)
    return ", ".join(f"{size} = {numbers[size]}" for size in sizes)
