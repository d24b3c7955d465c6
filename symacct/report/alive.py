"""`explain --peak`: where a step may need most memory, what is alive there by kind, and which place leads
where."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.account import add
from symacct.domain import Domain
from symacct.errors import GraphError, TraceError
from symacct.graph import Assumption, Node
from symacct.liveness import KINDS, Moment, Timeline, first_step, first_step_at, kinds, timeline
from symacct.report.answer import Answer
from symacct.report.explained import place_text, to_text_or_str
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped, share, size
from symacct.report.readable import text
from symacct.smallest import holds_at, unfolded_peak
from symacct.symbols import symbol

_TRIES = 300
_LARGEST = 1 << 24
_WHERE = {0: "first", 1: "second", -2: "last but one", -1: "last"}


@dataclass(frozen=True, slots=True)
class Form:
    """One place that may hold the peak: the moment, what is alive there in bytes, and sizes at which it
    leads."""

    number: int
    moment: Moment
    bytes: Expr
    leads: Mapping[str, int] | None


class Peak:
    """The forms of a graph's peak under an answer's relations, and which of them leads where."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.graph = answer, answer.ledger.graph
        self.timeline: Timeline = timeline(self.graph)
        self.nodes: dict[str, Node] = {place.node.name: place.node for place in self.graph.placed()}
        if self.graph.peak is None:
            raise GraphError(
                f"{self.graph.target}: live bytes follow no rule, so no place is known to hold the peak"
            )

    @property
    def here(self) -> dict[str, int]:
        """The sizes at hand: those asked for, else those of the trace."""
        return {
            name: self.answer.sizes.get(name, info.traced_at) for name, info in self.graph.symbols.items()
        }

    @cached_property
    def number(self) -> int | None:
        """The peak at hand: that of the leading form, or of the step unfolded where a depth is too small for
        the forms; None where only a run tells."""
        if holds_at(self.graph, self.here):
            return int(_at(self.forms[0].bytes, self.here))
        return unfolded_peak(self.graph, self.here)

    @property
    def fits(self) -> bool:
        """Whether the leading form is the peak at hand."""
        return self.number == _at(self.forms[0].bytes, self.here)

    @property
    def free(self) -> list[str]:
        """The sizes that no relation tells from others."""
        return [name for name in self.graph.symbols if symbol(name) not in self.answer.relations.replaced]

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """All that no other form is proved to reach, the leading one at the sizes at hand first."""
        found = [(moment, self.answer.under(live)) for moment, live in self._moments()]
        found.sort(key=lambda pair: -_at(pair[1], self.here))
        seen = self._leading([live for _, live in found])
        return tuple(Form(k + 1, moment, live, seen.get(k)) for k, (moment, live) in enumerate(found))

    def _moments(self) -> list[tuple[Moment, Expr]]:
        """A moment for each form of the graph's peak: of those beside the ends of a loop it has no other."""
        told = {live for _, live in self.graph.peak or ()}
        found: dict[Expr, Moment] = {}
        ends = self.timeline.candidates(among=lambda moment: not moment.beside)
        for moment, live in (*ends, *self.timeline.candidates(among=lambda moment: moment.beside)):
            found.setdefault(live, moment)
        if told <= found.keys():
            return [(moment, live) for live, moment in found.items() if live in told]
        return list(self.timeline.candidates())

    def _leading(self, lives: Sequence[Expr]) -> dict[int, Mapping[str, int]]:
        """For each form sizes at which it leads, of those tried: the sizes at hand, and random ones of the
        domain."""
        found: dict[int, Mapping[str, int]] = {0: self.here} if holds_at(self.graph, self.here) else {}
        test = _compiled(lives)
        for point in self._points():
            values = test(point)
            found.setdefault(max(range(len(lives)), key=lambda k: values[k]), point)
        return found

    def _points(self) -> Iterator[Mapping[str, int]]:
        rng = random.Random(5)
        points = (
            next(self._domain.points(rng.randrange(1 << 30), high=1 << rng.randint(2, 17)))
            for _ in range(_TRIES)
        )
        try:
            yield from points
        except (TraceError, RuntimeError):
            return

    @cached_property
    def _domain(self) -> Domain:
        """The sizes that the model and the relations allow."""
        given = self.answer.relations
        told = [Assumption("equal", size, expr, "--given") for size, expr in given.replaced.items()]
        domain = self.answer.ledger.domain
        return Domain(domain.names, (*domain.assumptions, *told, *given.conditions))

    def alive(self, form: Form) -> dict[str, list[tuple[str, Expr]]]:
        """What is alive at a form's moment: by kind, each value with its bytes."""
        kind = kinds(self.graph)
        found: dict[str, list[tuple[str, Expr]]] = {name: [] for name in KINDS}
        for value, count in self.timeline.live(form.moment).items():
            found[kind[value]].append((value, self.answer.under(count * self.graph.storages[value])))
        return {name: rows for name, rows in found.items() if rows}

    def along(self, name: str) -> list[tuple[int, int]]:
        """As this size grows from 1 and the others stay as at hand: (from which value on, which form leads).
        """
        test = _compiled([form.bytes for form in self.forms])

        def leader(value: int) -> int:
            values = test({**self.here, name: value})
            return max(range(len(values)), key=lambda k: values[k])

        found, low = [(1, leader(1))], 1
        while low < _LARGEST:
            high = max(low + 1, low * 5 // 4)
            now = leader(high)
            if now != found[-1][1]:
                below, above = low, high
                while above - below > 1:
                    middle = (below + above) // 2
                    below, above = (middle, above) if leader(middle) == found[-1][1] else (below, middle)
                found.append((above, leader(above)))
                high = above
            low = high
        most = self._most(name)
        return [(start, self.forms[k].number) for start, k in found if start <= most]

    def _most(self, name: str) -> int:
        """The largest that this size can be beside the others at hand: one that divides them is no larger."""
        numbers = {symbol(n): sp.Integer(v) for n, v in self.here.items() if n != name}
        divided = [
            a.left.xreplace(numbers)
            for a in self._domain.assumptions
            if a.kind == "divides" and symbol(name) in a.right.free_symbols - a.left.free_symbols
        ]
        return int(min([whole for whole in divided if whole.is_Integer], default=_LARGEST))


def _at(expr: Expr, sizes: Mapping[str, int]) -> Any:
    return expr.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()})


