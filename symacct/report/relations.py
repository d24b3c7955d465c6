"""What a person knows of the sizes: relations such as `f = 4*d` and `h | d`, numbers such as `B=8,T=1024`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.comparisons import at_equality, excludes
from symacct.domain import Domain
from symacct.errors import SizeError
from symacct.expressions import parse, to_text
from symacct.graph import Assumption
from symacct.regions import comparison
from symacct.symbols import symbol

Way = tuple[sp.Symbol, Expr]
_HEAD_WIDTHS = ("d_h", "d_head", "head_dim")
_WIDTHS = ("d", "d_model", "n_embd", "hidden_size")
_HEADS = ("h", "n_head", "n_heads", "num_heads", "num_attention_heads")


@dataclass(frozen=True)
class Relations:
    """Given relations: what each size is replaced by, what divides what, and the texts of all of them.

    `ways` are the relations solved for each of their sizes, where that is plain.
    """

    texts: tuple[str, ...] = ()
    replaced: Mapping[sp.Symbol, Expr] = field(default_factory=dict)
    conditions: tuple[Assumption, ...] = ()
    ways: tuple[Way, ...] = ()

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
        for name, expr in (*self.replaced.items(), *self.ways):
            if not expr.free_symbols <= set(numbers):
                continue
            told = expr.xreplace(numbers)
            if not told.is_Integer or told < 1:
                raise SizeError(f"{name} = {to_text(expr)} would be {told}: a size is a positive integer")
            if known.setdefault(name.name, int(told)) != told:
                broken = f"{name} = {to_text(expr)} (--given), which is {told} here"
                raise SizeError(f"{name} = {known[name.name]} breaks {broken}")
            numbers[name] = told
        full = {symbol(name): sp.Integer(value) for name, value in known.items()}
        for a in self.conditions:
            if _symbols(a) <= set(full) and not a.holds(full):
                raise SizeError(f"{_spelled(a, full)} breaks {a.short} (--given)")
        return known


def relations(texts: Iterable[str], names: Collection[str]) -> Relations:
    """Read relations between these sizes. Raises SizeError for one that contradicts those before it.

    Where there is no size for the width of a head, `d_h` is d/h.
    """
    made = Relations()
    heads = _head_width(names)
    words = {*names, *(name.name for name in heads)}
    for text in texts:
        left, sign, right = text.partition("|")
        if sign:
            sides = _read(left, words), _read(right, words)
            made = _dividing(_meaning(made, sides, heads), *(side.xreplace(heads) for side in sides))
            continue
        compared = comparison(text, words)
        if compared is not None:
            made = _compared(_meaning(made, compared.args, heads), compared.xreplace(heads))
            continue
        left, sign, right = text.replace("==", "=").partition("=")
        if not sign and re.search(r"<<|>>|≪|≫", text):
            raise SizeError(f"--given {text!r}: an order is for derive, latex and check alone")
        if not sign or "=" in right:
            raise SizeError(
                f"--given {text!r}: write an equality, as in 'f=4*d', or a divisibility, as in 'h | d'"
            )
        sides = _read(left, words), _read(right, words)
        made = _equal(_meaning(made, sides, heads), *sides, heads)
    return made


def _read(text: str, words: Collection[str]) -> Expr:
    """One side of a relation; `4d` and `4·d` are `4*d` here as in claims."""
    return parse(re.sub(r"(?<![\w.])(\d+)\s*(?=[A-Za-z(])", r"\1*", text.replace("·", "*")), words)


def turned(known: Relations) -> Iterator[Relations]:
    """The same relations with another size told by one of them: `h = d/d_h` in place of `d = h*d_h`."""
    for name, product in known.replaced.items():
        factors = product.as_powers_dict()
        if len(factors) < 2 or not all(size.is_Symbol and power == 1 for size, power in factors.items()):
            continue
        for size in sorted(factors, key=str):
            told = {size: name * size / product}
            others = {n: sp.expand(e.xreplace(told)) for n, e in known.replaced.items() if n != name}
            yield replace(known, replaced={**others, **told})


def agreeing(known: Relations, own: Iterable[Assumption]) -> None:
    """Raises SizeError where the relations contradict what a model assumes of its sizes, or each other."""
    for a in (*own, *known.conditions):
        left, right = (
            side.xreplace(dict(known.replaced)) if isinstance(side, sp.Basic) else sp.Integer(0)
            for side in (a.left, a.right)
        )
        if a.kind == "divides":
            ratio = sp.cancel(left / right)
            below = sp.expand(right - left)
            broken = (ratio.is_Rational and not ratio.is_Integer) or (below != 0 and _signs(below) == {True})
        elif a.kind == "equal":
            rest = sp.expand(left - right)
            broken = rest != 0 and _one_sign(rest)
        else:
            broken = left is sp.false or any(
                excludes(left, b.left) for b in known.conditions if b.kind == "branch"
            )
        if broken:
            where = f" (asked at {a.source})" if a.source and a.source != "--given" else ""
            alike = at_equality(a.left, dict(known.replaced))
            raise SizeError(f"--given {', '.join(known.texts)} contradicts {a.short}{where}{alike}")


def _head_width(names: Collection[str]) -> dict[sp.Symbol, Expr]:
    """What a head's width is where no size is: the model's width over its heads."""
    width, heads = (next((n for n in like if n in names), "") for like in (_WIDTHS, _HEADS))
    if not width or not heads or any(name in names for name in _HEAD_WIDTHS):
        return {}
    return {symbol(name): symbol(width) / symbol(heads) for name in _HEAD_WIDTHS}


def _meaning(known: Relations, sides: Iterable[Expr], heads: Mapping[sp.Symbol, Expr]) -> Relations:
    """With what a head's width is, if the sides speak of it."""
    for name in sorted({s for side in sides for s in side.free_symbols} & set(heads), key=str):
        text = f"{name} = {to_text(heads[name])}"
        width, count = sp.fraction(heads[name])
        condition = Assumption("divides", width, count, "--given")
        if text not in known.texts:
            known = replace(
                known, texts=(*known.texts, text), conditions=(*known.conditions, condition)
            )
    return known


