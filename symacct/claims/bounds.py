"""What stated orders such as `T << d` prove of the terms that a claim drops: a bound on its relative error.

`small << large` is read as `small ≤ ε·large` for some ε below 1. A dropped term is a multiple of a kept one
times quotients `small/large` times inverses of sizes, which are at least 1; so it is at most that multiple of
a power of ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

import sympy as sp
from sympy import Expr

from symacct.claims.attribution import coefficients
from symacct.claims.leading import Regime
from symacct.expressions import canonical
from symacct.report.readable import shown
from symacct.symbols import symbol

Order = tuple[Expr, Expr]
_MOST = 3  # as many orders as one dropped term may take
_ORDERS, _TERMS = 6, 200
EPSILON = symbol("ε")


def proved(
    derived: Expr, claim: Expr, kept: Expr, orders: Sequence[Order], numbers: Mapping[sp.Symbol, Expr]
) -> str:
    """The bound in words; empty where the orders prove none. `kept` is the leading part of both sides."""
    bound = bounded(derived, claim, kept, orders)
    if bound is None:
        return ""
    meant = " and ".join(f"{shown(small)} ≤ ε·{_factor(large)}" for small, large in orders)
    text = f"the relative error is at most {shown(bound)}, wherever {meant} with ε < 1 (proved)"
    here = [(small / large).xreplace(dict(numbers)) for small, large in orders]
    if not numbers or not all(ratio.is_Rational for ratio in here):
        return text
    most = max(here)
    if most >= 1:
        return f"{text}; at the sizes given the orders do not hold: ε = {float(most):.3g}"
    return f"{text}; here ε = {float(most):.3g}"


def bounded(derived: Expr, claim: Expr, kept: Expr, orders: Sequence[Order]) -> Expr | None:
    """A polynomial in ε that |claim - derived| / derived does not exceed where the orders hold."""
    whole, leading = coefficients(derived), coefficients(kept)
    dropped = coefficients(canonical(derived - claim))
    if len(whole) + len(dropped) > _TERMS or any(n < 0 for n in (*whole.values(), *leading.values())):
        return None
    if len(orders) > _ORDERS or any(side.is_Add for order in orders for side in order):
        return None
    total = sp.Integer(0)
    for body, number in dropped.items():
        found = list(_multiples(body, abs(number), leading, orders))
        if not found:
            return None
        most = max(power for power, _ in found)
        total += min(multiple for power, multiple in found if power == most) * EPSILON**most
    return sp.expand(total)


def kept(whole: Expr, orders: Sequence[Order]) -> Expr:
    """A formula without the terms that the orders prove small beside the rest of it."""
    terms = coefficients(whole)
    plain = not any(side.is_Add for order in orders for side in order)
    if not plain or len(terms) > _TERMS or len(orders) > _ORDERS or any(n < 0 for n in terms.values()):
        return whole

    def small(body: Expr, beside: Mapping[Expr, Expr]) -> bool:
        return any(_multiples(body, terms[body], {b: n for b, n in beside.items() if b != body}, orders))

    largest = {body: number for body, number in terms.items() if not small(body, terms)}
    return sp.Add(*(n * body for body, n in terms.items() if body in largest or not small(body, largest)))


def lacking(derived: Expr, claim: Expr, kept: Expr, orders: Sequence[Order]) -> tuple[Order, ...]:
    """Orders that a bound takes beyond those stated: of each dropped term that they leave unbounded, one."""
    leading, found = coefficients(kept), dict[Order, None]()
    dropped = coefficients(canonical(derived - claim))
    if len(dropped) > _TERMS or len(orders) > _ORDERS:
        return ()
    for body, number in sorted(dropped.items(), key=lambda term: str(term[0])):
        if any(_multiples(body, abs(number), leading, orders)):
            continue
        sides = (sp.fraction((body / other).as_coeff_Mul()[1]) for other in leading)
        found.setdefault(min(sides, key=lambda pair: (sum(map(_factors, pair)), str(pair))))
    return tuple(order for order in found if not any(_follows(order, other) for other in found))


def _factors(product: Expr) -> Expr:
    return sum(power for base, power in product.as_powers_dict().items() if base.free_symbols)


def _follows(order: Order, other: Order) -> bool:
    """Whether an order follows from another one, sizes being at least 1."""
    rest = (order[0] / order[1]) / (other[0] / other[1])
    powers = {base: power for base, power in rest.as_powers_dict().items() if base != 1}
    return bool(powers) and all(base.is_Symbol and power < 0 for base, power in powers.items())


def _multiples(
    body: Expr, number: Expr, leading: Mapping[Expr, Expr], orders: Sequence[Order]
) -> Iterator[tuple[int, Expr]]:
    """Powers of ε and multiples of them that a dropped term is at most, of some kept term."""
    quotients = [small / large for small, large in orders]
    taking = [t for many in range(1, _MOST + 1) for t in combinations_with_replacement(quotients, many)]
    for other, most in leading.items():
        for taken in taking:
            rest, factors = (number * body / (most * other * sp.Mul(*taken))).as_coeff_Mul()
            if all(
                base.is_Symbol and power <= 0 for base, power in factors.as_powers_dict().items() if base != 1
            ):
                yield len(taken), rest


def _factor(large: Expr) -> str:
    return shown(large) if not large.is_Add else f"({shown(large)})"


def asked(regime: Regime, derived: Expr, claim: Expr, numbers: Mapping[sp.Symbol, Expr]) -> tuple[str, str]:
    """What the stated orders prove of the error, or which they lack; and the condition in words."""
    most = regime.top(derived)[1]
    bound = proved(derived, claim, most, regime.orders, numbers)
    if bound:
        return bound, regime.text
    more = lacking(derived, claim, most, regime.orders)
    missing = ", ".join(f"{shown(small)} << {shown(large)}" for small, large in more)
    why = f"it takes {missing} as well" if missing else "no bound follows from them"
    return (
        f"{regime.text} alone {'do' if len(regime.orders) > 1 else 'does'} not bound the error: {why}",
        f"{regime.text} with {regime.growing}, the other sizes fixed",
    )