def _compiled(exprs: Sequence[Expr]) -> Any:
    names = sorted({s.name for e in exprs for s in e.free_symbols})
    test = sp.lambdify([symbol(n) for n in names], list(exprs), modules="math", cse=True)
    return lambda sizes: test(*(sizes[n] for n in names))


def as_text(answer: Answer, page: Page) -> None:
    """The leading form with all that is alive there, the other forms, and where each leads."""
    peak = Peak(answer)
    forms, here = peak.forms, "the sizes asked for" if answer.sizes else "the sizes of the trace"
    page.hanging(
        "",
        [
            "where a step needs most memory: bytes of all storages alive, kernel workspaces and allocator "
            "rounding outside"
        ],
        0,
    )
    page.line()
    if peak.fits:
        page.line(f"at {here}: form 1 of {len(forms)}" if len(forms) > 1 else "one form at all sizes", "bold")
        page.hanging("  while", [_moment(peak, forms[0].moment)], 9)
        page.hanging("  alive", [_amount(answer, peak, forms[0].bytes)], 9)
    else:
        page.line(f"at {here}: no form, as regions hardly repeat at such depths", "bold")
        page.hanging("  alive", [_bytes(peak.number) if peak.number is not None else "only a run tells"], 9)
    _first_step(answer, peak, page)
    if peak.fits:
        page.line()
        page.grid(_composition(answer, peak, forms[0]))
    if len(forms) > 1:
        page.line()
        page.line("which form leads as one size grows and the others stay", "bold")
        for name in peak.free:
            parts = [
                f"{'from ' + grouped(start) if start > 1 else 'from 1'}: form {number}"
                for start, number in peak.along(name)
            ]
            page.hanging(f"  {name}", parts, 9, joint=", ")
        page.line()
        page.grid(_table(answer, peak))
        nowhere = sum(form.leads is None for form in forms)
        if nowhere:
            page.hanging(
                "",
                [
                    f"{nowhere} more led at none of {_TRIES} sizes tried, but nothing proves that they "
                    "never do"
                ],
                0,
            )


