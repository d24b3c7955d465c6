"""Which places of a model a wrong formula speaks of: its wrong terms matched with the ledger's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import sympy as sp
from sympy import Expr

from symacct.claims.parts import Part
from symacct.claims.verdict import Term
from symacct.report.readable import shown

Held = tuple[Part, Expr]  # a part, and its number of a monomial
_MOST_PAIRS = 40
_NEAR = 2  # in how many powers a term may differ from one that the model has


def coefficients(expr: Expr) -> dict[Expr, Expr]:
    """The rational coefficient of each monomial."""
    found: dict[Expr, Expr] = {}
    for part in sp.Add.make_args(sp.expand(expr)):
        number, body = part.as_coeff_Mul()
        if part != 0:
            found[body] = found.get(body, sp.Integer(0)) + number
    return found


@dataclass(frozen=True)
class Attribution:
    """The derived formula, the claim, the parts of the derived one, and what the claim's N adds.

    `like` gives what a monomial is taken for, if asked with the width of an MLP for the model's.
    """

    derived: dict[Expr, Expr]
    claimed: dict[Expr, Expr]
    parts: Sequence[tuple[Part, dict[Expr, Expr]]]
    counted: Sequence[tuple[Part, dict[Expr, Expr]]] = ()
    like: Callable[[Expr, bool], Expr] = lambda body, wide: body

    def terms(self) -> tuple[Term, ...]:
        """Every monomial in which the two differ, with the places that fit, larger degrees first."""
        bodies = [b for b in {**self.derived, **self.claimed} if self._left(b) != 0]
        swapped, scaled = self._swaps(bodies), self._scaled(bodies)
        made: list[Term] = []
        for body in sorted(bodies, key=lambda b: (-_degree(b), str(b))):
            made += self._in_proportion(body) if body in scaled else self._attributed(body, swapped.get(body))
        return tuple(made)

    def _scaled(self, bodies: Iterable[Expr]) -> set[Expr]:
        """Terms that are wrong by one factor, two or more: all places of theirs are, in proportion."""
        told = {body for _, terms in self.counted for body in terms}
        by: dict[Expr, set[Expr]] = {}
        for body in bodies:
            mine = self.derived.get(body, sp.Integer(0))
            whole = sum((number for _, number in self._holding(body)), sp.Integer(0))
            if body in self.claimed and body not in told and mine != 0 and whole == mine:
                by.setdefault(self._left(body) / mine, set()).add(body)
        return {body for alike in by.values() if len(alike) > 1 for body in alike}

    def _alike(self, body: Expr, alternatives: Sequence[Sequence[Held]]) -> bool:
        """Whether no place of a term fits what it is off by, but all of them do in proportion."""
        holding = self._holding(body)
        whole = sum((number for _, number in holding), sp.Integer(0))
        rest = len(holding) > 1 and [list(way) for way in alternatives] == [holding]
        return rest and whole == self.derived.get(body) and whole != abs(self._left(body))

    def _in_proportion(self, body: Expr) -> list[Term]:
        factor = self._left(body) / self.derived[body]
        return [
            Term(factor * number * body, "wrong", p.module, p.op, p.where, p.meaning)
            for p, number in self._holding(body)
        ]

    def _left(self, body: Expr) -> Expr:
        return self.derived.get(body, sp.Integer(0)) - self.claimed.get(body, sp.Integer(0))

    def _swaps(self, bodies: Iterable[Expr]) -> dict[Expr, Expr]:
        """What was left out, with what stands in its place: as many of a term nearly the same."""
        missing = [b for b in bodies if self._left(b) > 0]
        told = {body for _, terms in self.counted for body in terms}  # by what the claim's N counts
        extra = [b for b in bodies if self._left(b) < 0 and b not in told]
        found: dict[Expr, Expr] = {}
        pairs = [(self._apart(m, e), str(m), m, e) for m in missing for e in extra]
        for distance, _, one, other in sorted(pairs, key=lambda p: p[:2]):
            near = distance <= min(_NEAR, _shared(one, other)) and (
                distance <= 1 or _degree(one) == _degree(other)
            )
            if near and one not in found and other not in found and self._left(one) == -self._left(other):
                found[one], found[other] = other, one
        return found

    def _apart(self, one: Expr, other: Expr) -> Expr:
        """By how many powers two terms differ, none where a usual relation takes one for the other."""
        alike = self.like(one, False) == self.like(other, False)
        return sp.Integer(0) if alike else _distance(one, other)

    def _attributed(self, body: Expr, instead: Expr | None) -> list[Term]:
        left = self._left(body)
        kind = (
            "missing"
            if left > 0 and body not in self.claimed
            else "extra"
            if body not in self.derived
            else "wrong"
        )
        if instead is not None and left < 0 and self._holding(instead):
            return []  # told with the term in whose place it stands
        holding = self._holding(body)
        added = [(part, terms[body]) for part, terms in self.counted if body in terms] if left < 0 else []
        if added:  # where all that N adds is the difference, no part of it is one counted twice
            exact = sum(number for _, number in added) == -left
            ways = [added] if exact else _fitting(left, added)
            return [
                Term(_share(left, n, len(added)) * body, kind, p.module, p.op, p.where, p.meaning)
                for p, n in dict.fromkeys(member for way in ways for member in way)
            ]
        notes: dict[Part, str] = {}
        if instead is not None and left > 0:
            notes = {part: f"the claim has {_spelled(left, instead)} here; " for part, _ in holding}
        elif not holding:
            taken = "the claim subtracts it; " if left > 0 else ""
            near = self._nearest(body, abs(left))
            holding = [(part, number) for part, _, number in near]
            notes = {
                part: f"{taken}the model has {_spelled(sp.S.One, other)} here; " for part, other, _ in near
            }
        alternatives = _fitting(left, holding)
        if body in self.claimed and self._alike(body, alternatives):
            return self._in_proportion(body)
        chosen = list(dict.fromkeys(member for way in alternatives for member in way))
        whole = chosen in _by_op(holding) or all(number == abs(left) for _, number in chosen)
        if len(self.derived) == 1 and body.is_number and not whole:
            chosen = []  # of all sizes known: any place fits
        if not chosen:
            return [Term(left * body, kind, "", "", "", "no place of the model costs this")]
        open_ = len(chosen) > 1 and self._alternatives(left, chosen)
        return [
            Term(
                _share(left, number, len(chosen)) * body,
                kind,
                p.module,
                p.op,
                p.where,
                f"{_one_of(p, alternatives) if open_ else ''}{notes.get(p, '')}{p.meaning}",
            )
            for p, number in chosen
        ]

    def _holding(self, body: Expr) -> list[Held]:
        return [(part, terms[body]) for part, terms in self.parts if body in terms]

    def _alternatives(self, left: Expr, chosen: Sequence[Held]) -> bool:
        return abs(sum(number for _, number in chosen)) != abs(left)

    def _nearest(self, body: Expr, left: Expr) -> list[tuple[Part, Expr, Expr]]:
        """The parts whose terms differ least from a term that the model does not have, and those terms.

        First what gives as many values, as a bias would; then what a usual relation takes for it, then what
        has its rarest sizes, then all of them, then what is wrong itself. None if it has a size of no part.
        """
        every = [(p, other, number) for p, terms in self.parts for other, number in terms.items()]
        wide_as = [
            row for row in every if row[0].made.as_coeff_Mul()[1] == body and _distance(body, row[1]) == 1
        ]
        if wide_as and self._left(body) < 0:
            return wide_as
        for wide in (False, True):
            alike = [row for row in every if self.like(row[1], wide) == self.like(body, False)]
            if alike and (wide or sum(number for _, _, number in alike) >= left):
                return alike
        holders = {s: sum(s in part.sizes for part, _ in self.parts) for s in body.free_symbols}
        rare = {s for s, many in holders.items() if many == min(holders.values())}
        if 0 in holders.values() and len({part.module for part, _ in self.parts}) > 1:
            return []
        alone = not rare or 0 in holders.values()  # one module is the place of all, as a cache is
        every = [row for row in every if _distance(body, row[1]) <= _NEAR and (alone or rare & row[0].sizes)]
        if not every:
            return []
        ranks = [
            (
                len(rare - part.sizes),
                len(body.free_symbols - part.sizes),
                _distance(body, other),
                _lacking(body, other),
                self._left(other) == 0,
            )
            for part, other, _ in every
        ]
        found = {row[0]: row for row, rank in zip(every, ranks, strict=True) if rank == min(ranks)}
        return list(found.values())


def _fitting(left: Expr, holding: Sequence[Held]) -> list[list[Held]]:
    """The ways in which parts may account for the difference: whole, alone or together; in part; in pairs.

    Of what is missing, a place can lack no more than it costs; what is too much may be a place counted twice.
    A place is a part, a module, or modules of one name but for a number, as `ln1` and `ln2`.
    """
    ways = [lambda n: n == left, lambda n: n == 2 * left, lambda n: n > left]
    if left < 0:
        ways = [lambda n: n == -left, lambda n: 2 * n == -left, lambda n: n == -2 * left]
    for fits in ways:
        alone = [[(p, n)] for p, n in holding if fits(n)]
        if fits is not ways[0]:
            if alone:
                return alone
            continue
        together = [group for group in _groups(holding, left > 0) if fits(sum(n for _, n in group))]
        if alone or together:
            return alone + together
        of_one_op = [group for group in _by_op(holding) if fits(sum(n for _, n in group))]
        if of_one_op:
            return of_one_op[:1]
    if len(holding) <= _MOST_PAIRS:
        pairs = [list(pair) for pair in combinations(holding, 2) if pair[0][1] + pair[1][1] == abs(left)]
        if pairs:
            return pairs
    return [list(holding)]


def _one_of(part: Part, alternatives: Sequence[Sequence[Held]]) -> str:
    """That a place is one of several that fit, and with which others only together."""
    mine = [[p for p, _ in way] for way in alternatives if part in (p for p, _ in way)]
    if len(mine) != 1 or len(mine[0]) == 1 or len(alternatives) == 1:
        return "one of these: "
    others = dict.fromkeys(p.module for p in mine[0] if p.module != part.module) or [part.module]
    return f"one of these, together with {', '.join(others)}: "


def _groups(holding: Sequence[Held], nested: bool) -> list[list[Held]]:
    """The parts of each module, and of modules that only numbers tell apart, two parts or more.

    `nested`: with those of modules inside it, as is left out together but hardly counted twice.
    """
    found: dict[str, list[Held]] = {}
    for part, number in holding:
        alike = re.sub(r"[0-9]+", "#", part.module)
        path = part.module.split(".")
        around = (".".join(path[:end]) for end in range(len(path), 0 if nested else len(path) - 1, -1))
        for name in dict.fromkeys((*around, part.module.rstrip("0123456789"), alike)):
            found.setdefault(name, []).append((part, number))
    sizes: dict[tuple[Part, ...], list[Held]] = {}
    for group in found.values():
        if len(group) > 1:
            sizes.setdefault(tuple(part for part, _ in group), group)
    return list(sizes.values())


def _by_op(holding: Sequence[Held]) -> list[list[Held]]:
    """The parts of each op that several places run: a counter that does not know it misses all of them."""
    found: dict[str, list[Held]] = {}
    for part, number in holding:
        found.setdefault(part.op, []).append((part, number))
    return [group for op, group in found.items() if op.startswith("aten.") and len(group) > 1]


def _share(left: Expr, number: Expr, many: int) -> Expr:
    """What of the difference one place accounts for."""
    return left if many == 1 or abs(number) >= abs(left) else abs(number) * sp.sign(left)


def _distance(one: Expr, other: Expr) -> Expr:
    """By how many powers two monomials differ; a factor put for another counts once."""
    mine, its = one.as_powers_dict(), other.as_powers_dict()
    gaps = [mine.get(b, 0) - its.get(b, 0) for b in {**mine, **its} if b.free_symbols]
    return max(sum(g for g in gaps if g > 0), -sum(g for g in gaps if g < 0))


def _lacking(body: Expr, other: Expr) -> Expr:
    """How many powers of a monomial another one does not have."""
    its = other.as_powers_dict()
    return sum(max(power - its.get(b, 0), 0) for b, power in body.as_powers_dict().items() if b.free_symbols)


def _shared(one: Expr, other: Expr) -> Expr:
    """The degree of what two monomials have in common."""
    mine, its = one.as_powers_dict(), other.as_powers_dict()
    return sum(min(power, its[base]) for base, power in mine.items() if base.free_symbols and base in its)


def _degree(body: Expr) -> Expr:
    return sum(power for base, power in body.as_powers_dict().items() if base.free_symbols)


def _spelled(number: Expr, body: Expr) -> str:
    return shown(abs(number) * body)
