"""The domain of a formula: what a run's guards say of the sizes, reduced to what is really assumed.

ShapeEnv's guards hold the domain among much bookkeeping about strides. Kept are divisibilities, equalities and the
branches that the user's own code took; dropped is what follows from those, and what holds at every sampled point.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

import sympy as sp
from sympy import Expr

from symacct.comparisons import implies, plain
from symacct.errors import TraceError
from symacct.graph import Assumption
from symacct.symbols import symbol

_POINTS = 300
_SMALL, _LARGE = 12, 100_000
_SCALES = (12, 12, 120, _LARGE)
_WIDEN = 100  # misses in a row after which larger sizes are drawn, as of images that are halved five times


@dataclass(frozen=True)
class Domain:
    """A set of sizes: those that meet every assumption."""

    names: tuple[str, ...]
    assumptions: tuple[Assumption, ...] = ()

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether these sizes meet every assumption that they decide."""
        numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
        return all(a.holds(numbers) for a in self.assumptions)

    def generic(self, sizes: Mapping[str, int]) -> bool:
        """Whether no size and no quotient that the domain speaks of is 1, and no two sizes are equal."""
        numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
        quotients = [(a.left / a.right).xreplace(numbers) for a in self.assumptions if a.kind == "divides"]
        return min([*sizes.values(), *quotients]) > 1 and len(set(sizes.values())) == len(sizes)

    def points(self, seed: int, low: int = 2, high: int = 12, fixed: Mapping[str, int] | None = None) -> Iterator[dict[str, int]]:
        """Endless random sizes of the domain, seeded; larger ones where it has none so small. Raises TraceError when
        none can be found."""
        rng = random.Random(seed)
        misses, wider = 0, 1
        while True:
            drawn = {name: rng.randint(low, wider * min(high, rng.choice(_SCALES))) for name in self.names}
            point = self._repaired(drawn | dict(fixed or {}), rng, fixed or {})
            if point is not None:
                misses = 0
                yield point
            elif (misses := misses + 1) > 2000:
                raise TraceError("no sizes meet " + ", ".join(a.text for a in self.assumptions))
            elif misses % _WIDEN == 0:
                wider *= 4

    def _repaired(self, point: dict[str, int], rng: random.Random, fixed: Mapping[str, int]) -> dict[str, int] | None:
        """The point with multiples taken where something must divide; None when that does not settle."""
        for _ in range(8):
            numbers = {symbol(name): sp.Integer(value) for name, value in point.items()}
            broken = [a for a in self.assumptions if not a.holds(numbers)]
            if not broken:
                return point
            repaired = [_repair(a, point, numbers, fixed) for a in broken]  # all, not up to the first
            if not any(repaired):
                return None
        return None

    def integral(self, expr: Expr) -> bool:
        """Whether the rational expression is an integer everywhere in the domain, as far as divisibility tells."""
        for a in self.assumptions:
            if a.kind != "divides":
                continue
            ratio = sp.cancel(expr * a.right / a.left)
            if _integer_polynomial(ratio):
                return True
        return _integer_polynomial(sp.expand(_over_monomials(expr.xreplace(self._quotients()))))

    def _quotients(self) -> dict[sp.Symbol, Expr]:
        """Each size that is a multiple of others as that multiple times a free integer."""
        found: dict[sp.Symbol, Expr] = {}
        for a in self.assumptions:
            if a.kind == "divides" and a.left.is_Symbol and a.left not in found:
                found[a.left] = a.right * symbol(f"{a.left.name}_q")
        return {s: e.xreplace({k: v for k, v in found.items() if k != s}) for s, e in found.items()}

    def rewrite(self, expr: Expr) -> Expr:
        """The expression with `floor(a/b)` as `a/b` where b divides a, and `Max(1, x)` as x."""
        if not isinstance(expr, sp.Basic) or not expr.has(sp.floor, sp.ceiling, sp.Max, sp.Mod):
            return expr
        return expr.replace(lambda e: isinstance(e, (sp.floor, sp.ceiling, sp.Max, sp.Mod)), self._simpler)

    def _simpler(self, e: Expr) -> Expr:
        if isinstance(e, sp.Max):
            rest = [arg for arg in e.args if arg != 1]
            return rest[0] if len(rest) == 1 and len(e.args) == 2 else e
        if isinstance(e, sp.Mod):
            return sp.Integer(0) if self.integral(e.args[0] / e.args[1]) else e
        inner = _over_monomials(e.args[0])
        offset, whole = inner.as_coeff_Add()
        if offset.is_Rational and self.integral(whole):
            return whole + e.func(offset)
        return inner if self.integral(inner) else e


