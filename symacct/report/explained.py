"""The answer of `explain`: every node with its place, its tensors, what it costs, and by which law."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sympy import Expr

from symacct.account import Entry, Ledger, saved_buffers, saved_bytes
from symacct.copying import copies
from symacct.errors import SizeError
from symacct.expressions import to_text
from symacct.graph import Node, Placed, Tensor
from symacct.memory import keepers, makers
from symacct.plan.fusion import kernels
from symacct.report.answer import Answer
from symacct.report.dying import deaths_in_words
from symacct.report.grids import Page
from symacct.report.numbers import flops, size
from symacct.report.readable import text
from symacct.rules import find

_INDENT = 11
_BROUGHT = {
    "parameter": "A parameter of the model.",
    "buffer": "A buffer of the model.",
    "input": "An input of the step.",
    "gradient": "The gradient of a parameter.",
    "state": "A state of the optimizer.",
    "cache": "A part of the model's cache.",
    "constant": "A constant.",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A node and its entry in the ledger; None for a tensor that is brought in."""

    place: Placed
    entry: Entry | None

    @property
    def law(self) -> str:
        """What the node does to the count, in words."""
        op = self.place.node.op
        rule = find(op)
        return rule.law if rule else _BROUGHT.get(op, "no rule")


def lines(ledger: Ledger, op: str = "", module: str = "") -> list[Line]:
    """The nodes in execution order whose op and module match. Raises SizeError when none does."""
    entries = {entry.place.node.name: entry for entry in ledger.entries}
    found = [
        Line(place, entries.get(place.node.name))
        for place in ledger.graph.placed()
        if _matches(op, place.node.op) and _matches(module, place.node.module)
    ]
    if not found:
        asked = " and ".join(
            f"--{name} {pattern}" for name, pattern in (("op", op), ("module", module)) if pattern
        )
        known = sorted(
            {(place.node.op if op else place.node.module) for place in ledger.graph.placed()} - {""}
        )
        raise SizeError(f"{ledger.graph.target}: no node matches {asked}; there are {', '.join(known)}")
    return found


def _matches(pattern: str, word: str) -> bool:
    """Whether a word is, contains, or fits the pattern; a `*` alone between dots is a folded index."""
    return not pattern or pattern in word or fnmatchcase(word, pattern)


class _Memory:
    """What a graph knows of its storages, in words: whose view a tensor is, and what keeps it for backward."""

    def __init__(self, answer: Answer) -> None:
        graph = answer.ledger.graph
        self.answer, self.keepers, self.makers = answer, keepers(graph), makers(graph)
        self.bytes, self.held = saved_bytes(graph), saved_buffers(graph)
        self.deaths = deaths_in_words(graph)
        self.copies = {copy.entry.place.node.name: copy for copy in copies(answer.ledger)}
        self.groups = {
            e.place.node.name: kernel
            for kernel in kernels(answer.ledger, fused=True)
            if len(kernel.entries) > 1
            for e in kernel.entries
        }

    def said(self, node: Node) -> Iterator[tuple[str, str]]:
        for out in node.outputs:
            if out.storage != out.value and out.storage in self.makers:
                yield "view", f"of what {place_text(self.makers[out.storage].node)} makes"
            elif out.value in self.bytes:
                total = text(self.answer.terms(self.answer.under(self.bytes[out.value])))
                readers = dict.fromkeys(place_text(p.node) for p in self.keepers.get(out.value, ()))
                yield (
                    "kept",
                    f"{total} bytes for backward, read by {', '.join(readers) or 'no op that was recorded'}",
                )
            elif out.value in self.held:
                readers = dict.fromkeys(place_text(p.node) for p in self.keepers.get(out.value, ()))
                yield "kept", f"for backward, held by the model anyway, read by {', '.join(readers)}"
            if out.value in self.deaths:
                yield "dies", self.deaths[out.value]
        if node.name in self.copies:
            yield "copy", f"{self.copies[node.name].rule}: {self.copies[node.name].advice}"
        if node.name in self.groups:
            others = [e.op for e in self.groups[node.name].entries if e.place.node.name != node.name]
            yield "fuses", f"with {', '.join(others)} into one kernel"


def place_text(node: Node) -> str:
    """An op with its module and line."""
    where = ", ".join(filter(None, [node.module, node.source]))
    return node.op + (f" ({where})" if where else f" {node.label}".rstrip())


