"""The verdict on a claim: `check`. Equal, equal under conditions, leading order, refuted, unsettled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.claims.attribution import coefficients
from symacct.claims.bounds import asked
from symacct.claims.cases import Case, Setting
from symacct.claims.counted import MEANINGS
from symacct.claims.defined import with_readings
from symacct.claims.exceptions import Untold, at_values, derived_at, holding, with_exceptions
from symacct.claims.growth import usual
from symacct.claims.leading import Regime, leading_hint, one_token, regions, stated
from symacct.claims.letters import OWN
from symacct.claims.names import Names, definitions, mapping
from symacct.claims.peaks import Form, equal_form, forms_of, nearest, told, wins
from symacct.claims.places import terms
from symacct.claims.reading import placed, read
from symacct.claims.verdict import PROVED, Verdict
from symacct.claims.witness import at_sizes, elsewhere, plain, quotient, ratio_hint, smallest
from symacct.errors import SizeError
from symacct.expressions import Proved, canonical, compare
from symacct.report.answer import answer
from symacct.report.orders import split_orders
from symacct.report.readable import shown
from symacct.symbols import symbol


def check(
    ledger: Ledger,
    claim: str,
    given: Iterable[str] = (),
    at: Mapping[str, int] | Iterable[str] | None = None,
    map: Mapping[str, str] | Iterable[str] | None = None,
) -> Verdict:
    """What is true about a claim. Raises FormulaError, UnknownSymbol or SizeError if it cannot be read.

    >>> from symacct.api import derive
    >>> check(derive("gpt2"), "flops.step = 3*flops.forward").verdict
    'equal'
    """
    given = [given] if isinstance(given, str) else list(given)
    relations, orders = split_orders(given)
    plain_given, meant = definitions(relations, ledger.graph)
    numbers = [f"{n}={v}" for n, v in at.items()] if isinstance(at, Mapping) else list(at or ())
    names_told = [f"{n}={v}" for n, v in map.items()] if isinstance(map, Mapping) else list(map or ())
    names_told += meant
    asked = answer(ledger, numbers, plain_given)
    names = Names(ledger.graph, list(ledger.formulas), mapping(names_told, ledger.graph))
    names.letters = OWN.get(ledger.convention.name, {})
    with placed(claim):
        setting = Setting.of(ledger, read(claim, names), tuple(plain_given))
        stated(orders, ledger.graph, setting.relations().replaced)  # an order that cannot hold is refused
        found = _judged(_Judge(setting, orders, asked.sizes, names))
        return with_exceptions(with_readings(found, setting, names), setting)


def _judged(judge: _Judge) -> Verdict:
    """The verdict under the relations; where those leave what is derived untold, at the sizes."""
    setting = judge.setting
    numbers = tuple(f"{name} = {value}" for name, value in judge.sizes.items())
    for sizes, given in (({}, setting.given), (judge.sizes, (*setting.given, *numbers))):
        try:
            there = at_values(replace(setting, given=given, memory={}), sizes)
            return replace(judge, setting=there).verdict()
        except Untold as untold:
            why = untold
    return judge.untold(why)


@dataclass(frozen=True)
class _Judge:
    setting: Setting
    orders: list[str]
    sizes: Mapping[str, int]
    names: Names

    def verdict(self) -> Verdict:
        base = self.setting.base
        left, right = self.setting.raw(base)
        general = self.setting.general is None
        if general and isinstance(compare(left, right, iter(())), Proved):
            return self._made("equal", base, conditions=())
        if self.setting.holds(base):
            return self._made("equal-under", base, conditions=self._needed(left, right))
        for case in self.setting.readings():
            if self.setting.holds(case):
                return self._under(case)
        return self._peak() or self._at_known_sizes() or self._leading() or self._in_numbers()._refuted()

    def _in_numbers(self) -> _Judge:
        """Where the claim is a number and the sizes are known: judged at them, number with number."""
        left, right = self.setting.raw(self.setting.base)
        spoken = {s.name for s in left.free_symbols}
        if right.free_symbols or not spoken or not spoken <= set(self.sizes):
            return self
        given = (f"{name} = {value}" for name, value in self.sizes.items() if name in spoken)
        sized = replace(self.setting, given=(*self.setting.given, *given), memory={})
        return replace(self, setting=at_values(sized, self.sizes))

    def _under(self, case: Case) -> Verdict:
        """Equal in another reading; with another count, `terms` say what differs from the asked."""
        found = self._made("equal-under", case, conditions=self._conditions(case))
        if not case.switches and not case.named:
            return found
        told = terms(self.setting, replace(self.setting.base, supposed=case.supposed), case)
        asked = MEANINGS[self.setting.base.choice] if self.setting.claim.speaks_of_n else ""
        note = "the terms say what differs as the counting was asked for" + f", N being {asked}" * bool(asked)
        return replace(found, terms=told, notes=(note,) if told else ())

    def _at_known_sizes(self) -> Verdict | None:
        """Equal at the numbers that the sizes have: those count as given where nothing less is enough."""
        setting = self.setting
        spoken = {s.name for side in setting.raw(setting.base) for s in side.free_symbols}
        numbers = tuple(f"{n} = {v}" for n, v in self.sizes.items() if n in spoken)
        if not numbers:
            return None
        try:
            sized = at_values(replace(setting, given=(*setting.given, *numbers), memory={}), self.sizes)
        except Untold:
            return None
        bare = (case for case in sized.readings() if not case.supposed)
        found = next((case for case in (sized.base, *bare) if sized.holds(case)), None)
        return replace(self, setting=sized)._under(found) if found else None

    def _needed(self, left: Expr, right: Expr) -> tuple[str, ...]:
        """The relations that a proof takes: the given ones, and the model's own assumptions that it used."""
        setting = self.setting
        without = replace(setting, given=())
        given = () if setting.general is None and without.holds(setting.base) else setting.given
        roundings = {
            s for e in (left, right) for f in e.atoms(sp.floor, sp.ceiling, sp.Mod) for s in f.free_symbols
        }
        used = [
            a.short
            for a in setting.ledger.graph.assumptions
            if (a.kind == "divides" and roundings & a.left.free_symbols)
            or (a.kind == "equal" and a.left in (left - right).free_symbols)
        ]
        return (*used, *given)

    def _conditions(self, case: Case) -> tuple[str, ...]:
        found = [*self.setting.given, *case.supposed, *case.switches]
        if case.named:
            named = case.ledger.convention
            found.append(f"convention {case.named}: {named.line} ({named.source})")
        if self.setting.claim.speaks_of_n and (case.choice != self.setting.base.choice or case.named):
            count = self.setting.under(self.setting.counts[case.choice], case.supposed)
            found.append(f"N = {MEANINGS[case.choice]} = {shown(count)}")
        return tuple(found)

    # A maximum of several forms

    def _forms(self, case: Case) -> list[Form]:
        setting = self.setting
        left, _ = setting.sides(case)
        return forms_of(left, setting.ledger.graph, lambda live: setting.under(live, case.supposed))

    def _peak(self) -> Verdict | None:
        """Equal where one form of a maximum is the largest."""
        base = self.setting.base
        derived, claim = self.setting.sides(base)
        forms = self._forms(base)
        form = equal_form(forms, claim)
        if form is None:
            return None
        where = self._lies(form, forms)
        if "never" in where:
            return None
        found = self._made("equal-under", base, (*self._conditions(base), *where), form.value)
        return replace(
            found, witness=self._witness(base, derived, claim), notes=self._at_sizes(base, derived, claim)
        )

    def _lies(self, form: Form, forms: Sequence[Form]) -> tuple[str, ...]:
        """That a form is the maximum, then all conditions which make it so."""
        where = wins(form, forms, self.setting.ledger.graph, self._numbers)
        lies = f"the maximum is at {form.place}" if form.place else "this form is the largest"
        return (lies + ", where" * bool(where), *where)

    @property
    def _numbers(self) -> dict[sp.Symbol, Expr]:
        return {symbol(n): sp.Integer(v) for n, v in self.sizes.items()}

    # Leading order

    def _leading(self) -> Verdict | None:
        setting, base = self.setting, self.setting.base
        regime = stated(self.orders, setting.ledger.graph, setting.relations().replaced)
        regimes = [regime] if regime else self._regimes
        for case in [base, *(replace(base, supposed=texts) for texts in setting.supposable)]:
            derived, claim = setting.sides(case)
            forms = self._forms(case)
            for tried in regimes:
                form = tried.largest([f.value for f in forms]) if forms else derived
                if form is None or (regime is None and self._wrong_number(case, form, claim)):
                    continue
                if tried.leads(form, claim):
                    return self._led(case, tried, form, claim)
        return None

    @property
    def _regimes(self) -> list[Regime]:
        """The regimes of the model, the widest first."""
        setting = self.setting
        weights = setting.counts["matmul"].free_symbols
        return usual(setting.ledger.graph, weights, each=not setting.claim.counts)

    def _led(self, case: Case, regime: Regime, derived: Expr, claim: Expr) -> Verdict:
        graph = self.setting.ledger.graph
        forms = self._forms(case)
        where = next((self._lies(form, forms) for form in forms if form.value == derived), ())
        bound, text = asked(regime, derived, claim, self._numbers) if regime.orders else ("", regime.text)
        found = self._made("leading-order", case, (*self._conditions(case), text, *where), derived)
        return replace(
            found,
            regions=regions(derived, claim, graph, self._numbers),
            terms=terms(self.setting, case),
            witness=self._witness(case, derived, claim),
            notes=tuple(note for note in (bound, *self._at_sizes(case, derived, claim)) if note),
        )

    def _wrong_number(self, case: Case, derived: Expr, claim: Expr) -> bool:
        """Whether the derived formula lacks a term that the claim wrote out, or has another number of it."""
        mine, whole = coefficients(derived), coefficients(claim)
        zero = sp.Integer(0)
        written = coefficients(self.setting.explicit(case))
        return any(
            mine.get(b, zero) not in (number, whole.get(b, zero))
            for b, number in written.items()
            if number != 0
        )

    # Refuted

    def _refuted(self) -> Verdict:
        setting = self.setting
        claimed = setting.claim
        whole = claimed.counts or claimed.counted or claimed.keys.keys() & claimed.right.free_symbols  # it leaves no size to suppose
        supposed = [replace(setting.base, supposed=t) for t in (() if whole else setting.supposable)]
        base = min((setting.base, *supposed), key=self._differing)
        derived, claim = setting.sides(base)
        witness = self._witness(base, derived, claim)
        key, graph = self._key, setting.ledger.graph
        wide = self._regimes[:1]
        hint = ratio_hint(derived, claim, key) or leading_hint(derived, claim, key, wide)
        notes = [
            note
            for note in (
                one_token(derived, claim, graph, wide) if key.startswith("flops") else "",
                hint,
                self._nearest_form(base, claim),
                *self._at_sizes(base, derived, claim),
                *self._near(base),
                *elsewhere(setting),
            )
            if note
        ]
        found = self._made("refuted" if witness else "unsettled", base, conditions=self._conditions(base))
        return replace(
            found, terms=terms(self.setting, base) if witness else (), witness=witness, notes=tuple(notes)
        )

    @property
    def _key(self) -> str:
        """The formula that the left side speaks of; of several, what they are: "flops", "bytes" or ""."""
        claim = self.setting.claim
        spoken = {key for stand, key in claim.keys.items() if stand in claim.left.free_symbols}
        kinds = spoken if len(spoken) == 1 else {key.partition(".")[0] for key in spoken}
        return kinds.pop() if len(kinds) == 1 else ""

    def _nearest_form(self, case: Case, claim: Expr) -> str:
        forms = self._forms(case)
        return told(nearest(forms, claim), claim, len(forms)) if forms else ""

    def _differing(self, case: Case) -> int:
        """In how many terms the two sides differ."""
        derived, claim = self.setting.sides(case)
        return len(coefficients(derived - claim))

    def _near(self, base: Case) -> list[str]:
        """Another N by which the claim would hold to leading order."""
        chosen = [replace(base, choice=choice) for choice in MEANINGS]
        if not self.setting.claim.speaks_of_n or any(map(self.setting.chooses, chosen)):
            return []
        counts, graph = self.setting.counts, self.setting.ledger.graph
        regime = stated(self.orders, graph, self.setting.relations(base.supposed).replaced)
        for choice in MEANINGS:
            if counts.get(choice, counts[base.choice]) == counts[base.choice]:
                continue
            case = replace(base, choice=choice)
            derived, claim = self.setting.sides(case)
            if not self._wrong_number(case, derived, claim) and any(
                r.leads(derived, claim) for r in ([regime] if regime else self._regimes[:1])
            ):
                return [f"with N = {MEANINGS[choice]} the claim is the leading order"]
        return []

    def _witness(self, case: Case, derived: Expr, claim: Expr) -> dict[str, Any]:
        try:
            domain = self.setting.domain(case.supposed)
        except SizeError:
            return {}
        found = smallest(derived, claim, domain, holding(self.setting))
        if found is None:
            return {}
        point, mine, its = found
        return {"point": point, "derived": plain(mine), "claim": plain(its)}

    def _at_sizes(self, case: Case, derived: Expr, claim: Expr) -> tuple[str, ...]:
        """The claim in numbers at the known sizes, with the number that is derived for these."""
        try:
            there = derived_at(self.setting, case, self.sizes)
        except Untold as untold:
            return (f"at the sizes given: {untold}",)
        return at_sizes(derived if there is None else there, claim, self._numbers)

    def untold(self, why: Untold) -> Verdict:
        """Neither proved nor refuted: what is derived is unknown where the claim is made."""
        base, claim = self.setting.base, self.setting.claim
        named = claim.left.xreplace({stand: symbol(key) for stand, key in claim.keys.items()})
        found = self._made("unsettled", base, self._conditions(base), named)
        return replace(found, difference=sp.Integer(0), notes=(str(why),))

    def _made(
        self, verdict: str, case: Case, conditions: tuple[str, ...], form: Expr | None = None
    ) -> Verdict:
        """The record; of a maximum that form of it which the verdict is about."""
        derived, claim = self.setting.sides(case)
        derived = derived if form is None else form
        equal = verdict in PROVED
        return Verdict(
            verdict,
            self.setting.claim.text,
            self.setting.ledger.graph.target,
            claim,
            claim if equal and quotient(derived) and not quotient(claim) else derived,
            sp.Integer(0) if equal else canonical(derived - claim),
            conditions,
            names=self.names.told(case.choice),
        )