def _first_step(answer: Answer, peak: Peak, page: Page) -> None:
    graph = peak.graph
    if graph.mode != "train":
        return
    places = first_step(graph)
    if places is None:
        page.hanging("  first", ["the first step's own peak follows no rule"], 9)
        return
    best = max((answer.under(live) for _, live in places), key=lambda e: _at(e, peak.here))
    number = first_step_at(graph, peak.here)
    amount = _amount(answer, peak, best)
    if number is not None and number != _at(best, peak.here):  # a depth so small that no form holds
        amount = _bytes(number)
    page.hanging("  first", [f"the first step, with no optimizer state before it: {amount}"], 9)


def _amount(answer: Answer, peak: Peak, expr: Expr) -> str:
    return f"{text(answer.terms(expr))} bytes = {size(int(_at(expr, peak.here)))}"


def _bytes(number: int) -> str:
    return f"{grouped(number)} bytes = {size(number)}"


def _moment(peak: Peak, moment: Moment) -> str:
    """The place of a moment in words: `aten.mm in the last repetition, backward (head, gpt.py:30)`."""
    node = peak.nodes[moment.node]
    loops = " of ".join(f"the {_WHERE[end]} repetition" for end in reversed(moment.corner))
    return f"{node.phase}: {place_text(node)}" + (f", in {loops}" if loops else "")


def _composition(answer: Answer, peak: Peak, form: Form) -> Grid:
    """A row a kind and, within, a row an alike group of tensors; bytes at the sizes at hand."""
    whole = int(_at(form.bytes, peak.here))
    rows = []
    for kind, values in peak.alive(form).items():
        total = add(live for _, live in values)
        number = int(_at(total, peak.here))
        rows.append((kind, text(answer.terms(total)), size(number), share(number, whole)))
    return Grid(
        (
            Column("alive there"),
            Column("bytes", "formula"),
            Column("there", "right"),
            Column("share", "right"),
        ),
        tuple(rows),
    )


def _table(answer: Answer, peak: Peak) -> Grid:
    rows = []
    for form in peak.forms:
        if form.leads is not None:
            here = form.number == 1 and peak.fits
            sizes = "here" if here else ", ".join(f"{n}={v}" for n, v in form.leads.items())
            rows.append(
                (f"form {form.number}", _moment(peak, form.moment), text(answer.terms(form.bytes)), sizes)
            )
    columns = (
        Column("form"),
        Column("while", "text"),
        Column("bytes alive", "formula"),
        Column("leads for example at", "text"),
    )
    return Grid(columns, tuple(rows))


def as_json(answer: Answer) -> str:
    """The forms, the composition at the leading one, and which form leads along each size."""
    peak = Peak(answer)
    graph = peak.graph
    first = peak.forms[0]
    places = first_step(graph)
    made: dict[str, Any] = {
        "target": graph.target,
        "mode": graph.mode,
        "sizes": peak.here,
        "bytes": peak.number,
        "forms": [
            {
                "form": f.number,
                "node": f.moment.node,
                "corner": [_WHERE[c] for c in f.moment.corner],
                "where": _moment(peak, f.moment),
                "bytes": to_text_or_str(f.bytes),
                "leads_at": f.leads,
            }
            for f in peak.forms
        ],
        "alive": {
            kind: [
                {"value": value, "made_by": place_text(_maker(peak, value)), "bytes": to_text_or_str(live)}
                for value, live in rows
            ]
            for kind, rows in (peak.alive(first) if peak.fits else {}).items()
        },
        "along": {
            name: [{"from": start, "form": number} for start, number in peak.along(name)]
            for name in peak.free
        },
        "first_step": None
        if places is None
        else [to_text_or_str(answer.under(live)) for _, live in places],
    }
    return json.dumps(made, indent=2, ensure_ascii=False)


def _maker(peak: Peak, value: str) -> Node:
    return peak.nodes[value.split(".")[0]]
