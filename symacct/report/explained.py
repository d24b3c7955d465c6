"""The answer of `explain`: every node with its place, its tensors, what it costs, and by which law."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sympy import Expr

from symacct.account import Entry, Ledger
from symacct.copying import copies
from symacct.errors import SizeError
from symacct.expressions import to_text
from symacct.graph import Node, Placed, Tensor
from symacct.memory import Kept, kept, makers
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
        self.answer, self.kept, self.makers = answer, kept(graph), makers(graph)
        self.ruled = graph.kept is not None or graph.mode != "train"  # so that what is not told is not kept
        self.deaths = deaths_in_words(graph)
        self.copies = {copy.entry.place.node.name: copy for copy in copies(answer.ledger)}
        self.groups = {
            e.place.node.name: kernel
            for kernel in kernels(answer.ledger, fused=True)
            if len(kernel.entries) > 1
            for e in kernel.entries
        }

    def of_tensor(self, out: Tensor) -> Iterator[tuple[str, str]]:
        """Whose view a tensor is, or what keeps its storage, and when that dies."""
        if out.storage != out.value and out.storage in self.makers:
            whole = self.makers[out.storage].node
            yield "view", f"of the {whole.op} {whole.label}" if whole.label else f"of what {place_text(whole)} makes"
        yield from self.keeping(out)
        if out.value in self.deaths:
            yield "dies", self.deaths[out.value]

    def keeping(self, out: Tensor) -> Iterator[tuple[str, str]]:
        """What a storage is kept for, told at the tensor that it was made for."""
        found = self.kept.get(out.value)
        if found is None:
            return
        readers = ", ".join(dict.fromkeys(place_text(place.node) for place in found.readers))
        total = text(self.answer.terms(self.answer.under(found.bytes)))
        what = "for backward, held by the model anyway" if found.held else f"{total} bytes for backward"
        yield "kept", f"{what}, read by {readers or 'no op that was recorded'}"

    def of_node(self, node: Node) -> Iterator[tuple[str, str]]:
        """Whether a node is a copy that can be avoided, and what it could be one kernel with."""
        if node.name in self.copies:
            yield "copy", f"{self.copies[node.name].rule}: {self.copies[node.name].advice}"
        if node.name in self.groups:
            others = [e.op for e in self.groups[node.name].entries if e.place.node.name != node.name]
            yield "fuses", f"with {', '.join(others)} into one kernel"

    def as_json(self, out: Tensor) -> dict[str, Any]:
        """The view, what keeps the storage, and when that dies. A view is kept where what it looks at is."""
        view = out.storage != out.value and out.storage in self.makers
        made: dict[str, Any] = {"view": None}
        if view:
            made["view"] = {"of": out.storage, **_place(self.makers[out.storage].node)}
        if out.value in self.kept:
            made["kept"] = _keeping(self.answer, self.kept[out.value])
        elif self.ruled:
            made["kept"] = None
        if out.value in self.deaths:
            made["dies"] = self.deaths[out.value]
        return made


def place_text(node: Node) -> str:
    """An op with its module and line."""
    where = ", ".join(filter(None, [node.module, node.source]))
    return node.op + (f" ({where})" if where else f" {node.label}".rstrip())


def as_text(answer: Answer, page: Page, found: Sequence[Line]) -> None:
    """The nodes by phase, a paragraph each."""
    page.line("shapes and sizes are of one run of a node; FLOPs, bytes moved and bytes kept of all its runs")
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
    if line.entry is None:
        tensors = [_tensor(answer, out) for out in node.outputs]
        page.hanging(node.op, ["  ".join(filter(None, [node.label, repeats, *tensors]))], _INDENT)
        _labelled(page, (said for out in node.outputs for said in memory.keeping(out)))
        return
    page.line()
    page.line("  ".join(filter(None, [node.op, node.module or "(the model itself)", repeats])), "bold")
    _labelled(page, [("at", node.source)])
    for out in node.outputs:
        _labelled(page, [("makes", _tensor(answer, out)), *memory.of_tensor(out)])
    _labelled(page, [*memory.of_node(node), *_costs(answer, line.entry), ("law", line.law)])


def _labelled(page: Page, said: Iterable[tuple[str, str]]) -> None:
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
    """One object with a list of nodes; FLOPs, bytes moved and bytes kept are over all repetitions.

    Of each tensor: `value` (its name), `shape`, `dtype`, `bytes`; `view`, the value whose storage it shares and the
    node that made that; `kept`, how often and how many bytes of its storage are there for backward, the formula that
    counts them, whether the model holds it anyway, and the nodes that read it. Both are null where there is none. A
    view has no `kept`: what it looks at does. Where what is kept follows no rule, `kept` is told of parameters,
    buffers and tensors of the model alone, as far as backward reads them.
    """
    memory = _Memory(answer)
    head = {
        "target": answer.ledger.graph.target,
        "mode": answer.ledger.graph.mode,
        "convention": answer.ledger.convention.as_json(),
    }
    return json.dumps(
        {**head, "nodes": [_node(answer, line, memory) for line in found]}, indent=2, ensure_ascii=False
    )


def _node(answer: Answer, line: Line, memory: _Memory) -> dict[str, Any]:
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
            {
                "value": out.value,
                "shape": [written(dim) for dim in out.shape],
                "dtype": out.dtype,
                "bytes": written(out.bytes),
                **memory.as_json(out),
            }
            for out in node.outputs
        ],
        "law": line.law,
    }
    if node.name in memory.copies:
        made["copy"] = memory.copies[node.name].rule
    if node.label:
        made["label"] = node.label
    if line.entry is not None:
        made["flops"] = written(answer.ledger.counted(line.entry))
        made |= {"read": written(line.entry.read), "written": written(line.entry.written)}
    return made


def _keeping(answer: Answer, found: Kept) -> dict[str, Any]:
    """How often and how many bytes, the formula that counts them (none: held by the model and in no sum), and by
    which ops."""
    return {
        "times": to_text_or_str(answer.under(found.times)),
        "bytes": to_text_or_str(answer.under(found.bytes)),
        "counted_in": found.counted_in or None,
        "held_by_model": found.held,
        "read_by": [_place(place.node) for place in found.readers],
    }


def _place(node: Node) -> dict[str, str]:
    """A node by name, with what tells a reader where it is."""
    place = {"node": node.name, "op": node.op, "phase": node.phase, "module": node.module, "source": node.source}
    return place | ({"label": node.label} if node.label else {})


def to_text_or_str(expr: Expr) -> str:
    """A formula string; shapes within a loop may speak of its index, which no formula does."""
    indices = [s for s in expr.free_symbols if s.is_positive is None]
    return str(expr) if indices else to_text(expr)