def _over_monomials(expr: Expr) -> Expr:
    """The expression without a sum that cancels in a denominator: `(d + 2·d/h)/(h + 2)` is `d/h`."""
    below = [p for p in expr.atoms(sp.Pow) if p.base.is_Add and p.exp.is_negative]
    return sp.cancel(expr) if below and not expr.has(sp.floor, sp.ceiling, sp.Mod, sp.Max, sp.Min) else expr


def _integer_polynomial(expr: Expr) -> bool:
    if expr.is_integer and expr.is_number:
        return True
    symbols = sorted(expr.free_symbols, key=str)
    if not symbols or expr.has(sp.floor, sp.ceiling, sp.Mod, sp.Max, sp.Min):
        return bool(expr.is_integer) and not symbols
    if not expr.is_polynomial(*symbols):
        return False
    return all(c.is_integer for c in sp.Poly(expr, *symbols).coeffs())


def _repair(a: Assumption, point: dict[str, int], numbers: Mapping[sp.Symbol, sp.Integer], fixed: Mapping[str, int]) -> bool:
    if a.kind == "equal" and a.left.is_Symbol and a.left.name not in fixed:
        point[a.left.name] = int(a.right.xreplace(numbers))
        return point[a.left.name] > 0
    if a.kind != "divides":
        return False
    left, right = a.left.xreplace(numbers), a.right.xreplace(numbers)
    if not (left.is_Integer and right.is_Integer):
        return False
    left, right = int(left), int(right)
    free = sorted((s.name for s in a.left.free_symbols - a.right.free_symbols if s.name not in fixed), key=lambda n: (n != str(a.left), n))
    if not free or right == 0:
        return False
    point[free[0]] *= right // gcd(left, right)
    return True


def domain_of(guards: Iterable[tuple[Expr, str, bool]], merged: Sequence[tuple[sp.Symbol, Expr, str]], names: Sequence[str]) -> Domain:
    """The domain that a run's guards describe: (condition, user's line, whether that line itself asked)."""
    domain = Domain(tuple(names))
    for left, right, line in merged:
        domain = _with(domain, Assumption("equal", left, domain.rewrite(right), line))
    guards = [(g, line, asked) for g, line, asked in guards if isinstance(g, sp.Basic) and g.free_symbols]
    rest = [(kept, line) for guard, line, asked in guards if (kept := _other(guard, asked)) is not None]
    divisible = sorted(((pair, line) for guard, line, _ in guards for pair in _divisibilities(guard)), key=lambda p: (_weight(p[0]), str(p[0])))
    domain = _dividing(domain, _shares(guards))
    domain = _dividing(domain, [(pair, line) for pair, line in divisible if all(side.is_Atom for side in pair)])
    domain = _halvings(domain, rest)
    domain = _halvings(_dividing(domain, divisible), rest)
    for condition, line in rest:
        kept = domain.rewrite(condition)
        if not _always(domain, kept):
            made = _equality(kept, line) if isinstance(kept, sp.Eq) else Assumption("branch", plain(kept), None, line)
            domain = _with(domain, made)
    full = dict(_nonempty(domain, guards))
    for condition, line in tuple(full.items()):
        known = [other for other in full if other != condition] + [a.left for a in domain.assumptions if a.kind == "branch"]
        if any(implies(other, condition) for other in known):
            del full[condition]
        elif not _always(domain, condition):
            domain = _with(domain, Assumption("branch", condition, None, line))
    return _without_implied(domain)