def _dividing(known: Relations, divisor: Expr, multiple: Expr) -> Relations:
    text = f"{to_text(divisor)} | {to_text(multiple)}"
    condition = Assumption("divides", multiple, divisor, "--given")
    if divisor.is_Integer and multiple.is_Integer and multiple % divisor:
        raise SizeError(f"--given {text!r} is false")
    return replace(known, texts=(*known.texts, text), conditions=(*known.conditions, condition))


def _compared(known: Relations, compared: Any) -> Relations:
    compared = compared.xreplace(dict(known.replaced))
    text = str(compared)
    if compared is sp.false:
        raise SizeError(f"--given {', '.join(known.texts)} contradicts a comparison beside it")
    condition = Assumption("branch", compared, None, "--given")
    return replace(known, texts=(*known.texts, text), conditions=(*known.conditions, condition))


def _equal(known: Relations, left: Expr, right: Expr, heads: Mapping[sp.Symbol, Expr]) -> Relations:
    """One relation more; one that follows from the others changes nothing."""
    text = f"{to_text(left)} = {to_text(right)}"
    mine = [side.xreplace(dict(heads)) for side in (left, right)]
    if sp.expand(mine[0] - mine[1]) == 0 and mine != [left, right]:
        return known  # it says what a head's width is
    left, right = (sp.expand(side.xreplace(dict(known.replaced))) for side in mine)
    rest = sp.expand(left - right)
    if rest == 0:
        return replace(known, texts=(*known.texts, text))
    if _one_sign(rest):
        before = (
            f" contradicts {', '.join(known.texts)}" if known.texts else " cannot hold for positive sizes"
        )
        raise SizeError(f"--given {text!r}{before}: it would need {to_text(left)} = {to_text(right)}")
    name, expr = _solved(text, left, right, rest)
    if expr.is_Rational and not expr.is_Integer:
        raise SizeError(f"--given {text!r}: {name} would be {expr}, and a size is a positive integer")
    replaced = {old: sp.expand(value.xreplace({name: expr})) for old, value in known.replaced.items()}
    return Relations(
        (*known.texts, text),
        {**replaced, name: expr},
        known.conditions,
        (*known.ways, *_ways(sp.expand(mine[0] - mine[1]))),
    )


def _ways(rest: Expr) -> list[Way]:
    """An equality of two products, of which `rest` is the difference, solved for each size of power 1."""
    parts = sp.Add.make_args(rest)
    if len(parts) != 2:
        return []
    one = -parts[0] / parts[1]
    powers = sorted(one.as_powers_dict().items(), key=str)
    return [
        (base, (one / base**power) ** -power) for base, power in powers if base.is_Symbol and abs(power) == 1
    ]


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
    found = found or [way for way in _ways(rest) if sp.fraction(way[1])[1].is_Integer]
    if not found:
        raise SizeError(f"--given {text!r}: no size can be read off it; write it as name = formula")
    return min(found, key=lambda pair: (sp.fraction(sp.together(pair[1]))[1] != 1, pair[0].name))


def _one_sign(rest: Expr) -> bool:
    """Whether a difference of positive sizes is never 0, because all its terms have one sign."""
    return len(_signs(rest)) == 1


def _signs(rest: Expr) -> set[bool | None]:
    """The signs of the terms: True for positive ones."""
    return {part.as_coeff_Mul()[0].is_positive for part in sp.Add.make_args(rest)}


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
    sizes = sorted(_symbols(a), key=str)
    return ", ".join(f"{size} = {numbers[size]}" for size in sizes)


def _symbols(a: Assumption) -> set[sp.Symbol]:
    return set(a.left.free_symbols) | (set() if a.right is None else set(a.right.free_symbols))
