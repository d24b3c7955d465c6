"""The parts of the answer of `plan` that speak of time: training, utilisation, serving, cost."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from sympy import Expr

from symacct.evaluation import evaluate
from symacct.plan.bound import most_mfu, work
from symacct.plan.planning import Plan
from symacct.plan.training_time import PER_TOKEN, Run
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid
from symacct.report.numbers import flops, grouped, size
from symacct.report.planned_formulas import added, written
from symacct.report.rates import digits, duration, percent
from symacct.report.readable import text

_COLUMNS = (Column("quantity"), Column("formula", "formula"), Column("value", "right"))


def training(plan: Plan, answer: Answer) -> Grid:
    """FLOPs, time at the peak and at the share of it that was said, cost, and what a measured rate comes
    to.
    """
    found, question = plan.training, plan.question
    assert found is not None
    rows, most = [*_work(plan, answer), *_ranks(plan, answer)], most_mfu(plan)
    count, where = found.run.cards, "n·peak" if found.run.cards > 1 else "peak"
    named = f"n = {grouped(count)} cards, " if count > 1 else ""
    if found.run.busiest is None:
        how = f"= FLOPs/({where})" if count > 1 else "= FLOPs/peak"
        evenly = ", as if all ranks had as much to do" * (plan.rank is not None)
        rows.append(("at the peak", how + evenly, duration(found.run.seconds)))
    elif question.amount is not None:
        rows.append(("at the peak", "= so long for each of the steps", duration(found.run.seconds)))
    chosen = found.at_mfu or found.run
    if found.at_mfu is not None:
        label = f"at {'measured ' * (question.mfu is None)}MFU {percent(found.at_mfu.mfu)}"
        rows.append((label, f"= FLOPs/({where}·MFU)", duration(found.at_mfu.seconds)))
        if most is not None and most < found.at_mfu.mfu:
            rows.append(("", "less than kernels of a rank take at the peak: the MFU is at most", percent(most)))
    if question.amount is not None:
        rows.append(
            ("card-hours", f"= n·time,  {named.rstrip(', ')}" if count > 1 else "= time", _hours(chosen))
        )
    if question.price is not None:
        rows.append(("cost", f"= card-hours·{digits(question.price)}", digits(chosen.cost(question.price))))
    if found.in_time is not None and question.days is not None:
        label, side = f"in {spelled(question.days)} days", question.side_by_side
        how = f"n = ⌈FLOPs/(time·{'peak·MFU' if found.at_mfu is not None else 'peak'})⌉"
        if plan.rank is not None:
            times = f"{grouped(side)}·" * (side > 1)
            how = f"n = {grouped(count // side)}·⌈{times}time/days⌉, whole replicas"
        rows.append((label, how, f"{grouped(found.in_time)} cards"))
    rows += _measured(plan, most)
    return Grid(_COLUMNS, tuple(rows))


def _ranks(plan: Plan, answer: Answer) -> Iterator[tuple[str, str, str]]:
    """What the rank with most to do does in a step, recomputing too, and how long it waits in a pipeline."""
    rank, found = plan.rank, plan.training
    if rank is None or found is None or found.rank is None:
        return
    number = Fraction(evaluate(found.rank, plan.sizes))
    yield "a rank does", f"= {written(found.rank, answer)}", flops(int(number))
    yield from _skipped(plan)
    idle = Fraction(evaluate(rank.idle, plan.sizes))
    waits = (
        f"·(1 + idle),  idle = {str(rank.idle).replace('*', '·')} = {percent(idle)}" if rank.idle != 0 else ""
    )
    alone = plan.question.amount is None and found.run.busiest is not None
    label, how = ("at the peak", "") if alone else ("", "a step at the peak, ")
    yield label, f"{how}= a rank's FLOPs/peak{waits}", duration(number / found.run.peak * (1 + idle))


def _skipped(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """FLOPs that kernels execute, where those that are counted have a causal mask's square."""
    made = work(plan)
    if made.masked:
        yield "", "executed by kernels, which skip pairs behind a causal mask", flops(int(made.flops))


def _hours(run: Run) -> str:
    return f"{digits(run.card_hours)} h"


def _work(plan: Plan, answer: Answer) -> Iterator[tuple[str, str, str]]:
    found, question = plan.training, plan.question
    assert found is not None
    chosen = found.step[found.chosen]
    how = "" if found.chosen == "exact" else f" by {found.chosen}"
    number = Fraction(evaluate(chosen, plan.sizes))
    several, replicas = question.accumulate > 1, question.side_by_side
    part = "a micro-batch" if several else "a replica" if replicas > 1 else "a step"
    yield f"FLOPs of {part}{how}", f"= {text(answer.terms(chosen))}", flops(int(number))
    if several or replicas > 1:
        made = " on each of ".join(
            f"{grouped(count)} {what}"
            for count, what in ((question.accumulate, "micro-batches"), (replicas, "replicas"))
            if count > 1
        )
        yield "FLOPs of a step", f"= those of {made}", flops(int(number * question.accumulate * replicas))
    if plan.rank is None and replicas == 1:
        yield from _skipped(plan)
    if found.per_token is not None:
        each, active = found.per_token, found.per_token.active
        plain = active is None or {"N", "D"} & set(answer.ledger.graph.symbols)
        formula = text(answer.terms(each.flops)) if plain else f"{PER_TOKEN}·N′{added(each.rest, answer)}"
        yield "a token", f"= {formula}", flops(int(Fraction(evaluate(each.flops, plan.sizes))))
        if not plain:
            yield "", f"  N′ = {text(answer.terms(active))}", grouped(int(evaluate(active, plan.sizes)))
    other = found.step.get("6ND")
    if other is not None and found.chosen == "exact":
        less = Fraction(evaluate(other, plan.sizes)) / number - 1
        which = answer.ledger.convention.params
        said = f"{percent(abs(less))} {'more' if less > 0 else 'less'}"
        name = "P" if "N" in answer.ledger.graph.symbols else "N"
        yield f"6·{name}·D instead", f"with {name} = {'all' if which == 'all' else which} parameters", said
    if found.optimizer:
        products = text(answer.terms(answer.formulas["flops.optimizer"]))
        yield "the optimizer", f"= {products}, beside the step", f"{percent(found.optimizer)} more"
    if question.amount is not None:
        said = f"{spelled(question.amount)} {question.unit}"
        if found.steps is not None and question.unit != "steps":
            batch = "" if question.accumulate == 1 else f" of {grouped(question.accumulate)} micro-batches"
            said += f", {spelled(found.steps)} steps{batch}"
        yield "FLOPs in all", said, flops(int(found.run.flops))


