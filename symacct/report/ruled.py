"""The answer of `rules`: every op that has a price, and the law by which it is priced."""

from __future__ import annotations

import json
from difflib import get_close_matches

from symacct.errors import SizeError
from symacct.report.grids import Column, Grid
from symacct.rules import RULES, Rule


def matching(pattern: str = "") -> list[Rule]:
    """The rules whose op contains the pattern, by name. Raises SizeError when there is none."""
    found = [RULES[op] for op in sorted(RULES) if pattern in op]
    if not found:
        names = {op.removeprefix("aten."): op for op in RULES}
        near = get_close_matches(pattern.removeprefix("aten."), names, 3)
        hint = f"; near are {', '.join(names[name] for name in near)}" if near else ""
        raise SizeError(f"no rule for an op like {pattern!r}{hint}")
    return found


def grid(rules: list[Rule]) -> Grid:
    """Op, file of its rule, law."""
    rows = tuple((rule.op, _kind(rule), rule.law) for rule in rules)
    return Grid((Column("op"), Column("rules/"), Column("law", "text")), rows)


def as_json(rules: list[Rule]) -> str:
    """A list of objects."""
    return json.dumps(
        [{"op": rule.op, "file": _kind(rule), "view": rule.view, "law": rule.law} for rule in rules],
        indent=2,
        ensure_ascii=False,
    )


def _kind(rule: Rule) -> str:
    return f"{rule.price.__module__.rpartition('.')[2]}.py"
