"""The answer of `plan`: what fits on a card, the largest size that does, time, cost, and what each remedy
would change.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from symacct.evaluation import evaluate
from symacct.plan.bound import bound
from symacct.plan.fitting import ABOVE, BELOW, EXACT, Form, Solution
from symacct.plan.planning import Plan
from symacct.plan.ranks import GATHERED, WHOLE_FOR_A_WHILE, Fewest
from symacct.plan.remedies import Remedy
from symacct.plan.roofline import Roofline
from symacct.report.answer import Answer
from symacct.report.bounding import bounded
from symacct.report.divided import hops, links, styles
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import flops, grouped, share, size
from symacct.report.planned_formulas import bracketed, closed, limit_name, plainly, written
from symacct.report.planned_time import serving, training
from symacct.report.rates import rate
from symacct.report.summary import conditions, headline, sizes, totals

_INDENT = 13
_ROWS = (
    Column("quantity"),
    Column("formula", "formula"),
    Column("value", "right"),
    Column("of the card", "right"),
)


def as_text(plan: Plan, answer: Answer, page: Page, roof: Roofline | None = None) -> None:
    """Card, sizes and conditions, then memory, the solved size, time, what bounds it, and remedies."""
    page.line(headline(answer), "bold")
    page.hanging("card", card(plan), _INDENT, " · ")
    page.hanging("sizes", sizes(answer), _INDENT, " · ")
    if conditions(answer):
        page.hanging("holds when", conditions(answer), _INDENT, ",  ")
    for note in plan.notes:
        page.hanging("note", [note], _INDENT)
    page.line()
    page.line(
        f"memory of {'one card' if plan.rank is None else holder(plan.fit.form).partition(' as ')[0]}", "bold"
    )
    page.grid(memory(plan, answer), heading=False)
    page.line(verdict(plan), "bold")
    if plan.fewest is not None:
        page.line()
        page.line(f"the fewest {plan.fewest.size.name}", "bold")
        for line in fewest(plan, plan.fewest, answer):
            page.hanging("", [line], 2)
    if plan.solution is not None:
        page.line()
        page.line(f"the largest {plan.solution.solved.size}", "bold")
        for line in solved(plan, plan.solution, answer):
            page.hanging("", [line], 2)
    if plan.training is not None or plan.served is not None:
        page.line()
        page.line("time" if plan.training is not None else "serving", "bold")
        page.grid(
            training(plan, answer) if plan.training is not None else serving(plan, answer), heading=False
        )
    if plan.links:
        page.line()
        page.line("over the links", "bold")
        page.grid(links(plan, answer))
        if hops(plan):
            page.line(hops(plan))
    found = bound(plan, roof)
    if found is not None:
        page.line()
        page.hanging("", [bounded(found, plan.rank is not None)], 0)
    if plan.torch is not None:
        page.line()
        styles(plan.torch, page, answer)
    if plan.remedies:
        page.line()
        page.grid(remedies(plan, answer))


def card(plan: Plan) -> list[str]:
    """The card's name and figures, and where they come from."""
    device = plan.question.card
    asked = f" (asked for as {device.asked})" if device.asked not in ("", device.name) else ""
    found = [f"{device.name}{asked}", f"{gigabytes(device.memory or 0)} of memory"]
    if device.bandwidth:
        found.append(rate(device.bandwidth, "B"))
    found.append(f"{rate(device.peak(plan.precision), 'FLOP')} in {plan.precision}, dense")
    if plan.question.cards > 1:
        found.append(f"{grouped(plan.question.cards)} of them")
    return [*found, *([f"source: {device.source}"] if device.source else [])]


def gigabytes(count: int) -> str:
    """`80 GB` where the bytes are whole gigabytes, as a card's are."""
    return f"{count // 10**9:,} GB" if count % 10**9 == 0 else size(count)


def holder(form: Form) -> str:
    """The rank that a form of a divided step is about."""
    stage, _, moment = form.phase.partition(", ")
    name = f"the {stage}" if stage.endswith("stage") else stage
    return f"{name} {moment}".strip()


# Memory


def memory(plan: Plan, answer: Answer) -> Grid:
    """Bytes by kind, then the peak, each with its share of the card."""
    if plan.rank is not None:
        return Grid(_ROWS, tuple(_of_rank(plan, answer)))
    limit = plan.fit.memory
    labels = {"parameters": None, "peak memory": plan.fit.need, **plan.fit.kinds}
    rows: list[tuple[str, ...]] = []
    last: list[tuple[str, ...]] = []
    taken = ""
    for label, name, formula, value in totals(answer).rows:
        taken = label or (taken if formula else "")
        if taken in labels:
            row = (f"{label} {name}".rstrip(), formula, value, _share(labels.get(label), limit))
            (last if taken == "peak memory" else rows).append(row)
    return Grid(_ROWS, (*rows, *(last if plan.demand.exact else (_peak(plan, answer),))))


def _of_rank(plan: Plan, answer: Answer) -> Iterator[tuple[str, ...]]:
    limit = plan.fit.memory
    for kind, formula in plan.demand.kinds.items():
        number = plan.fit.kinds[kind]
        yield kind, f"{'≤' if kind in (GATHERED, WHOLE_FOR_A_WHILE) else '='} {written(formula, answer)}", size(int(number)), _share(number, limit)
    yield _peak(plan, answer)


def _peak(plan: Plan, answer: Answer) -> tuple[str, ...]:
    bound = "" if plan.demand.exact else f", {plan.demand.bound}"
    formula = f"= {written(plan.fit.form.bytes, answer)}"
    return f"peak{bound}", formula, size(int(plan.fit.need)), _share(plan.fit.need, plan.fit.memory)


