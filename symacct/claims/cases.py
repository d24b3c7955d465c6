"""Ways to read one claim: conventions, choices of N, and relations that many architectures have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from math import lcm, prod

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.claims.absent import unknown_active
from symacct.claims.counted import MEANINGS, PER_TOKEN, counts
from symacct.claims.names import size_of
from symacct.claims.reading import Claim
from symacct.claims.rounding import halved_alike, rounded_up
from symacct.conventions import CHOICES, NAMED, Convention
from symacct.domain import Domain
from symacct.errors import TraceError, UnknownSymbol
from symacct.expressions import Proved, UndefinedHere, canonical, compare, evaluate, parse
from symacct.graph import Assumption, Graph
from symacct.report.answer import answer
from symacct.report.relations import Relations, relations
from symacct.report.tokens import tokens_of
from symacct.symbols import symbol

# Relations that many architectures have, in names of the glossary, and the size that a claim leaves out.
_USUAL = {
    "f = 4*d": "f",
    "d = h*d_h": "d_h",
    "h_kv = h": "h_kv",
    "T = P": "T",
    "S = T": "S",
    "d_v = d_h": "d_v",
    "k = E": "k",
}
_SWITCHES = ("unit", "count", "attention", "backward")
_UNUSUAL = {("backward", "once")}  # only a convention by name counts so
# How many forwards a convention makes of each, where it makes a backward of that many.
_PASSES: Mapping[str, Callable[[int], int]] = {
    "flops.forward": lambda times: 1,
    "flops.backward": lambda times: times,
    "flops.step": lambda times: times + 1,
}
_COUNTED = {"params.total": "all", "params.trainable": "trainable", "params.active": "active"}


@dataclass(frozen=True)
class Case:
    """One reading: a ledger under a convention, which parameters N is, relations not given."""

    ledger: Ledger
    choice: str
    supposed: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    named: str = ""


@dataclass(frozen=True)
class Setting:
    """A claim about a ledger under given relations. `general`: the ledger before sizes of 1 changed it."""

    ledger: Ledger
    claim: Claim
    given: tuple[str, ...]
    memory: dict[Case, tuple[Expr, Expr]] = field(default_factory=dict, compare=False)
    general: Ledger | None = None

    @classmethod
    def of(cls, ledger: Ledger, claim: Claim, given: tuple[str, ...]) -> Setting:
        """The claim as it stands where it is true so, else without formulas under a bar. Raises UnknownSymbol
        where its N is to be the active parameters and these are not known.
        """
        asked = claim.speaks_of_n and ledger.convention.params == "active"
        if asked and (unknown := unknown_active(ledger.graph, ledger.formulas)):
            raise UnknownSymbol(unknown)
        whole, cleared = cls(ledger, claim, given), claim.cleared
        return whole if cleared is claim or whole.holds(whole.base) else cls(ledger, cleared, given)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The equalities that the model itself assumes."""
        kept = [a for a in self.ledger.graph.assumptions if a.kind == "equal" and a.left.is_Symbol]
        return tuple(a.text for a in kept)

    @cached_property
    def counts(self) -> dict[str, Expr]:
        """N by choice."""
        found = counts(self.ledger)
        step = self.ledger.formulas.get("flops.step")
        tokens = tokens_of(answer(self.ledger), step) if step is not None else None
        prime = tokens.active if tokens is not None else found.get("active matmul", found["matmul"])
        return found | {PER_TOKEN: prime}

    def relations(self, supposed: Sequence[str] = ()) -> Relations:
        """The model's own equalities, then the given ones, then the supposed."""
        return relations([*self.own, *self.given, *supposed], self.ledger.graph.symbols)

    def domain(self, supposed: Sequence[str] = ()) -> Domain:
        """The sizes of the model that obey the relations."""
        known = self.relations(supposed)
        equal = tuple(Assumption("equal", name, value, "--given") for name, value in known.replaced.items())
        return Domain(self.ledger.domain.names, (*self.ledger.graph.assumptions, *known.conditions, *equal))

    def under(self, expr: Expr, supposed: Sequence[str] = ()) -> Expr:
        """An expression of the ledger under the relations and the domain, multiplied out."""
        known = self.relations(supposed)
        domain = Domain(self.ledger.domain.names, (*self.ledger.graph.assumptions, *known.conditions))
        return rounded_up(canonical(domain.rewrite(replaced(expr, known.replaced))))

    def raw(self, case: Case) -> tuple[Expr, Expr]:
        """Both sides in the model's sizes."""
        numbers = self.counts | (
            {"active matmul": self.counts["matmul"]} if "active matmul" not in self.counts else {}
        )
        made = [
            self.claim.side(side, case.ledger.formulas, numbers, case.choice)
            for side in (self.claim.left, self.claim.right)
        ]
        return made[0], made[1]

    def sides(self, case: Case) -> tuple[Expr, Expr]:
        """Both sides under all relations of the case."""
        if case not in self.memory:
            left, right = self.raw(case)
            left, right = self.under(left, case.supposed), self.under(right, case.supposed)
            self.memory[case] = halved_alike(left, right)
        return self.memory[case]

    def explicit(self, case: Case) -> Expr:
        """What the claim says without its N, or the parameters in its place: terms that it wrote out."""
        zero = {stand: sp.Integer(0) for stand in (*self.claim.counts, *self.claim.counted)}
        return self.under(
            self.claim.side(self.claim.right.xreplace(zero), case.ledger.formulas, self.counts, case.choice),
            case.supposed,
        )

    @cached_property
    def samples(self) -> list[dict[str, int]]:
        """A few sizes of the domain, to refuse most readings fast."""
        try:
            return list(islice(self.domain().points(seed=5), 3))
        except TraceError:
            return []

    def holds(self, case: Case) -> bool:
        """Whether the two sides are equal in this reading, proved."""
        left, right = self.raw(case)
        if not case.supposed and not self._may_be(left, right):
            return False
        left, right = self.sides(case)
        return canonical(left - right) == 0 or isinstance(compare(left, right, iter(())), Proved)

    def _may_be(self, left: Expr, right: Expr) -> bool:
        for point in self.samples:
            try:
                if evaluate(left, point) != evaluate(right, point):
                    return False
            except UndefinedHere:
                continue
        return True

    @cached_property
    def supposable(self) -> list[tuple[str, ...]]:
        """Usual relations that the known sizes obey, and pairs of them."""
        found = [text for text in self.usual if self._consistent(text)]
        pairs = ((a, b) for i, a in enumerate(found) for b in found[i + 1 :])
        return [*((text,) for text in found), *pairs]

    @cached_property
    def usual(self) -> list[str]:
        """Usual relations that tell a size of the model of which the claim does not speak."""
        spoken = {s.name for s in self.claim.right.free_symbols}
        return [text for text, told in self.thinkable.items() if told not in spoken]

    @cached_property
    def thinkable(self) -> dict[str, str]:
        """All usual relations that tell a size of the model, each with the size that it tells."""
        mine = {s.name for s in self.raw(self.base)[0].free_symbols}
        found = {}
        for usual, gone in _USUAL.items():
            text, told = _in_sizes(usual, self.ledger.graph), size_of(gone, self.ledger.graph)
            if text and told and told in mine and self._possible(text):
                found[text] = told
        return found

    @property
    def divided(self) -> list[tuple[str, ...]]:
        """The divisibilities of sizes by numbers that leave nothing to round on the left side."""
        by: dict[str, int] = {}
        for rounded in self.raw(self.base)[0].atoms(sp.floor, sp.ceiling):
            parts = [rounded, *rounded.atoms(sp.floor, sp.ceiling) - {rounded}]
            divisors = [sp.fraction(sp.together(part.args[0]))[1] for part in parts]
            if len(rounded.free_symbols) == 1 and all(d.is_Integer for d in divisors):
                name = next(iter(rounded.free_symbols)).name
                by[name] = lcm(prod(map(int, divisors)), by.get(name, 1))
        found = tuple(f"{number} | {name}" for name, number in sorted(by.items()) if number > 1)
        return [found] if found else []

    def _consistent(self, text: str) -> bool:
        """Whether the sizes obey a relation: the model's own numbers, else those that it was traced at."""
        graph = self.ledger.graph
        left, _, right = (part.strip() for part in text.partition("="))
        sizes: Mapping[str, int] = graph.values or {
            name: info.traced_at for name, info in graph.symbols.items()
        }
        value = 1
        for factor in right.split("*"):
            value *= int(factor) if factor.isdigit() else sizes.get(factor, 0)
        return sizes.get(left) == value

    def _possible(self, text: str) -> bool:
        """Whether a relation contradicts none of those that are known."""
        try:
            self.relations((text,))
        except ValueError:
            return False
        return True

    @cached_property
    def base(self) -> Case:
        """The claim as it stands, under the convention that was asked for."""
        return Case(self.ledger, self.ledger.convention.params)

    def readings(self) -> Iterator[Case]:
        """Other readings, those that change least first; none that takes for granted what the claim says."""
        return (case for case in self._readings() if not (self.defines(case) or self.chooses(case)))

    def chooses(self, case: Case) -> bool:
        """Whether a reading's choice of N is what the claim says, whatever the counts are: `N = N_active`."""
        if case.choice == self.base.choice or not self.claim.speaks_of_n:
            return False
        counted = {choice: sp.Dummy(positive=True) for choice in self.counts}
        told = {stand: _COUNTED.get(key, key) for stand, key in self.claim.keys.items()}
        told |= {stand: name or case.choice for stand, name in self.claim.counts.items()}
        known = {stand: counted[name] for stand, name in told.items() if name in counted}
        left, right = (side.xreplace(known) for side in (self.claim.left, self.claim.right))
        return canonical(left - right) == 0

    @property
    def doubled(self) -> Case:
        """The claim with a backward of twice the forward."""
        made = replace(self.ledger.convention, name="", backward="twice")
        return self._switched(made, ("backward = twice",))

    def defines(self, case: Case) -> bool:
        """Whether a reading's convention says what the claim does: what a backward is, for any forward."""
        times, spoken = case.ledger.convention.forwards, set(self.claim.keys.values())
        if times is None or self.claim.counts or not spoken <= {*_PASSES, "flops.hardware"}:
            return False
        formulas, forward = case.ledger.formulas, sp.Dummy("forward", positive=True)
        told: dict[str, Expr] = {key: number(times) * forward for key, number in _PASSES.items()}
        if "flops.hardware" in spoken:
            told["flops.hardware"] = told["flops.step"] + formulas["flops.hardware"] - formulas["flops.step"]
        left, right = (self.claim.side(s, told, {}, "") for s in (self.claim.left, self.claim.right))
        return canonical(left - right) == 0

    def _readings(self) -> Iterator[Case]:
        choices = (
            [c for c in MEANINGS if c != self.base.choice and c in self.counts]
            if self.claim.speaks_of_n
            else []
        )
        supposed = self.supposable
        yield from (replace(self.base, supposed=texts) for texts in supposed)
        yield from (replace(self.base, choice=choice) for choice in choices)
        if not any(key.startswith("flops") for key in self.claim.keys.values()):
            return
        others = [self._switched(made, words) for made, words in self._conventions()]
        yield from others
        named = [
            replace(self._switched(made, ()), named=name, choice=made.params)
            for name, made in NAMED.items()
            if made != self.ledger.convention
        ]
        yield from named
        for case in [replace(self.base, choice=choice) for choice in choices] + others + named:
            yield from (replace(case, supposed=texts) for texts in supposed)
        for case in others:
            for choice in choices:
                yield replace(case, choice=choice)
                yield from (replace(case, choice=choice, supposed=texts) for texts in supposed)

    def _switched(self, made: Convention, words: tuple[str, ...]) -> Case:
        return Case(self.ledger.under(made), self.base.choice, (), words)

    def _conventions(self) -> Iterator[tuple[Convention, tuple[str, ...]]]:
        """One switch changed, then two."""
        now = self.ledger.convention
        tried = [(s, v) for s in _SWITCHES for v in CHOICES[s] if (s, v) not in _UNUSUAL]
        changes = [(s, v) for s, v in tried if v != getattr(now, s)]
        switched = lambda **change: replace(now, name="", **change)  # noqa: E731
        yield from ((switched(**{s: v}), (f"{s} = {v}",)) for s, v in changes)
        for i, (s, v) in enumerate(changes):
            for t, w in changes[i + 1 :]:
                if s != t:
                    yield switched(**{s: v, t: w}), (f"{s} = {v}", f"{t} = {w}")


