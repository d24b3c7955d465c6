"""Numbers against a claim: small sizes at which it is wrong, and what the ratio of the sides hints at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, islice, product
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.claims.cases import Setting, replaced
from symacct.domain import Domain
from symacct.errors import TraceError
from symacct.expressions import UndefinedHere, canonical, evaluate
from symacct.symbols import symbol

_SMALL = (1, 2, 3, 4, 6, 8, 12, 16)
_TRIED = 300
_CORNERS = 600
_FLOPS = {
    Fraction(2): "a multiply-add is 2 FLOPs: was it counted once, or one of two products left out?",
    Fraction(1, 2): "counted twice: a multiply-add is 2 FLOPs, not more",
    Fraction(3): "a step is forward and backward: was only the forward counted?",
    Fraction(1, 3): "was a whole step taken where only the forward is meant?",
    Fraction(3, 2): "forward and backward are 3 times the forward: was only the backward counted?",
    Fraction(2, 3): "the backward is 2 times the forward: was the whole step counted?",
    Fraction(
        3, 4
    ): "4/3 is the forward repeated by checkpointing: only flops.hardware has it, not flops.step",
    Fraction(4, 3): "4/3 is the forward repeated by checkpointing, which flops.hardware has",
}
_BYTES = {
    Fraction(2): "2 bytes an element of 16 bits, or keys and values: was one left out?",
    Fraction(1, 2): "was a byte counted twice, or 16 bits where there are 8?",
    Fraction(4): "4 bytes an element (float32): were elements counted?",
    Fraction(1, 4): "4 bytes an element: were bytes counted where elements are meant?",
    Fraction(8): "8 bits a byte, or two float32 states of AdamW",
    Fraction(1, 8): "8 bits a byte: were bits counted?",
    Fraction(8, 3): "16 bits against 6, as of a quantised cache",
    Fraction(16, 3): "32 bits against 6, as of a quantised cache",
}
_SPEAKS_OF = {  # what a hint about passes is said of; the others fit any FLOPs
    Fraction(3): ("flops.step", "flops.hardware"),
    Fraction(1, 3): ("flops.forward",),
    Fraction(3, 2): ("flops.step", "flops.hardware"),
    Fraction(2, 3): ("flops.backward",),
    Fraction(3, 4): ("flops.step",),
    Fraction(4, 3): ("flops.hardware",),
}
_HINTS = {"flops": _FLOPS, "bytes": _BYTES}
_ROUNDED = 0.05
_MOST_DIVISORS = 4
_PLAIN = 100  # a ratio of larger numbers says nothing


def ratio_hint(derived: Expr, claim: Expr, key: str) -> str:
    """What a constant ratio derived / claim says of a claim about `flops.step`, say; empty if it varies."""
    if derived == 0 or claim == 0 or any(side.has(sp.Max, sp.Min, sp.Mod) for side in (derived, claim)):
        return ""
    if any(len(_divisors(side)) > _MOST_DIVISORS for side in (derived, claim)):
        return ""  # to bring them on one line would multiply all out
    ratio = sp.cancel(derived / claim)
    if not ratio.is_Rational:
        return ""
    number = Fraction(int(ratio.p), int(ratio.q))
    said = _meant(number, key)
    if not said and max(number.numerator, number.denominator) > _PLAIN:
        return ""
    return f"derived = {number} × claim: {said}" if said else f"derived = {number} × claim"


def _divisors(expr: Expr) -> set[Expr]:
    """The different formulas that stand under a fraction's line."""
    return {p.base for p in expr.atoms(sp.Pow) if p.exp.is_negative and p.base.is_Add}


def _meant(number: Fraction, key: str) -> str:
    hints = _HINTS.get(key.partition(".")[0], {})
    if number in hints and key in _SPEAKS_OF.get(number, (key,)):
        return hints[number]
    for power in range(1, 5):
        if number in (Fraction(1024, 1000) ** power, Fraction(1000, 1024) ** power):
            return f"{power} step{'s' * (power > 1)} of 1024 against 1000: binary and decimal units"
    for power in range(1, 19):
        if number in (Fraction(10) ** power, Fraction(1, 10**power)):
            return f"a power of ten (10^{power}): kilo, mega, giga, tera?"
    return ""


def thousands(ratio: sp.Rational) -> str:
    """That a rounded claim is wrong by a power of 10³, from derived / claim; empty if it is not."""
    powers = [p for p in range(-12, 13, 3) if p and abs(float(1 / ratio) / 10.0**p - 1) < _ROUNDED]
    return f": about 10^{powers[0]} times as much: kilo, mega, giga, tera?" if powers else ""