def _nonempty(domain: Domain, guards: Iterable[tuple[Expr, str, bool]]) -> Iterator[tuple[Expr, str]]:
    """What makes a quotient rounded down at least 1 where a tensor is as wide: `4*h <= d` of `d // (4*h)`."""
    for guard, line, _ in guards:
        if isinstance(guard, (sp.Ne, sp.Ge, sp.Gt)) and guard.rhs.is_number:
            for factor in sp.Mul.make_args(domain.rewrite(guard.lhs)):
                if isinstance(factor, sp.floor) and (condition := _reaching(factor, 1)) is not None:
                    yield condition, line


def _reaching(quotient: Expr, least: int) -> Expr | None:
    """The comparison of sizes that says that the rounded quotient is as large; None for none that is plain."""
    offset, scaled = quotient.args[0].as_coeff_Add()
    number, rest = scaled.as_coeff_Mul()
    if isinstance(rest, sp.floor) and number > 0:
        return _reaching(rest, ceil((least - offset) / number))
    over, under = sp.fraction(sp.together(quotient.args[0]))
    plainly = not over.has(sp.floor, sp.ceiling, sp.Mod) and under.is_positive
    return plain(sp.Ge(over, least * under)) if plainly else None


def _equality(condition: sp.Eq, line: str) -> Assumption:
    """The equality without factors that cannot vanish, solved for one size where that is plain: `d_v = d_h + d_r`."""
    if condition.has(sp.floor, sp.ceiling, sp.Mod, sp.Max, sp.Min):
        return Assumption("equal", condition.lhs, condition.rhs, line)
    numerator = sp.fraction(sp.together(condition.lhs - condition.rhs))[0]
    factors = [f for f, _ in sp.factor_list(numerator)[1] if not f.is_positive]
    for factor in factors if len(factors) == 1 else ():
        for size in sorted(factor.free_symbols, key=str, reverse=True):
            coefficient = factor.coeff(size)
            rest = sp.expand(-(factor - coefficient * size) / coefficient) if coefficient in (1, -1) else None
            if rest is not None and size not in rest.free_symbols:
                return Assumption("equal", size, rest, line)
    return Assumption("equal", condition.lhs, condition.rhs, line)


def _shares(guards: list[tuple[Expr, str, bool]]) -> list[tuple[tuple[Expr, Expr], str]]:
    """One size divided among another, `d // h`, as the divisibility that is meant: formulas then need no floor."""
    found: dict[tuple[Expr, Expr], str] = {}
    for guard, line, _ in guards:
        for part in guard.atoms(sp.floor):
            numerator, denominator = sp.fraction(part.args[0])
            if numerator.is_Symbol and denominator.is_Symbol:
                found.setdefault((numerator, denominator), line)
    return sorted(found.items(), key=lambda p: str(p[0]))


def _weight(pair: tuple[Expr, Expr]) -> int:
    return sum(int(side.count_ops()) for side in pair)


def _dividing(domain: Domain, pairs: list[tuple[tuple[Expr, Expr], str]]) -> Domain:
    """The domain with these divisibilities, but for those that follow from what it has."""
    for (left, right), line in pairs:
        left, right = domain.rewrite(left), domain.rewrite(right)
        if not domain.integral(left / right):
            domain = _with(domain, Assumption("divides", left, right, line))
    return domain


def _halvings(domain: Domain, rest: list[tuple[Expr, str]]) -> Domain:
    """Read equalities such as `2·floor(H/2) = H` as the divisibilities that they are, the plainest first."""
    while True:
        open_ = sorted(((domain.rewrite(c), line) for c, line in rest if isinstance(c, sp.Eq)), key=lambda p: (len(str(p[0])), str(p[0])))
        found = next((a for c, line in open_ if isinstance(c, sp.Eq) for a in [_divisibility_in(domain, c, line)] if a is not None), None)
        if found is None:
            return domain
        domain = _with(domain, found)