def _share(number: int | Fraction | None, limit: int) -> str:
    return share(int(number), limit) if number is not None else ""


def verdict(plan: Plan) -> str:
    """Whether it fits, and by how much."""
    found, bound, limit = plan.fit, plan.demand.bound, gigabytes(plan.fit.memory)
    if not plan.demand.exact and found.fits == (bound == BELOW):
        fits = "may fit" if found.fits else "may not fit"
        return f"{fits}: {bound} {size(int(found.need))} of {limit} are needed"
    if found.fits:
        return f"fits: {size(int(found.memory - found.need))} of {limit} are left"
    return f"does not fit: {size(int(found.short))} more than {limit}"


# Solving


def solved(plan: Plan, solution: Solution, answer: Answer) -> Iterator[str]:
    """The inequality, the integer, and what stops the next one."""
    found, limit = solution.solved, plan.fit.memory
    name = found.size
    if solution.closed is not None:
        yield from closed(solution.closed, answer, limit)
    if found.number is None:
        least = f"not even {name} = {grouped(found.smallest)} fits"
        yield f"{least}: short by {size(int(found.short))}"
        if plan.enough is not None:
            dp, number = plan.enough.size.name, plan.enough.number
            named = f"with which {name} = {grouped(found.smallest)} fits"
            some = f"{dp} = {grouped(number or 0)} is the fewest {named}"
            yield f"no {dp} is enough for it" if number is None else some
    elif found.binding is None and found.next is None:
        yield f"every {name} fits, however large"
    else:
        said = {
            EXACT: "is the largest",
            BELOW: "is a bound: none above fits",
            ABOVE: "fits; a larger one may",
        }
        yield f"{name} = {grouped(found.number)} {said[plan.demand.bound]}"
    if solution.condition:
        yield f"a larger {name} breaks {solution.condition}"
    elif solution.form is not None:
        over = "is over the bound in" if plan.demand.bound == ABOVE else "is stopped by"
        stopped = f"{name} = {grouped(found.next or found.smallest)} {over}"
        by = (
            f"the peak at {solution.form.place}"
            if solution.form.op
            else f"the peak of {holder(solution.form)}"
        )
        yield f"{stopped} {by}; the largest kind is {solution.kind}"
    if found.gaps:
        yield f"not every smaller {name} fits: {name} = {', '.join(map(grouped, found.gaps[:3]))} does not"
    if found.tried is not None:
        yield f"each {name} up to {grouped(found.tried)} was tried: the formula may rise and fall"


def fewest(plan: Plan, found: Fewest, answer: Answer) -> Iterator[str]:
    """The data-parallel ranks as a solved inequality, and their number."""
    name, letter = found.size.name, limit_name(answer)
    over, rest = written(found.over, answer), bracketed(written(found.rest, answer))
    yield f"{name} ≥ {bracketed(over)}/({letter} - {rest}),  for {holder(found.form)}"
    yield f"{letter} = {grouped(plan.fit.memory)} B"
    if found.number is None:
        yield f"no {name} is enough: what is not divided does not fit by itself"
    else:
        yield f"{name} = {grouped(found.number)} is the fewest, {grouped(plan.question.cards)} cards in all"


# Remedies


def remedies(plan: Plan, answer: Answer) -> Grid:
    """What each remedy would change: the formula that a kind of bytes becomes, and the peak."""
    columns = (
        Column("remedy"),
        Column("becomes", "formula"),
        Column("peak", "right"),
        Column("saves", "right"),
    )
    return Grid(columns, tuple(row for remedy in plan.remedies for row in _remedy(plan, remedy, answer)))


def _remedy(plan: Plan, remedy: Remedy, answer: Answer) -> Iterator[tuple[str, ...]]:
    formula = (
        f"{remedy.kind} = {written(remedy.becomes, answer)}" if remedy.becomes is not None else remedy.how
    )
    peak = saved = ""
    if remedy.peak is not None:
        bound = {EXACT: "", BELOW: "≥ ", ABOVE: "≤ "}[remedy.bound]
        peak = f"{bound}{_short(remedy.peak)}"
        saved = _saved(int(plan.fit.need - remedy.peak), remedy.bound)
    yield remedy.name, formula, peak, saved
    if remedy.becomes is not None:
        yield "", _amounts(plan, remedy), "", ""
        if remedy.how:
            yield "", remedy.how, "", ""
    if remedy.more is not None:
        number = int(evaluate(remedy.more, plan.sizes))
        who, way = "" if plan.rank is None else " of a rank", "more" if number >= 0 else "less"
        formula = written(remedy.more if number >= 0 else -remedy.more, answer, plainly)
        yield "", f"and {flops(abs(number))} {way} a step{who}: {formula}", "", ""


def _amounts(plan: Plan, remedy: Remedy) -> str:
    """What the kind is now and what it becomes, and where."""
    now = sum(int(number) for kind, number in plan.fit.kinds.items() if kind in remedy.kinds)
    at = ", ".join(f"{name} = {grouped(number)}" for name, number in remedy.sizes.items())
    became = remedy.bytes(plan.sizes)
    assert became is not None
    return f"{_short(now)} → {_short(became)}{f' at {at}' if at else ''}"


def _short(count: int) -> str:
    return size(count).partition(" (")[0]


def _saved(count: int, bound: str) -> str:
    """Bytes that a remedy takes off the peak, or adds to it; of a peak from above, no more than may be said."""
    if count > 0:
        return _short(count)
    if bound == ABOVE:
        return "none for sure"
    return f"costs {_short(-count)}" if count else "nothing"
