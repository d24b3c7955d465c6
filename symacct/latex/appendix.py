"""The appendix of a paper, section by section, and the short form of it that `derive` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sympy import Expr

from symacct.account import add
from symacct.certificate import Certificate
from symacct.latex.blocks import (
    Block,
    Code,
    Column,
    Equations,
    Heading,
    Math,
    Paragraph,
    Table,
    Text,
    listed,
    spans,
)
from symacct.latex.closed import QUANTITIES, counted, equations, name_of, shown
from symacct.latex.formula import condition, latex, spelled, written
from symacct.latex.memory import exceptions, memory, peak
from symacct.latex.steps import derivation
from symacct.report.answer import Answer
from symacct.report.breakdown import Part, forward_parts, parts_by, runs
from symacct.report.numbers import grouped, share
from symacct.report.relations import relations
from symacct.report.tokens import tokens_of
from symacct.rules import find
from symacct.symbols import meaning_of

_NAMES = ("module", "op")
_MODES = {
    "train": "a training step",
    "forward": "a forward pass",
    "prefill": "prefill",
    "decode": "decoding one token",
}


def appendix(
    answer: Answer, certificate: Certificate | None = None, more: Sequence[Block] = ()
) -> list[Block]:
    """Everything: notation, conditions, convention, closed forms and after them `more`, tables, derivation,
    memory, certificate.
    """
    return [
        *_opening(answer),
        *notation(answer, True),
        Heading(("Closed forms",)),
        *_closed(answer),
        *more,
        Heading(("By module and by op",)),
        *by_module(answer),
        *by_op(answer),
        Heading(("Derivation",)),
        *derivation(answer),
        Heading(("Memory",)),
        *memory(answer),
        *(_certified(certificate) if certificate is not None else ()),
    ]


def short(answer: Answer, by: Sequence[str] = (), more: Sequence[Block] = ()) -> list[Block]:
    """Notation, conditions, closed forms and the table of modules, or of parts by these keys."""
    return [
        *_opening(answer),
        *notation(answer, False),
        *_closed(answer),
        *more,
        Equations(equations(answer, "bytes.")),
        *(peak(answer) if "bytes.peak" in answer.formulas else ()),
        *exceptions(answer),
        *(by_keys(answer, by) if by else by_module(answer)),
    ]


def _opening(answer: Answer) -> Iterator[Block]:
    graph, convention = answer.ledger.graph, answer.ledger.convention
    mode = _MODES.get(graph.mode, graph.mode) + (f" ({graph.variant})" if graph.variant else "")
    yield Heading(spans("The cost of ", Code(graph.target)), 1)
    named = "" if convention.name == "symacct" else f", as {convention.name} counts ({convention.source})"
    yield Paragraph(
        spans(
            f"What {mode} of ",
            Code(graph.target),
            " costs, derived from its code by running it on symbolic sizes: "
            f"{len(graph.ops)} ops, each priced by a rule. Convention: {convention.line}{named}. "
            f"Memory is that of {graph.device} kernels.",
        )
    )
    unknown = answer.ledger.unknown
    if unknown:
        ops = listed([(Code(op.op),) for op in unknown])
        yield Paragraph(spans("Without a rule, and in the totals as symbols: ", ops, "."))


def notation(answer: Answer, quantities: bool) -> Iterator[Block]:
    """A table of the sizes and the quantities, and the conditions on the sizes."""
    graph, unit = answer.ledger.graph, answer.ledger.convention.unit
    rows: list[tuple[Text, ...]] = []
    for name, info in graph.symbols.items():
        value = grouped(answer.sizes[name]) if name in answer.sizes else ""
        rows.append(((Math(spelled(name)),), (info.meaning or f"the size {name}",), (value,)))
    for key in shown(answer) if quantities else ():
        value = grouped(answer.values[key]) if key in answer.values and answer.sizes else ""
        rows.append(((Math(name_of(answer, key)),), (QUANTITIES[key][1].format(unit=unit),), (value,)))
    yield Table(
        (Column("symbol"), Column("meaning", 55), Column("value", 0, True))[: 3 if answer.sizes else 2],
        tuple(row if answer.sizes else row[:2] for row in rows),
    )
    told = [(info.meaning, meaning_of(name)) for name, info in graph.symbols.items() if info.meaning]
    if told and not graph.values and all(meaning == usual for meaning, usual in told):
        yield Paragraph(("The model tells no meanings: these are what such names usually stand for.",))
    held = conditions(answer)
    if held:
        yield Paragraph(spans("The formulas hold where ", listed(held, "; "), "."))


def conditions(answer: Answer) -> list[Text]:
    """Each condition with where it comes from, given relations last."""
    found = []
    for own in answer.ledger.graph.assumptions:
        where = spans(" (asked at ", Code(own.source), ")") if own.source else ()
        found.append(spans(Math(condition(own)), *where))
    names = answer.ledger.graph.symbols
    for text in answer.relations.texts:
        given = relations([text], names)
        said = [condition(a) for a in given.conditions] + [
            f"{spelled(left.name)} = {latex(right, answer.reading)}" for left, right in given.replaced.items()
        ]
        found += [spans(Math(one), " (given)") for one in said]
    return found


def _closed(answer: Answer) -> Iterator[Block]:
    yield Equations((*equations(answer, "params."), *equations(answer, "flops.")))
    tokens = tokens_of(answer, answer.formulas["flops.step"]) if "flops.step" in answer.formulas else None
    if tokens is not None:
        yield Paragraph(counted(answer, tokens))


def by_module(answer: Answer) -> Iterator[Block]:
    """The forward pass by module, widest first."""
    rows: list[tuple[Text, ...]] = []
    parts = forward_parts(answer)
    whole = add(part.total for part in parts)
    for part in parts:
        times = r"\Sigma" if part.times is None else written(runs(answer, part.times))
        name, _, what = part.key[0].partition("  ")
        label = spans(name if name.startswith("(") else Code(name), f" {what}" if what else "")
        rows.append(
            (label, (Math(times),), (Math(latex(part.once, answer.reading)),), (_share(answer, part, whole),))
        )
    unit = answer.ledger.convention.unit
    yield Paragraph(("The forward pass by module: how often each runs, and what one run costs.",))
    yield Table(
        *_valued(
            answer, (Column("module", 40), Column("runs"), Column(f"{unit}s of one run, forward", 35)), rows
        )
    )


def by_op(answer: Answer) -> Iterator[Block]:
    """The whole step by op, with the law of each."""
    parts = parts_by(answer, ("op",))
    whole = add(part.total for part in parts)
    rows: list[tuple[Text, ...]] = []
    for part in parts:
        rule = find(part.key[0])
        said = spans(Code(part.key[0]), f". {rule.law}" if rule else "")
        rows.append((said, (Math(latex(part.total, answer.reading)),), (_share(answer, part, whole),)))
    unit = answer.ledger.convention.unit
    yield Paragraph((f"The whole step by op{_remark(answer)}, with the law that prices each.",))
    yield Table(*_valued(answer, (Column("op and law", 48), Column(f"{unit}s of the step", 38)), rows))


def _remark(answer: Answer) -> str:
    """What the ops of a step hold, where that is not what the convention calls a step."""
    convention = answer.ledger.convention
    found = [", the optimizer's ops included"] if convention.count == "all" else []
    told = convention.forwards and answer.ledger.graph.mode == "train"
    return "".join([*found, ", the backward pass as traced" if told else ""])


def by_keys(answer: Answer, keys: Sequence[str]) -> Iterator[Block]:
    """The whole step by these keys, widest first."""
    parts = parts_by(answer, keys)
    whole = add(part.total for part in parts)
    rows = []
    for part in parts:
        words = [_named(key, word) for key, word in zip(keys, part.key, strict=True)]
        rows.append((*words, (Math(latex(part.total, answer.reading)),), (_share(answer, part, whole),)))
    names = [key for key in keys if key in _NAMES]
    heads = tuple(Column(key, 46 // len(names) if key in names else 0) for key in keys)
    unit, room = answer.ledger.convention.unit, 34 - 8 * (len(keys) - len(names) > 1)
    yield Table(*_valued(answer, (*heads, Column(f"{unit}s of the step", room)), rows))


def _named(key: str, word: str) -> Text:
    if key not in _NAMES:
        return (word or "none",)
    return (Code(word),) if word else ("the model itself" if key == "module" else "none",)


def _valued(
    answer: Answer, columns: tuple[Column, ...], rows: list[tuple[Text, ...]]
) -> tuple[tuple[Column, ...], tuple[tuple[Text, ...], ...]]:
    """The table with its last cells, the shares, if there are numbers to make them of."""
    if answer.sizes:
        return (*columns, Column("share", 0, True)), tuple(rows)
    return columns, tuple(row[:-1] for row in rows)


def _share(answer: Answer, part: Part, whole: Expr) -> str:
    mine, all_ = (answer.number(e) for e in (part.total, whole)) if answer.sizes else (None, None)
    return "" if mine is None or all_ is None else share(mine, all_)


def _certified(certificate: Certificate) -> Iterator[Block]:
    yield Heading(("Certificate",))
    quantities = ", ".join(dict.fromkeys(check.quantity for check in certificate.checks))
    failed = len(certificate.failures)
    verdict = "all of them agree exactly" if certificate.verified else f"{failed} of them disagree"
    yield Paragraph(
        (
            f"Compared with executions at {_counted(len(certificate.points), 'point')}, "
            f"{_counted(len(certificate.checks), 'check')} "
            f"({quantities}): {verdict}.",
        )
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
