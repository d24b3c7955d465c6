"""The answer of `derive` as text, markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from symacct.comparisons import SIGNS, plain
from symacct.expressions import to_text
from symacct.graph import Assumption
from symacct.limits import possible_limits, unsought
from symacct.report.answer import Answer
from symacct.report.breakdown import by_keys, by_module, parts_by
from symacct.report.grids import Grid, Page
from symacct.report.summary import conditions, headline, sizes, totals
from symacct.report.tokens import as_data
from symacct.symbols import latex_name, symbol

_INDENT = 13


def as_text(answer: Answer, page: Page, by: Sequence[str] = ()) -> None:
    """Sizes, conditions, totals and the table of parts on a page."""
    page.line(headline(answer), "bold")
    if answer.ledger.graph.symbols:
        page.hanging("sizes", sizes(answer), _INDENT, " · ")
    if conditions(answer):
        page.hanging("holds when", conditions(answer), _INDENT, ",  ")
    for note in notes(answer):
        page.hanging("note", [note], _INDENT)
    page.line()
    page.grid(totals(answer), heading=False)
    page.line()
    page.grid(table(answer, by))


def as_json(answer: Answer, by: Sequence[str] = (), more: Mapping[str, Any] | None = None) -> str:
    """One object with the contract's keys and `more`; `by` only when it was asked for.

    `limits` says where the formula of a key is another, such as "B = 1", and what is to be added to it there; with
    null for that, the key has a value only where the model itself could be run at the sizes. Of a model that is traced
    for this answer it says so of the sizes that were given alone: each place takes runs to find.
    """
    graph = answer.ledger.graph
    found: dict[str, Any] = {
        "target": graph.target,
        "mode": graph.mode,
        "symbols": {
            name: {"meaning": info.meaning, "latex": latex_name(name), "traced_at": info.traced_at}
            for name, info in graph.symbols.items()
        },
        "assumptions": [a.text for a in graph.assumptions]
        + [_contract(text) for text in answer.relations.texts],
        "convention": answer.ledger.convention.as_json(),
        "coverage": {
            "nodes": len(graph.ops),
            "unknown": [
                {"op": op.op, "count": op.count, "module": op.module, "source": op.source}
                for op in answer.ledger.unknown
            ],
        },
        "formulas": {key: to_text(value) for key, value in answer.formulas.items()},
    }
    if "flops.step" in answer.formulas:
        found["tokens"] = as_data(answer)
    if limits := possible_limits(graph, answer.sizes):
        found["limits"] = [
            {
                "key": limit.key,
                "where": limit.text,
                "more": None if limit.more is None else to_text(answer.under(limit.more)),
            }
            for limit in limits
        ]
    if answer.asked:
        found["values"] = answer.values
    if by:
        found["by"] = [
            {**dict(zip(by, part.key, strict=True)), "flops": to_text(part.total)}
            | _valued(answer, part.total)
            for part in parts_by(answer, by)
        ]
    return json.dumps(found | dict(more or {}), indent=2, ensure_ascii=False)


def table(answer: Answer, by: Sequence[str]) -> Grid:
    """The parts by the asked keys, else the forward pass by module."""
    return by_keys(answer, by) if by else by_module(answer)


def notes(answer: Answer) -> list[str]:
    """What a reader must know before believing a number."""
    found = []
    unknown = answer.ledger.unknown
    if unknown:
        found.append(
            f"{', '.join(op.op for op in unknown)} without a rule: "
            "their FLOPs stand as W_… in the totals, their bytes are left out"
        )
    if answer.sizes and not answer.asked and answer.missing:
        found.append(f"values need numbers for {', '.join(answer.missing)}; give them with --at")
    if answer.asked and unsought(answer.ledger.graph, answer.sizes):
        found.append("kept bytes and the peak may have other formulas where a size is 1: looked for at these sizes alone")
    return found + _beyond_a_window(answer)


def _beyond_a_window(answer: Answer) -> list[str]:
    """How to ask for the formulas beyond a window, or below it; nothing where the side was asked for."""
    asked = any(a.kind == "branch" for a in answer.relations.conditions)
    sides = [a for a in answer.ledger.graph.assumptions if a.kind == "branch" and isinstance(a.left, SIGNS)]
    told = [a for a in sides if symbol("W") in a.left.free_symbols and len(a.left.free_symbols) > 1]
    if asked or not told:
        return []
    other = Assumption("branch", plain(sp.Not(told[0].left)), sp.Integer(0), "").short
    side = told[0].short
    return [f"all this holds for {side} alone: --given '{other}' derives the other side of the window"]


def _contract(text: str) -> str:
    """A given relation as the JSON contract writes conditions."""
    divisor, divides, multiple = text.partition(" | ")
    return f"Mod({multiple}, {divisor}) = 0" if divides else text


def _valued(answer: Answer, expr: Any) -> dict[str, int]:
    number = answer.number(expr) if answer.asked else None
    return {} if number is None else {"value": number}
