"""The answer of `verify`: which quantities were compared with which executions, and whether they agreed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from symacct.certificate import Certificate, Check
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped

_LONGEST = 300  # letters of a formula that is shown whole


def as_text(certificate: Certificate, page: Page) -> None:
    """The points, a line per quantity and oracle, the failures in full, and the verdict."""
    grid = checks(certificate.checks)
    page.line(f"{certificate.target} · {certificate.mode} · {certificate.device} behaviour", "bold")
    for at, point in enumerate(certificate.points):
        page.hanging("points" if not at else "", [_point(point)], 9)
    page.line()
    page.grid(grid)
    for check in certificate.checks:
        if not check.equal:
            _failure(page, check)
    if certificate.notes:
        page.line()
    for note in certificate.notes:
        page.hanging("note", [note], 9)
    page.line()
    page.line(verdict(certificate), "bold green" if certificate.verified else "bold red")


def verdict(certificate: Certificate) -> str:
    """The certificate in one line."""
    wrong = [check for check in certificate.checks if not check.equal]
    if wrong:
        return f"refuted: {len(wrong)} of {len(certificate.checks)} checks disagree"
    if not certificate.checks:
        return "unsettled: nothing could be checked"
    quantities = len({check.quantity for check in certificate.checks})
    return (
        f"certificate  {len(certificate.points)} points · {quantities} quantities · "
        f"{len(certificate.checks)} checks · all agree exactly"
    )


def checks(found: Iterable[Check]) -> Grid:
    """A line per quantity and oracle, over all points."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in found:
        groups.setdefault((check.quantity, check.oracle), []).append(check)
    rows = []
    for (quantity, oracle), members in groups.items():
        right = sum(check.equal for check in members)
        rows.append(
            (
                quantity,
                oracle,
                f"{right} of {len(members)}",
                "equal" if right == len(members) else "NOT EQUAL",
            )
        )
    columns = (
        Column("quantity"),
        Column("compared with", "text"),
        Column("points", "right"),
        Column("verdict"),
    )
    return Grid(columns, tuple(rows))


def _failure(page: Page, check: Check) -> None:
    page.line()
    page.hanging("refuted", [f"{check.quantity} by {check.oracle}"], 9)
    page.hanging("  at", [_point(check.point)], 9)
    formula = check.formula
    if len(formula) > _LONGEST:
        formula = f"the largest of {_forms(formula)} forms" if formula.startswith("Max(") else "the formula of derive"
    page.hanging("  said", [f"{formula} = {_number(check.expected)}"], 9)
    page.hanging("  seen", [_number(check.observed) + _apart(check)], 9)
    if check.where:
        page.hanging("  where", [check.where], 9)


def _forms(formula: str) -> int:
    """How many arguments a Max has, told by the commas outside of further brackets."""
    depth = count = 0
    for letter in formula:
        depth += (letter == "(") - (letter == ")")
        count += letter == "," and depth == 1
    return count + 1


def _apart(check: Check) -> str:
    """How far what was seen is from what was said."""
    if not (isinstance(check.expected, int) and isinstance(check.observed, int)) or not check.expected:
        return ""
    more = check.observed - check.expected
    return f", {grouped(abs(more))} {'more' if more > 0 else 'less'} ({abs(more) / abs(check.expected):.3g} of it)"


def _number(value: int | str) -> str:
    return grouped(value) if isinstance(value, int) else value


def _point(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def as_json(certificate: Certificate) -> str:
    """The certificate by the contract."""
    return json.dumps(certificate.as_json(), indent=2, ensure_ascii=False)
