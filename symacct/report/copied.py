"""`explain --copies` and `explain --fusable`: copies that the code could do without, and ops that could be
one kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.copying import Copy, copies
from symacct.plan.fusion import Kernel, kernels
from symacct.report.answer import Answer
from symacct.report.explained import to_text_or_str
from symacct.report.grids import Page
from symacct.report.numbers import size
from symacct.report.readable import text

_INDENT = 11


def copies_text(answer: Answer, page: Page) -> None:
    """A paragraph a copy, those that move most first, and what all of them come to."""
    found = _copies(answer)
    if not found:
        page.line(
            "no copy of the forward pass is one that the code could avoid, by the rules that are known here"
        )
        return
    page.hanging(
        "", ["copies of the forward pass that the code could avoid; bytes are of all repetitions"], 0
    )
    for copy in found:
        node = copy.entry.place.node
        page.line()
        page.line(
            "  ".join(
                filter(
                    None,
                    [
                        copy.rule,
                        node.op,
                        node.module or "(the model itself)",
                        _times(answer, copy.entry.place.times),
                    ],
                )
            ),
            "bold",
        )
        for label, words in (
            ("at", node.source),
            ("moves", _amount(answer, copy.moved)),
            ("keeps", _amount(answer, copy.kept) if copy.kept != 0 else ""),
            ("instead", copy.advice),
        ):
            if words:
                page.hanging(f"  {label}", [words], _INDENT)
    page.line()
    page.hanging(
        "together", [f"{_amount(answer, sum((c.moved for c in found), sp.Integer(0)))} moved"], _INDENT
    )


def fusable_text(answer: Answer, page: Page) -> None:
    """A paragraph a group of ops that would run as one kernel, those that save most first."""
    found = _groups(answer)
    if not found:
        page.line("no element-wise ops stand next to each other")
        return
    page.hanging(
        "",
        [
            "element-wise ops that could run as one kernel: each works on as many elements as the next, and "
            "nothing else has to run in between; bytes are of all repetitions"
        ],
        0,
    )
    for kernel, saved in found:
        node = kernel.last.place.node
        page.line()
        page.line(
            "  ".join(
                filter(
                    None,
                    [
                        f"{len(kernel.entries)} ops",
                        node.phase,
                        node.module or "(the model itself)",
                        _times(answer, kernel.times),
                    ],
                )
            ),
            "bold",
        )
        page.hanging(
            "  ops", [entry.op.removeprefix("aten.") for entry in kernel.entries], _INDENT, joint=", "
        )
        lines = list(
            dict.fromkeys(entry.place.node.source for entry in kernel.entries if entry.place.node.source)
        )
        if lines:
            page.hanging("  at", lines, _INDENT, joint=", ")
        page.hanging("  saves", [f"{_amount(answer, saved)} of {_amount(answer, _moved(kernel))}"], _INDENT)


def as_json(answer: Answer, what: str) -> str:
    """The copies, or the groups of ops, as one object with a list."""

    def written(expr: Expr) -> str:
        return to_text_or_str(answer.under(expr))

    rows: list[dict[str, Any]]
    if what == "copies":
        rows = [
            {
                "rule": c.rule,
                "node": c.entry.place.node.name,
                "op": c.entry.op,
                "module": c.entry.module,
                "source": c.entry.place.node.source,
                "moved": written(c.moved),
                "kept": written(c.kept),
                "advice": c.advice,
            }
            for c in _copies(answer)
        ]
    else:
        rows = [
            {
                "nodes": [e.place.node.name for e in k.entries],
                "ops": [e.op for e in k.entries],
                "module": k.last.module,
                "phase": k.last.phase,
                "moved": written(_moved(k)),
                "saved": written(saved),
            }
            for k, saved in _groups(answer)
        ]
    return json.dumps(
        {"target": answer.ledger.graph.target, "mode": answer.ledger.graph.mode, what: rows},
        indent=2,
        ensure_ascii=False,
    )


def _copies(answer: Answer) -> Sequence[Copy]:
    return sorted(copies(answer.ledger), key=lambda copy: -answer.weight(answer.under(copy.moved)))


def _groups(answer: Answer) -> list[tuple[Kernel, Expr]]:
    found = [
        (kernel, _moved(kernel) - kernel.bytes)
        for kernel in kernels(answer.ledger, fused=True)
        if len(kernel.entries) > 1
    ]
    return sorted(found, key=lambda pair: -answer.weight(answer.under(pair[1])))


def _moved(kernel: Kernel) -> Expr:
    """Bytes that the ops move one by one."""
    return sum((entry.read + entry.written for entry in kernel.entries), sp.Integer(0))


def _times(answer: Answer, times: Expr) -> str:
    shown = answer.under(times)
    return f"× {text(answer.terms(shown))}" if shown != 1 else ""


def _amount(answer: Answer, expr: Expr) -> str:
    total = answer.under(expr)
    number = answer.number(total) if answer.sizes else None
    value = f" = {size(number)}" if number is not None and not total.is_Integer else ""
    return f"{text(answer.terms(total))} bytes{value}"
