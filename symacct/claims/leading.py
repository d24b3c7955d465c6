"""The leading order: regimes in which sizes grow, and where a claim's relative error stays below a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import sympy as sp
from sympy import Expr

from symacct.claims.attribution import coefficients
from symacct.claims.names import size_of
from symacct.claims.witness import ratio_hint
from symacct.domination import undominated
from symacct.errors import SizeError
from symacct.expressions import canonical, parse
from symacct.graph import Graph
from symacct.report.orders import ORDER
from symacct.report.readable import reading_of, shown
from symacct.symbols import symbol

BOUNDS = (1, 5, 10)
_ROUNDS, _LONG = 32, 50
_LARGEST = 20  # powers of 2 tried as a size from which on a condition holds


@dataclass(frozen=True)
class Regime:
    """Sizes that grow, each as that power of a common scale; the others stay. `text` says it in words.

    `orders` are the pairs (small, large) that ask for it.
    """

    weights: Mapping[sp.Symbol, int]
    text: str
    orders: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def growing(self) -> str:
        """Which sizes grow, and how fast where not alike: `d → ∞`, `L → ∞ as t, d → ∞ as t^2`."""
        grown = sorted(((s.name, w) for s, w in self.weights.items() if w), key=lambda pair: pair[::-1])
        if len({w for _, w in grown}) == 1:
            return f"{', '.join(name for name, _ in grown)} → ∞" + " alike" * (len(grown) > 1)
        return ", ".join(f"{name} → ∞ as t" + f"^{w}" * (w > 1) for name, w in grown)

    def weight(self, body: Expr) -> Expr:
        """The power of the scale by which a monomial grows; a rounded quotient grows like the quotient."""
        total = sp.Integer(0)
        for base, power in body.as_powers_dict().items():
            if base.is_Symbol:
                total += power * self.weights.get(base, 0)
            elif base.free_symbols:
                total += power * max(
                    self.weight(b) for b in coefficients(base.args[0] if base.is_Function else base)
                )
        return total

    def top(self, expr: Expr) -> tuple[Expr, Expr]:
        """The largest weight of a term, and the sum of the terms that have it."""
        weighed: dict[Expr, list[Expr]] = {}
        for body, number in coefficients(expr).items():
            weighed.setdefault(self.weight(body), []).append(number * body)
        most = max(weighed)
        return most, canonical(sp.Add(*weighed[most]))

    def leads(self, derived: Expr, claim: Expr) -> bool:
        """Whether claim / derived tends to 1."""
        if derived == 0 or claim == 0 or any(e.has(sp.Max, sp.Min, sp.Mod) for e in (derived, claim)):
            return False
        (mine, top), (its, other) = self.top(derived), self.top(claim)
        return bool(mine == its and mine > 0 and canonical(top - other) == 0)

    def largest(self, forms: Sequence[Expr]) -> Expr | None:
        """The form that is the largest in this regime, by its leading terms; None where they do not tell."""
        if not forms or any(e == 0 or e.has(sp.Max, sp.Min, sp.Mod) for e in forms):
            return None
        tops = [self.top(form) for form in forms]
        most = max(weight for weight, _ in tops)
        highest = undominated({top for weight, top in tops if weight == most})
        leading = [f for f, (w, top) in zip(forms, tops, strict=True) if w == most and top == highest[0]]
        return leading[0] if len(highest) == 1 and len(leading) == 1 else None


def stated(orders: Sequence[str], graph: Graph, replaced: Mapping[sp.Symbol, Expr]) -> Regime | None:
    """The regime that orders ask for; None without any. Raises SizeError where they contradict each other."""
    pairs = list(dict.fromkeys(_order(text, graph) for text in orders))
    if not pairs:
        return None
    weights: dict[sp.Symbol, int] = {}
    sides = [(small.xreplace(dict(replaced)), large.xreplace(dict(replaced))) for small, large in pairs]
    small_ones = {s for small, _ in sides for s in small.free_symbols}
    for _ in range(_ROUNDS):
        regime = Regime(weights, ", ".join(f"{shown(a)} << {shown(b)}" for a, b in pairs), tuple(sides))
        open_ = [(a, b) for a, b in sides if regime.top(b)[0] <= regime.top(a)[0]]
        if not open_:
            return regime
        for small, large in open_:
            growing = large.free_symbols - small.free_symbols
            if growing & widths_of(graph):
                growing |= widths_of(graph) - small_ones
            weights = weights | {s: weights.get(s, 0) + 1 for s in growing - set(replaced)}
    raise SizeError(f"--given {', '.join(repr(t) for t in orders)}: these orders cannot all hold")


def _order(text: str, graph: Graph) -> tuple[Expr, Expr]:
    found = ORDER.split(text)
    if len(found) != 2 or not all(side.strip() for side in found):
        raise SizeError(f"--given {text!r}: write one order, as in 'T << d'")
    sides = [parse(side, graph.symbols) for side in found]
    mark = ORDER.search(text)
    if mark is not None and mark[0] in (">>", "≫", "\\gg"):
        sides.reverse()
    if sum(len(coefficients(side)) for side in sides) > _LONG:
        raise SizeError(f"--given {text[:40]!r}…: an order of more than {_LONG} terms")
    if not all(side.is_positive for side in sides) or not sides[1].free_symbols:
        raise SizeError(f"--given {text!r}: an order is between positive formulas of sizes, as in 'T << d'")
    return sides[0], sides[1]


def widths_of(graph: Graph) -> set[sp.Symbol]:
    """The sizes of a model that are widths, by their names or meanings."""
    known = {size_of(concept, graph) for concept in ("d", "f")}
    named = {
        symbol(name)
        for name, info in graph.symbols.items()
        if name in known or name.startswith("d_") or "width" in info.meaning or "hidden" in info.meaning
    }
    return named - reading_of(graph).data


def one_token(derived: Expr, claim: Expr, graph: Graph, regimes: Sequence[Regime]) -> str:
    """That a claim of FLOPs is right for one token or one row of the batch; empty where it is not."""
    reading = reading_of(graph)
    if claim == 0 or claim.free_symbols & reading.batch:
        return ""
    for sizes, noun in ((reading.data, "token"), (reading.batch, "row of the batch")):
        times = sp.Mul(*sorted(sizes, key=str))
        whole = canonical(claim * times)
        if canonical(derived - whole) == 0:
            return f"the claim is of one {noun}: {shown(times)} times as much is equal"
        if any(regime.leads(derived, whole) for regime in regimes):
            return f"the claim may be of one {noun}: {shown(times)} times as much is the leading order"
    return ""


def leading_hint(derived: Expr, claim: Expr, key: str, regimes: Sequence[Regime]) -> str:
    """What the ratio of the leading terms says, where it is one that people get wrong."""
    if derived == 0 or claim == 0 or any(e.has(sp.Max, sp.Min, sp.Mod) for e in (derived, claim)):
        return ""
    for regime in regimes:
        (mine, top), (its, other) = regime.top(derived), regime.top(claim)
        hint = ratio_hint(top, other, key) if mine == its else ""
        if ": " in hint:
            return f"to leading order ({regime.text}) {hint}"
    return ""


def regions(derived: Expr, claim: Expr, graph: Graph, numbers: Mapping[sp.Symbol, Expr]) -> tuple[str, ...]:
    """Where |claim - derived| / derived stays below 1, 5 and 10 %, as one condition each."""
    return tuple(
        f"within {bound} % while {text}"
        for bound in BOUNDS
        if (text := _region(derived, claim, bound, graph, numbers))
    )


def _region(derived: Expr, claim: Expr, bound: int, graph: Graph, numbers: Mapping[sp.Symbol, Expr]) -> str:
    off = canonical(derived - claim)
    signs = signs_of(off)
    wanted = []
    for sign in sorted(signs, reverse=True):
        slack = _reduced(canonical(bound * derived - 100 * (off if sign else -off)))
        wanted.append(_positive(slack, graph, numbers))
    return " and ".join(dict.fromkeys(w for w in wanted if w != "always")) or "always"


def greater(one: Expr, other: Expr, graph: Graph, numbers: Mapping[sp.Symbol, Expr]) -> str:
    """Where one expression is the larger, solved for one size where that is plain; "always" or "never"."""
    return _positive(_reduced(canonical(one - other)), graph, numbers)


def signs_of(expr: Expr) -> set[bool]:
    """Which signs the terms have: True for positive ones."""
    return {bool(number > 0) for number in coefficients(expr).values()}


def _reduced(expr: Expr) -> Expr:
    """Without the positive factor that all terms share."""
    content, _ = sp.fraction(sp.together(expr))
    terms = coefficients(content)
    common = sp.gcd_terms(sp.Add(*(n * b for b, n in terms.items())), clear=False)
    factors = [f for f in sp.Mul.make_args(common) if f.is_Add]
    return canonical(sp.Mul(*factors)) if factors else canonical(common)


def _positive(slack: Expr, graph: Graph, numbers: Mapping[sp.Symbol, Expr]) -> str:
    """`slack > 0`, solved for one size where it is linear in it; else told with a size that is enough."""
    signs = signs_of(slack)
    if signs == {True}:
        return "always"
    if signs == {False}:
        return "never"
    reading = reading_of(graph)
    order = [symbol(n) for n in graph.symbols]
    ranked = sorted(
        slack.free_symbols,
        key=lambda s: (s not in reading.data, order.index(s) if s in order else len(order)),
    )
    solved = [told for size in ranked if (told := _solved(slack, size, numbers))]
    if solved:
        return min(solved, key=lambda told: not told[0])[1]
    here = slack.xreplace(dict(numbers))
    said = ["true here" if here > 0 else "false here"] if here.is_Rational else []
    enough = next(filter(None, (_from_a_size_on(slack, size) for size in order)), "")
    said += [enough] if enough else []
    return f"{shown(slack)} > 0" + (f" ({'; '.join(said)})" if said else "")


def _from_a_size_on(slack: Expr, size: sp.Symbol) -> str:
    """A size from which on `slack > 0` whatever the others are, as all its terms are then positive."""
    free = slack.free_symbols
    if size not in free or slack.atoms(sp.Function) or not slack.is_polynomial(*free):
        return ""
    others = sorted(free - {size}, key=str)
    moved = sp.Poly(sp.expand(slack.xreplace({s: 1 + s for s in others})), size, *others)
    rows: dict[tuple[int, ...], dict[int, Expr]] = {}
    for (power, *rest), number in moved.terms():
        rows.setdefault(tuple(rest), {})[power] = number

    def holds(least: int) -> bool:
        shifted = [
            sum(
                number * comb(power, at) * least ** (power - at)
                for power, number in row.items()
                if power >= at
            )
            for row in rows.values()
            for at in range(max(row) + 1)
        ]
        constant = sum(number * least**power for power, number in rows.get((0,) * len(others), {}).items())
        return constant > 0 and min(shifted) >= 0

    least = next((1 << power for power in range(_LARGEST) if holds(1 << power)), 0)
    if not least:
        return ""
    low = least // 2
    while least - low > 1:
        middle = (low + least) // 2
        low, least = (low, middle) if holds(middle) else (middle, least)
    return f"always where {size.name} ≥ {least}"


def _solved(slack: Expr, size: sp.Symbol, numbers: Mapping[sp.Symbol, Expr]) -> tuple[bool, str] | None:
    """`slack > 0` as a bound on one size, and whether that bound is positive whatever the others are."""
    if (
        any(size in f.free_symbols for f in slack.atoms(sp.Function))
        or not slack.is_polynomial(size)
        or sp.degree(slack, size) != 1
    ):
        return None
    slope, rest = canonical(slack.coeff(size, 1)), canonical(slack.coeff(size, 0))
    sign, rests = _sign(slope), signs_of(rest)
    if sign == 0 or (len(rests) == 1 and (sign > 0) in rests):
        return None
    limit = sp.cancel(-rest / slope)
    over, under = sp.fraction(limit)
    if _sign(under) < 0:
        over, under = sp.expand(-over), sp.expand(-under)
    below = "" if under == 1 else f"/{under}" if under.is_Atom else f"/({shown(under)})"
    text = f"({shown(over)}){below}" if below and sp.expand(over).is_Add else f"{shown(over)}{below}"
    mark = "<" if sign < 0 else ">"
    here = limit.xreplace(dict(numbers))
    said = (
        f" (here {sp.Integer(sp.ceiling(here) if mark == '<' else sp.floor(here))})"
        if numbers and here.is_Rational
        else ""
    )
    ranked = sorted(slack.free_symbols, key=lambda s: (s is not size, s.name))
    enough = next(filter(None, (_from_a_size_on(slack, s) for s in ranked)), "") if len(rests) > 1 else ""
    return len(rests) == 1, f"{size.name} {mark} {text}{said}" + (f" ({enough})" if enough else "")


def _sign(expr: Expr) -> int:
    """1 or -1 where that is an expression's sign for all sizes from 1, 0 where it is not proved."""
    if not expr.is_polynomial(*expr.free_symbols):
        return 0
    moved = coefficients(expr.xreplace({s: 1 + s for s in expr.free_symbols}))
    signs = {bool(number > 0) for number in moved.values()}
    if len(signs) != 1 or sp.Integer(1) not in moved:  # without a constant it is 0 at sizes of 1
        return 0
    return 1 if signs == {True} else -1
