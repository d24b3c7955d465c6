"""The derivation line by line: each op that counts, the law that prices it, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import Entry, add
from symacct.graph import Tensor
from symacct.latex.blocks import Block, Code, Column, Heading, Math, Paragraph, Table, Text, spans
from symacct.latex.closed import name_of
from symacct.latex.formula import latex
from symacct.report.answer import Answer
from symacct.rules import find

_PARTS = (
    ("forward", "Forward pass", ("forward", "loss"), "flops.forward"),
    ("backward", "Backward pass", ("backward",), "flops.backward"),
    ("recompute", "Computed again", ("recompute",), ""),
)


@dataclass(frozen=True, slots=True)
class Step:
    """Alike calls of one op in one module: the shapes of its operands, how many calls, each `times` over."""

    module: str
    op: str
    law: str
    shapes: tuple[tuple[Expr, ...], ...]
    times: Expr
    calls: int
    total: Expr


def steps(answer: Answer, phases: tuple[str, ...]) -> list[Step]:
    """What the convention counts in these phases, in the order in which it runs."""
    ledger = answer.ledger
    tensors = ledger.graph.tensors()
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in ledger.entries:
        if entry.phase in phases and ledger.counted(entry) != 0:
            shapes = _shapes(answer, entry, tensors)
            key = (entry.module, entry.op, entry.place.times, shapes, ledger.counted(entry))
            groups.setdefault(key, []).append(entry)
    return [_step(answer, alike, tensors) for alike in groups.values()]


def _step(answer: Answer, alike: list[Entry], tensors: dict[str, Tensor]) -> Step:
    first = alike[0]
    rule = find(first.op)
    law = rule.law if rule else "no rule; its cost stands as a symbol"
    total = answer.under(sp.expand(len(alike) * answer.ledger.counted(first)))
    times = answer.under(first.place.times)
    return Step(first.module, first.op, law, _shapes(answer, first, tensors), times, len(alike), total)


def derivation(answer: Answer) -> Iterator[Block]:
    """A numbered table per pass, and what its lines add up to."""
    number = 0
    for phase, title, phases, key in _PARTS:
        found = steps(answer, phases)
        if not found or (phase == "backward" and answer.ledger.convention.forwards):
            continue
        yield Heading((f"{title}.",), 3)
        rows = [_row(answer, number + at, step) for at, step in enumerate(found, 1)]
        columns = (Column("", 0, True), Column("op and law", 60), Column("comes to", 34))
        yield Table(columns, tuple(rows))
        total = add(step.total for step in found)
        numbers = f"({number + 1})" + (f" to ({number + len(found)})" if len(found) > 1 else "")
        name = Math(name_of(answer, key)) if key else "what is computed again"
        yield Paragraph(
            spans(f"Lines {numbers} add up to ", name, " ", Math(f"= {latex(total, answer.reading)}"), ".")
        )
        number += len(found)
    times = answer.ledger.convention.forwards
    if times and "flops.backward" in answer.formulas:
        said = "twice" if times == 2 else "as much as"
        yield Paragraph((f"By this convention the backward pass counts {said} the forward pass.",))


def _row(answer: Answer, number: int, step: Step) -> tuple[Text, ...]:
    operands = [Math(_shape(answer, shape)) for shape in step.shapes]
    by = [part for at, operand in enumerate(operands) for part in ((" by " if at else " on "), operand)]
    often = f"; {step.calls} calls" if step.calls > 1 else ""
    place = (Code(step.module), ": ") if step.module else ()
    said = spans(*place, Code(step.op), *by, often, ". ", step.law)
    return ((f"({number})",), said, (Math(_made(answer, step)),))


def _made(answer: Answer, step: Step) -> str:
    """The total of a step, what repeats it set apart where that divides it."""
    whole = latex(step.total, answer.reading)
    if step.times.is_Integer or not step.times.free_symbols:
        return whole
    once = sp.expand(step.total / step.times)
    if sp.fraction(sp.together(once))[1].free_symbols & step.times.free_symbols or once.is_Add:
        return whole
    return rf"{latex(step.times, answer.reading)} \cdot {latex(once, answer.reading)}"


def _shape(answer: Answer, shape: tuple[Expr, ...]) -> str:
    return f"({', '.join(latex(dim, answer.reading) for dim in shape)})"


def _shapes(answer: Answer, entry: Entry, tensors: dict[str, Tensor]) -> tuple[tuple[Expr, ...], ...]:
    """The shapes of the first two operands that have more than one axis."""
    found = [
        ref.shape if ref.shape is not None else tensors[ref.value].shape for ref in entry.place.node.refs
    ]
    large = [shape for shape in found if len(shape) > 1] or found
    return tuple(tuple(answer.under(dim) for dim in shape) for shape in large[:2])