def as_text(answer: Answer, page: Page, found: Sequence[Line]) -> None:
    """The nodes by phase, a paragraph each."""
    page.line("shapes and sizes are of one run of a node, FLOPs and bytes moved of all its runs")
    page.line()
    memory = _Memory(answer)
    phase = ""
    for line in found:
        node = line.place.node
        if node.phase != phase:
            if phase:
                page.line()
            page.line(node.phase, "bold underline")
            phase = node.phase
        _paragraph(answer, page, line, memory)


def _paragraph(answer: Answer, page: Page, line: Line, memory: _Memory) -> None:
    node, times = line.place.node, answer.under(line.place.times)
    repeats = f"× {text(answer.terms(times))}" if times != 1 else ""
    tensors = [_tensor(answer, out) for out in node.outputs]
    if line.entry is None:
        page.hanging(node.op, ["  ".join(filter(None, [node.label, repeats, *tensors]))], _INDENT)
        return
    page.line()
    page.line("  ".join(filter(None, [node.op, node.module or "(the model itself)", repeats])), "bold")
    said = [
        ("at", node.source),
        *(("makes", tensor) for tensor in tensors),
        *dict.fromkeys(memory.said(node)),
        *_costs(answer, line.entry),
        ("law", line.law),
    ]
    for label, words in said:
        if words:
            page.hanging(f"  {label}", [words], _INDENT)


def _tensor(answer: Answer, out: Tensor) -> str:
    shape = ", ".join(text(answer.terms(answer.under(dim))) for dim in out.shape)
    total = answer.under(out.bytes)
    number = answer.number(total) if answer.sizes else None
    value = f" = {size(number)}" if number is not None and not total.is_Integer else ""
    return f"({shape}) {out.dtype}, {text(answer.terms(total))} bytes{value}"


def _costs(answer: Answer, entry: Entry) -> Iterator[tuple[str, str]]:
    """FLOPs under the convention and bytes, over all repetitions; nothing where the law says so."""
    if not any(
        (entry.product, entry.elementwise, entry.reduction, entry.transcendental, entry.read, entry.written)
    ):
        return
    unit = answer.ledger.convention.unit
    counted = answer.under(answer.ledger.counted(entry))
    number = answer.number(counted) if answer.sizes else None
    value = f" = {flops(number, unit)}" if number is not None and not counted.is_Integer else ""
    yield f"{unit}s", f"{text(answer.terms(counted))}{value}"
    read, written = (text(answer.terms(answer.under(moved))) for moved in (entry.read, entry.written))
    yield "moves", f"reads {read}, writes {written} bytes"


def as_json(answer: Answer, found: Sequence[Line]) -> str:
    """One object with a list of nodes; FLOPs and bytes moved are over all repetitions."""
    memory = _Memory(answer)
    head = {
        "target": answer.ledger.graph.target,
        "mode": answer.ledger.graph.mode,
        "convention": answer.ledger.convention.as_json(),
    }
    return json.dumps(
        {**head, "nodes": [_node(answer, line, memory) for line in found]}, indent=2, ensure_ascii=False
    )


def _node(answer: Answer, line: Line, memory: _Memory | None = None) -> dict[str, Any]:
    node = line.place.node

    def written(expr: Expr) -> str:
        return to_text_or_str(answer.under(expr))

    made: dict[str, Any] = {
        "name": node.name,
        "op": node.op,
        "phase": node.phase,
        "module": node.module,
        "source": node.source,
        "times": written(line.place.times),
        "tensors": [
            {"shape": [written(dim) for dim in out.shape], "dtype": out.dtype, "bytes": written(out.bytes)}
            for out in node.outputs
        ],
        "law": line.law,
    }
    if memory is not None and node.name in memory.copies:
        made["copy"] = memory.copies[node.name].rule
    for tensor, out in zip(made["tensors"], node.outputs, strict=True):
        if memory is not None and out.value in memory.deaths:
            tensor["dies"] = memory.deaths[out.value]
    if node.label:
        made["label"] = node.label
    if line.entry is not None:
        made["flops"] = written(answer.ledger.counted(line.entry))
        made |= {"read": written(line.entry.read), "written": written(line.entry.written)}
    return made


def to_text_or_str(expr: Expr) -> str:
    """A formula string; shapes within a loop may speak of its index, which no formula does."""
    indices = [s for s in expr.free_symbols if s.is_positive is None]
    return str(expr) if indices else to_text(expr)