def _divisibility_in(domain: Domain, condition: sp.Eq, line: str) -> Assumption | None:
    for part in sorted(condition.atoms(sp.floor), key=str):
        numerator, denominator = sp.fraction(sp.together(part.args[0]))
        for dividend in (numerator, numerator.as_coeff_Add()[1], *sorted(numerator.free_symbols, key=str)):
            made = Assumption("divides", dividend, denominator, line)
            if _means(domain, condition, made):
                return made
    return None


def _means(domain: Domain, condition: sp.Eq, made: Assumption) -> bool:
    """Whether, in the domain, the equality holds exactly where the divisibility does, as far as points tell."""
    if made.left.is_number or _with(domain, made) is domain:
        return False
    points = [p for _, p in zip(range(60), domain.points(seed=3), strict=False)]
    numbers = [{symbol(n): sp.Integer(v) for n, v in p.items()} for p in points]
    if not all(made.holds(n) == Assumption("branch", condition, None, "").holds(n) for n in numbers):
        return False
    return any(made.holds(n) for n in numbers) and not all(made.holds(n) for n in numbers)


def _without_implied(domain: Domain) -> Domain:
    """Without divisibilities and comparisons that follow from the others."""
    kept = list(domain.assumptions)
    for a in domain.assumptions:
        others = [b for b in kept if b is not a]
        divides = a.kind == "divides" and Domain(domain.names, tuple(others)).integral(a.left / a.right)
        if divides or (a.kind == "branch" and any(b.kind == "branch" and implies(b.left, a.left) for b in others)):
            kept = others
    return Domain(domain.names, tuple(kept))


def _with(domain: Domain, assumption: Assumption) -> Domain:
    if any(a.text == assumption.text for a in domain.assumptions):
        return domain
    return Domain(domain.names, (*domain.assumptions, assumption))


def _divisibilities(guard: Expr) -> Iterator[tuple[Expr, Expr]]:
    if isinstance(guard, sp.Eq):
        mod, zero = guard.args
        if zero == 0 and isinstance(mod, sp.Mod):
            yield mod.args


def _other(guard: Expr, asked: bool) -> Expr | None:
    """An equality of sizes, or an inequality that the user's own code asked about.

    Dropped: equalities of roots (a number such as a scale was computed from a size; sizes are checked by other runs),
    and `h/h_kv > 1` for a ratio, which is false only where two sizes are one: what is computed stays the same.
    """
    if isinstance(guard, sp.Eq):
        return None if guard.has(sp.Float) or any(not p.exp.is_Integer for p in guard.atoms(sp.Pow)) else guard
    if asked and isinstance(guard, (sp.Lt, sp.Le, sp.Gt, sp.Ge)):
        return None if isinstance(guard, (sp.Gt, sp.Lt)) and guard.lts == 1 and not guard.gts.is_Symbol else guard
    return None


def _always(domain: Domain, condition: Expr) -> bool:
    """Whether the condition is true at every sampled point of the domain."""
    if condition in (sp.true, sp.false):
        return condition is sp.true
    args = [symbol(name) for name in domain.names]
    if condition.free_symbols - set(args):
        return False
    test = sp.lambdify(args, condition, modules=[{"floor": floor, "ceiling": ceil, "Mod": lambda a, b: a % b}, "math"])
    try:
        for high in (_SMALL, _LARGE):
            points = domain.points(seed=7, high=high)
            if not all(test(*(Fraction(point[n]) for n in domain.names)) for _, point in zip(range(_POINTS // 2), points, strict=False)):
                return False
    except (TraceError, ZeroDivisionError, TypeError):
        return False
    return True
