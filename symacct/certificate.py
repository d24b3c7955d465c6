"""What a verification found: one check per quantity and point, and the verdict over all of them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of a derived quantity with what an independent oracle observed.

    `expected` is the formula's value, `observed` the oracle's: integers, or formulas in text where two derivations
    are compared. `where` names the op, the module and the source line of the first disagreement.
    """

    quantity: str
    oracle: str
    point: Mapping[str, int]
    formula: str
    observed: int | str
    expected: int | str
    equal: bool
    where: str = ""

    def as_json(self) -> dict[str, Any]:
        """The check as the JSON contract lists it."""
        found = {
            "quantity": self.quantity, "oracle": self.oracle, "point": dict(self.point), "formula": self.formula,
            "observed": self.observed, "expected": self.expected, "equal": self.equal,
        }
        return found | ({"where": self.where} if self.where else {})


@dataclass(frozen=True, slots=True)
class Certificate:
    """The checks that the formulas of a target passed or failed, and what was compared in place of what."""

    target: str
    mode: str
    device: str
    points: tuple[Mapping[str, int], ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def verified(self) -> bool:
        """Whether something was checked and every check holds."""
        return bool(self.checks) and all(check.equal for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.equal)

    def as_json(self) -> dict[str, Any]:
        """The certificate as the JSON contract spells it."""
        return {
            "verified": self.verified, "target": self.target, "mode": self.mode, "device": self.device,
            "points": [dict(point) for point in self.points],
            "checks": [check.as_json() for check in self.checks], "notes": list(self.notes),
        }