def _in_sizes(usual: str, graph: Graph) -> str:
    """A usual relation in a model's own names; empty where it lacks one of the sizes."""
    names = {word: size_of(word, graph) for word in re.findall(r"[A-Za-z]\w*", usual)}
    if None in names.values() or len(set(names.values())) < len(names):
        return ""
    return re.sub(r"[A-Za-z]\w*", lambda found: str(names[found[0]]), usual)


def likened(graph: Graph) -> Callable[[Expr, bool], Expr]:
    """A monomial without its number under the usual relations: people take terms that are alike for others.

    The second argument says whether the width of an MLP is taken for the model's as well.
    """
    table = []
    for usual in sorted(_USUAL, key=lambda text: (text != "f = 4*d", text == "d = h*d_h")):
        name, _, told = (part.strip() for part in _in_sizes(usual, graph).partition("="))
        if told:
            table.append((usual == "f = 4*d", symbol(name), parse(told, graph.symbols)))

    @cache
    def like(body: Expr, wide: bool) -> Expr:
        for widths, name, told in table:
            if wide or not widths:
                body = body.xreplace({name: told})
        return body.as_coeff_Mul()[1]

    return like


def replaced(expr: Expr, table: Mapping[sp.Symbol, Expr]) -> Expr:
    """`expr.xreplace(table)` that leaves Max and Min alone: sympy would compare all their arguments."""
    if not expr.has(sp.Max, sp.Min):
        return expr.xreplace(dict(table))
    if isinstance(expr, sp.Max | sp.Min):
        args = list(dict.fromkeys(replaced(arg, table) for arg in expr.args))
        return expr.func(*args, evaluate=False) if len(args) > 1 else args[0]
    hidden = {node: sp.Dummy(integer=True) for node in expr.atoms(sp.Max, sp.Min)}
    shown = {dummy: replaced(node, table) for node, dummy in hidden.items()}
    return expr.xreplace(hidden).xreplace(dict(table)).xreplace(shown)