def smallest(
    derived: Expr, claim: Expr, domain: Domain, holds: Callable[[Mapping[str, int]], bool]
) -> tuple[dict[str, int], Any, Any] | None:
    """Sizes of the domain, as small as a short search finds, at which the two differ, and both values.

    They are sizes at which the derived formula `holds`.
    """
    needed = sorted({s.name for side in (derived, claim) for s in side.free_symbols})
    for point in _candidates(domain):
        values = _values(derived, claim, point)
        if values is not None and values[0] != values[1] and holds(point):
            point, values = _lowered(derived, claim, domain, point, values, holds)
            return {
                n: point[n] for n in domain.names if n in point and (n in needed or _spoken(domain, n))
            }, *values
    return None


def _spoken(domain: Domain, name: str) -> bool:
    return any(name in map(str, a.left.free_symbols) for a in domain.assumptions)


def _candidates(domain: Domain) -> Iterator[dict[str, int]]:
    """All sizes alike, then a few of 1 and 2, then random ones."""
    alike = (dict.fromkeys(domain.names, value) for value in _SMALL)
    corners = (
        dict(zip(domain.names, c, strict=True))
        for c in islice(product((1, 2), repeat=len(domain.names)), _CORNERS)
    )
    for point in chain(alike, corners):
        if domain.holds(point := _completed(domain, point)):
            yield point
    try:
        yield from islice(domain.points(seed=11), _TRIED)
    except TraceError:
        return


def _completed(domain: Domain, point: dict[str, int]) -> dict[str, int]:
    """The point with the sizes that equalities of the domain tell."""
    for a in domain.assumptions:
        if a.kind == "equal" and a.left.is_Symbol:
            told = a.right.xreplace({symbol(n): sp.Integer(v) for n, v in point.items()})
            point = point | {a.left.name: int(told)} if told.is_Integer and told > 0 else point
    return point


def _values(derived: Expr, claim: Expr, point: Mapping[str, int]) -> tuple[Any, Any] | None:
    try:
        return evaluate(derived, point), evaluate(claim, point)
    except UndefinedHere:
        return None


def _lowered(
    derived: Expr,
    claim: Expr,
    domain: Domain,
    point: dict[str, int],
    values: tuple[Any, Any],
    holds: Callable[[Mapping[str, int]], bool],
) -> tuple[dict[str, int], tuple[Any, Any]]:
    for name in domain.names:
        for value in range(1, min(point[name], 17)):
            lower = _completed(domain, point | {name: value})
            found = _values(derived, claim, lower) if domain.holds(lower) else None
            if found is not None and found[0] != found[1] and holds(lower):
                point, values = lower, found
                break
    return point, values


def at_sizes(derived: Expr, claim: Expr, numbers: Mapping[sp.Symbol, Expr]) -> tuple[str, ...]:
    """The claim in numbers at the known sizes; nothing where these do not suffice."""
    mine, its = replaced(derived, numbers), replaced(claim, numbers)
    mine, its = (canonical(side) if not side.free_symbols else side for side in (mine, its))
    if not numbers or not (mine.is_Rational and its.is_Rational) or mine == 0:
        return ()
    percent = float(100 * sp.Rational(its - mine) / mine)
    off = f"{percent:+.2f}" if percent == 0 or abs(percent) >= 0.01 else f"{percent:+.1e}"
    told = thousands(mine / its) if its else ""
    return (f"at the sizes given: derived {plain(mine):,}, claim {plain(its):,}, {off} %{told}",)


def elsewhere(setting: Setting) -> list[str]:
    """Usual relations under which a claim would be equal, but which the known sizes do not obey."""
    texts = list(setting.thinkable)
    ways = [*((text,) for text in texts), *combinations(texts, 2), *setting.divided]
    for way in ways:
        if way not in setting.supposable and setting.holds(replace(setting.base, supposed=way)):
            where = " and ".join(way)
            return [f"equal where {where}, which this model does not need: its sizes are free"]
    return []


def plain(number: Any) -> int | str:
    """A value for JSON: an integer, or a fraction as text."""
    return int(number) if Fraction(number).denominator == 1 else str(number)


def quotient(expr: Expr) -> bool:
    """Whether a sum stands below a fraction's line, as in flops.step/flops.forward."""
    return any(p.base.is_Add for p in expr.atoms(sp.Pow) if p.exp.is_negative)
