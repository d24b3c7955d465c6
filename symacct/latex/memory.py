"""Memory: the tensors that are kept for the backward pass, and the places where the peak may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Expr

from symacct.account import add, saved_bytes
from symacct.graph import Limit, Placed
from symacct.latex.blocks import (
    Block,
    Code,
    Column,
    Equation,
    Equations,
    Math,
    Paragraph,
    Table,
    Text,
    listed,
    spans,
)
from symacct.latex.closed import MEASURE, equations, name_of
from symacct.latex.formula import TIMES, latex, pieces, written
from symacct.limits import LIMITED
from symacct.report.answer import Answer

_MOST_KEPT = 60
_MOST_PEAKS = 32


def memory(answer: Answer) -> Iterator[Block]:
    """Closed forms in bytes, what is kept and by which op it was made, and the peak."""
    yield Equations(equations(answer, "bytes."))
    if answer.ledger.graph.kept is not None:
        yield from _kept(answer)
    if "bytes.peak" in answer.formulas:
        yield from peak(answer)
    yield from exceptions(answer)


def exceptions(answer: Answer) -> Iterator[Block]:
    """Where kept bytes, gradients or the peak are others: sizes of 1, at which a reshape copies less or more."""
    for key in LIMITED:
        limits = [limit for limit in answer.ledger.graph.limits if limit.key == key]
        if not limits:
            continue
        for limit in limits:
            if limit.more is not None:
                more = Math(written(answer.terms(answer.under(limit.more))))
                yield Paragraph(
                    spans("Where ", _where(answer, limit), ", ", more, " is to be added to ", Math(name_of(answer, key)), ".")
                )
        others = [spans(_where(answer, limit)) for limit in limits if limit.more is None]
        if others:
            yield Paragraph(
                spans("Where ", listed(others, " or "), ", ", Math(name_of(answer, key)), " is another, which only a run tells.")
            )


def _where(answer: Answer, limit: Limit) -> Math:
    return Math(" = ".join(latex(side, answer.reading) for side in limit.sides))


def _kept(answer: Answer) -> Iterator[Block]:
    """A row for all alike tensors that a module's op made; by op alone where those were too many."""
    graph = answer.ledger.graph
    makers = {out.value: (place, out) for place in graph.placed() for out in place.node.outputs}
    rows: dict[tuple[str, ...], list[tuple[str, Expr]]] = {}
    sizes = saved_bytes(graph)
    for deep in (True, False):
        rows.clear()
        for name, size in sizes.items():
            place, out = makers[name]
            shape = TIMES.join(["", *(latex(answer.under(dim), answer.reading) for dim in out.shape)])[2:]
            rows.setdefault(_row(place, out.dtype, shape, deep), []).append((name, answer.under(size)))
        if len(rows) <= _MOST_KEPT:
            break
    yield Paragraph(
        spans(
            "The tensors kept for the backward pass, each storage once, without what the model holds anyway "
            "(parameters, buffers); the bytes of all repetitions together are ",
            Math(name_of(answer, "bytes.saved")),
            ".",
        )
    )
    columns = (Column("kept, by what made it", 52), Column("tensors", 0, True), Column("bytes", 36))
    filled = [(key, members) for key, members in rows.items() if any(size != 0 for _, size in members)]
    yield Table(columns, tuple(_kept_row(answer, key, members) for key, members in filled))


def _row(place: Placed, dtype: str, shape: str, deep: bool) -> tuple[str, ...]:
    node = place.node
    return (node.module, node.label or node.op, dtype, shape) if deep else ("", node.op, dtype, "")


def _kept_row(answer: Answer, key: tuple[str, ...], members: list[tuple[str, Expr]]) -> tuple[Text, ...]:
    module, op, dtype, _ = key
    made = spans(*((Code(module), " ") if module else ()), Code(op), ", ", dtype)
    total = add(size for _, size in members)
    return (made, (str(len(members)),), (Math(latex(total, answer.reading)),))


def peak(answer: Answer) -> Iterator[Block]:
    """The places that may hold the peak; where they are many, the one that leads at the sizes at hand."""
    graph = answer.ledger.graph
    nodes = {place.node.name: place for place in graph.placed()}
    found = [(nodes[name], answer.under(live)) for name, live in graph.peak or ()]
    left = name_of(answer, "bytes.peak")
    if len(found) == 1:
        yield Equations(
            (
                Equation(
                    left, tuple(pieces(answer.terms(found[0][1]), MEASURE)), found[0][1], {}, "bytes.peak"
                ),
            )
        )
        return
    shown = found if len(found) <= _MOST_PEAKS else [max(found, key=lambda pair: answer.weight(pair[1]))]
    where = "the sizes above" if answer.sizes else "the sizes of the trace"
    what = (
        f" is the largest of what is alive at {len(found)} places, one of which leads at any sizes."
        if shown == found
        else f" is the largest of what is alive at {len(found)} places; what leads at {where} is shown, "
        "and nowhere is the peak below it."
    )
    yield Paragraph(spans("The peak ", Math(left), what))
    yield Table((Column("while this runs", 34), Column("bytes alive", 66)), tuple(_places(answer, shown)))


def _places(answer: Answer, found: Iterable[tuple[Placed, Expr]]) -> Iterator[tuple[Text, ...]]:
    for place, live in found:
        node = place.node
        where = spans(
            f"{node.phase}: ", *((Code(node.module), " ") if node.module else ()), Code(node.label or node.op)
        )
        yield (where, (Math(written(answer.terms(live))),))
