"""The places that a claim's wrong terms speak of: `terms`."""

from __future__ import annotations

from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.claims.attribution import Attribution, coefficients
from symacct.claims.cases import Case, Setting, likened
from symacct.claims.parts import Part, idle_parts, parts_of, unrepeated_parts
from symacct.claims.verdict import Term

Weighed = list[tuple[Part, dict[Expr, Expr]]]
_MOST = 400
_COUNTS_OF_N = ("params.total", "params.trainable", "params.active")


def terms(setting: Setting, case: Case, proved_in: Case | None = None) -> tuple[Term, ...]:
    """The terms of the difference; of a claim that another reading proves, its own places as well."""
    derived, claim = setting.sides(case)
    mine, its = coefficients(derived), coefficients(claim)
    if len(mine) + len(its) > _MOST or derived.has(sp.Max, sp.Min):
        return ()
    parts, counted = _parts(setting, case), _counted(setting, case)
    if proved_in is not None:
        known = {(part.module, part.where) for part, _ in parts}
        others = _parts(setting, proved_in)
        counted += [(part, found) for part, found in others if (part.module, part.where) not in known]
    return Attribution(mine, its, parts, counted, likened(setting.ledger.graph)).terms()


def _counted(setting: Setting, case: Case) -> Weighed:
    """What the N of the right side counts beyond products, times what it is multiplied with.

    Of hardware FLOPs: what a claim that repeats a block whole counts beyond what is run again.
    """
    claim = setting.claim
    if set(claim.keys.values()) == {"flops.hardware"} and not claim.counts:
        return _spared(setting, case)
    if not any(claim.keys.get(s, "").startswith("flops") for s in claim.left.free_symbols):
        return []
    right = sp.expand(claim.right)
    totals = [stand for stand in claim.counted if claim.keys[stand] in _COUNTS_OF_N]
    factor = sum((right.coeff(stand, 1) for stand in (*claim.counts, *totals)), sp.Integer(0))
    factor = claim.side(factor, case.ledger.formulas, setting.counts, case.choice)
    if factor == 0:
        return []
    return [
        (part, coefficients(setting.under(part.value * factor, case.supposed)))
        for part in idle_parts(case.ledger)
    ]


def _spared(setting: Setting, case: Case) -> Weighed:
    """The products that no checkpoint repeats and that are as much as the claim has too much."""
    derived, claim = setting.sides(case)
    over = coefficients(claim - derived)
    found = [
        (part, coefficients(setting.under(part.value, case.supposed)))
        for part in unrepeated_parts(case.ledger)
    ]
    return [(part, made) for part, made in found if any(over.get(b) == n for b, n in made.items())]


def _parts(setting: Setting, case: Case) -> Weighed:
    """The parts of the keys on the left, and of N there, times what the claim multiplies them with."""
    claim = setting.claim
    stands = {stand: key for stand, key in claim.keys.items() if stand in claim.left.free_symbols}
    stands |= {stand: "params.total" for stand in claim.counts if stand in claim.left.free_symbols}
    left = sp.expand(claim.left)
    known = setting.relations(case.supposed).replaced
    found = []
    for stand, key in stands.items():
        factor = claim.side(left.coeff(stand, 1), case.ledger.formulas, setting.counts, case.choice)
        for part in parts_of(case.ledger, key):
            value = setting.under(part.value * factor, case.supposed)
            sizes = frozenset(size for name in part.sizes for size in known.get(name, name).free_symbols)
            found.append((replace(part, sizes=sizes), coefficients(value)))
    return found
