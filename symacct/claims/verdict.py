"""What is true about a claim: the record that text and JSON are written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import Expr

from symacct.expressions import to_text

PROVED = ("equal", "equal-under")


@dataclass(frozen=True, slots=True)
class Term:
    """A term of `derived - claim`, or part of it, and a place in the model that it belongs to.

    `kind` is "missing" (the claim leaves it out), "extra" (nothing costs it) or "wrong" (another number).
    """

    term: Expr
    kind: str
    module: str
    op: str
    where: str
    meaning: str

    def as_json(self) -> dict[str, str]:
        """The contract's keys, and the kind."""
        return {
            "term": to_text(self.term),
            "kind": self.kind,
            "module": self.module,
            "op": self.op,
            "where": self.where,
            "meaning": self.meaning,
        }


@dataclass(frozen=True)
class Verdict:
    """`difference` is derived - claim, in the sizes of the model under the conditions.

    `names` says how names of the claim were read that are no sizes of the model. `exceptions` are sizes at which
    the derived formula itself does not hold, so that the verdict says nothing about the step there.
    """

    verdict: str
    claim: str
    target: str
    read_as: Expr
    derived: Expr
    difference: Expr
    conditions: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()
    witness: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    exceptions: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether the claim is equal, maybe under conditions."""
        return self.verdict in PROVED

    def as_json(self) -> dict[str, Any]:
        """One object with the contract's keys, and `exceptions` where there are some."""
        return {
            "target": self.target,
            "verdict": self.verdict,
            "claim": self.claim,
            "read_as": to_text(self.read_as),
            "names": dict(self.names),
            "derived": to_text(self.derived),
            "difference": to_text(self.difference),
            "conditions": list(self.conditions),
            "regions": list(self.regions),
            "terms": [term.as_json() for term in self.terms],
            "witness": dict(self.witness),
            "notes": list(self.notes),
        } | ({"exceptions": list(self.exceptions)} if self.exceptions else {})