def _executed(plan: Plan) -> str:
    """How the FLOPs that hardware executes are counted, beside those of the convention."""
    masked = any(entry.causal is not None for entry in plan.case.ledger.entries)
    return f"products alone{', pairs behind a causal mask left out' * masked}"


def _plain(expr: Expr, answer: Answer) -> str:
    return text(answer.terms(expr))


def _measured(plan: Plan, most: Fraction | None) -> Iterator[tuple[str, str, str]]:
    found, question = plan.training, plan.question
    assert found is not None
    if found.mfu is None or found.hfu is None or question.rate is None:
        return
    if question.rate_unit == "step-seconds":
        how = f"step / (n·peak·{duration(question.rate)})"
    else:
        how = f"FLOPs a token · {spelled(question.rate)} tokens/s / (n·peak)"
    yield "MFU measured", f"= {how}", percent(found.mfu)
    yield "HFU measured", "= the same with what is recomputed", percent(found.hfu)
    if most is not None and most < min(found.mfu, Fraction(1)):
        yield "", "less time than kernels of a rank take at the peak: the MFU is at most", percent(most)
    if found.mfu > 1:
        yield "", "more than the peak: the rate, the card, the precision or the count is another", ""


def spelled(number: Fraction) -> str:
    """A whole number with commas, or four digits of another."""
    return grouped(int(number)) if number.denominator == 1 else digits(number)


def serving(plan: Plan, answer: Answer) -> Grid:
    """Latency, throughput and cost of a pass: at every weight once, and as traced."""
    found, question, mode = plan.served, plan.question, plan.case.ledger.graph.mode
    assert found is not None
    least, traced = found.least, found.traced
    unit = "tokens" if mode in ("decode", "prefill") else "inputs"
    cached = f" + cache,  cache = {written(found.cache, answer)}" if found.cache != 0 else ""
    whose = "" if plan.rank is None else "a rank's "
    rows = [(f"{whose}bytes", f"= every weight once{cached}", size(int(least.bytes)))]
    if found.tables != 0:
        tables = answer.number(answer.under(found.tables))
        rows.append(("", "of these a table, of which a token reads one row", "" if tables is None else size(tables)))
    if found.experts is not None:
        rows.append(("", f"of E experts a layer, {digits(found.experts)} are read if picks are uniform", ""))
    rows.append((f"{whose}FLOPs", f"= {written(found.flops, answer, _plain)}", flops(int(found.counted))))
    if least.flops != found.counted:
        rows.append(("", f"executed: {_executed(plan)}", flops(int(least.flops))))
    bound = "arithmetic" if least.limit == "compute" else "memory"
    reached = "peak" if question.mfu is None else f"(peak·{percent(question.mfu)})"
    how = f"= max(bytes/bandwidth, FLOPs/{reached}), bound by {bound}"
    rows.append(("latency", how, duration(least.seconds)))
    if plan.links:
        rows.append(("", "without the traffic over the links, which follows", ""))
    rows.append(("", "its bytes alone", duration(least.moving)))
    rows.append(("", "its FLOPs alone", duration(least.computing)))
    number = f"{grouped(least.replicas)}·" if least.replicas > 1 else ""
    said = f"= {number}{spelled(Fraction(least.tokens))} {unit}/latency"
    rows.append(("throughput", said, f"{digits(least.throughput)}/s"))
    if question.price is not None:
        how = "" if found.rate is None else " at the measured rate"
        rows.append(("cost", f"of a million {unit}{how}", digits(found.cost(question.price))))
    if found.seconds is not None and question.amount is not None:
        by = "throughput" if question.rate is None else "measured rate"
        rows.append((f"time for {spelled(question.amount)}", f"= {unit}/{by}", duration(found.seconds)))
    alone = f"= the same with all bytes read and written, {size(int(traced.bytes))}"
    rows.append(("each op alone", alone, duration(traced.seconds)))
    if found.mfu is not None and found.mbu is not None:
        rows.append(("MFU measured", "= FLOPs a second/(n·peak)", percent(found.mfu)))
        rows.append(("of the bandwidth", "= these bytes a second/(n·bandwidth)", percent(found.mbu)))
    return Grid(_COLUMNS, tuple(rows))
