"""A verdict as text, as JSON and as markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from symacct.claims.verdict import Verdict
from symacct.report.grids import Column, Grid, Page
from symacct.report.readable import Reading, shown

_INDENT = 12
_SAID = {
    "equal": "equal: proved for all sizes",
    "equal-under": "equal under conditions, proved",
    "leading-order": "right to leading order only",
    "refuted": "refuted",
    "unsettled": "unsettled: no proof, and no sizes found at which it fails",
}
_MOST, _FEW = 12, 8


@dataclass(frozen=True, slots=True)
class Unread:
    """A claim of a file that cannot be judged, and the error that says why."""

    target: str
    claim: str
    error: str

    def as_json(self) -> dict[str, Any]:
        """One object, with an error in place of a verdict."""
        return {"target": self.target, "claim": self.claim, "error": self.error}


def unread(found: Unread, page: Page, source: str = "") -> None:
    """Why a claim has no verdict, with its caret, on a page."""
    page.line(f"{found.target} · {found.claim}" + (f" · {source}" if source else ""), "bold")
    why, *caret = found.error.splitlines()
    page.hanging("error", [why], _INDENT)
    for line in caret:
        page.line(line)


def as_text(found: Verdict, reading: Reading, page: Page, source: str = "") -> None:
    """The verdict, why, and where in the model, on a page."""
    page.line(f"{found.target} · {found.claim}" + (f" · {source}" if source else ""), "bold")
    page.hanging("verdict", [_said(found)], _INDENT)
    page.hanging("derived", [_derived(found, reading)], _INDENT)
    if found.verdict != "equal":
        page.hanging("claim", [shown(found.read_as, reading)], _INDENT)
    if found.names:
        page.hanging("reading", [f"{name} as {meant}" for name, meant in found.names.items()], _INDENT, ",  ")
    if found.conditions:
        page.hanging("when", _conditions(found), _INDENT, ",  ")
    if found.difference != 0 and not isinstance(found.derived, sp.Max):
        page.hanging("off by", [f"{shown(found.difference, reading)}   (derived - claim)"], _INDENT)
    for region in found.regions:
        page.hanging("", [region], _INDENT)
    if found.exceptions:
        page.hanging("except", list(found.exceptions), _INDENT, ";  ")
    for note in found.notes:
        page.hanging("note", [note], _INDENT)
    if found.witness:
        page.hanging("witness", [witness(found)], _INDENT)
    if found.terms:
        page.line()
        page.grid(terms(found, reading))
        if len(found.terms) > _MOST:
            page.line(f"and {len(found.terms) - _MOST} more (--format json lists all)")


def _said(found: Verdict) -> str:
    """The verdict in words: no formula is proved for sizes at which it does not hold."""
    if found.verdict == "equal" and found.exceptions:
        return "equal: proved for all sizes at which the derived formula holds"
    return _SAID[found.verdict]


def _conditions(found: Verdict) -> list[str]:
    """The conditions, of a maximum the first few."""
    more = len(found.conditions) - _FEW
    if more <= 0:
        return list(found.conditions)
    return [*found.conditions[:_FEW], f"and {more} conditions more (--format json lists all)"]


def _derived(found: Verdict, reading: Reading | None = None) -> str:
    """The derived formula; of a maximum how many forms it has, which nobody reads in a line."""
    if isinstance(found.derived, sp.Max):
        return f"the largest of {len(found.derived.args)} forms (--format json lists them)"
    return shown(found.derived, reading) if reading else shown(found.derived)


def witness(found: Verdict) -> str:
    """The witness in words."""
    point = ", ".join(f"{name} = {value}" for name, value in found.witness["point"].items())
    return f"at {point}: derived {found.witness['derived']}, claim {found.witness['claim']}"


def terms(found: Verdict, reading: Reading) -> Grid:
    """The terms of the difference and their places."""
    columns = (
        Column("term"),
        Column("off by", "formula"),
        Column("module"),
        Column("line"),
        Column("meaning", "text"),
    )
    rows = [
        (t.kind, shown(t.term, reading), t.module or "-", t.where, t.meaning) for t in found.terms[:_MOST]
    ]
    return Grid(columns, tuple(rows))


def as_json(found: Sequence[tuple[Verdict | Unread, str]], many: bool) -> str:
    """One object, or for a file of claims a list of them with their sources."""
    made: list[dict[str, Any]] = [
        one.as_json() | ({"source": source} if source else {}) for one, source in found
    ]
    return json.dumps(made if many else made[0], indent=2, ensure_ascii=False)


def in_words(found: Verdict) -> str:
    """The verdict in a few lines, for a failing test."""
    lines = [
        f"{found.target}: {found.claim}",
        f"  {_said(found)}",
        f"  derived   {_derived(found)}",
        f"  claim     {shown(found.read_as)}",
    ]
    lines += [f"  when      {condition}" for condition in found.conditions]
    lines += [
        f"  {t.kind:<9} {shown(t.term)}  {t.module} {t.where}: {t.meaning}" for t in found.terms[:_MOST]
    ]
    lines += [f"  except    {exception}" for exception in found.exceptions]
    lines += [f"  note      {note}" for note in found.notes]
    return "\n".join([*lines, *([f"  {witness(found)}"] if found.witness else [])])
