"""The head of an answer and its totals: sizes, conditions, convention, and a formula a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.dtypes import SYMBOLIC
from symacct.limits import LIMITED, PEAK, SAVED, holds, limits_at, possible_limits
from symacct.quantised import BLOCK, LEAST
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid
from symacct.report.numbers import flops, grouped, size
from symacct.report.readable import text
from symacct.report.tokens import Tokens, said, tokens_of, untold
from symacct.symbols import symbol

_MODES = {
    "train": "training step",
    "forward": "forward pass",
    "prefill": "prefill",
    "decode": "decoding one token",
}


@dataclass(frozen=True, slots=True)
class Total:
    """One line of the totals: what, the name by which later lines speak of it, its formula, its value."""

    label: str
    formula: str
    value: str = ""
    name: str = ""


def headline(answer: Answer) -> str:
    """Target, mode and convention in one line."""
    graph, convention = answer.ledger.graph, answer.ledger.convention
    named = f" ({convention.name})" if convention.name != "symacct" else ""
    mode = _MODES.get(graph.mode, graph.mode) + (f", {graph.variant}" if graph.variant else "")
    return f"{graph.target} · {mode} · {convention.line}{named}"


def sizes(answer: Answer) -> list[str]:
    """Each size with its number, if it has one, and its meaning."""
    found = []
    for name, info in answer.ledger.graph.symbols.items():
        if name in answer.sizes:
            found.append(
                f"{name} = {grouped(answer.sizes[name])}" + (f" ({info.meaning})" if info.meaning else "")
            )
        else:
            found.append(f"{name} {info.meaning}".rstrip())
    return found


def conditions(answer: Answer) -> list[str]:
    """The conditions under which the formulas hold, given relations last."""
    own = [_raised(a.short) for a in answer.ledger.graph.assumptions]
    return own + [f"{_raised(text)} (given)" for text in answer.relations.texts]


def _raised(condition: str) -> str:
    return condition.replace("**2", "²").replace("**3", "³").replace("*", "·")


def totals(answer: Answer) -> Grid:
    """The totals as a table: label, formula, value."""
    columns = (Column("quantity"), Column(""), Column("formula", "formula"), Column("value", "right"))
    return Grid(columns, tuple((t.label, t.name, t.formula, t.value) for t in _totals(answer)))


def _totals(answer: Answer) -> Iterator[Total]:
    yield from _parameters(answer)
    yield Total("", "")
    yield from _flops(answer)
    yield Total("", "")
    yield from _bytes(answer)


def _parameters(answer: Answer) -> Iterator[Total]:
    found = answer.formulas
    total = found["params.total"]
    name = "N" if "N" not in answer.ledger.graph.symbols else ""
    yield _total(answer, "parameters", name, total, grouped)
    for key, label in (
        ("params.trainable", "trainable"),
        ("params.active", "active"),
        ("params.embedding", "embedding"),
    ):
        if key in found and found[key] not in (total, 0):
            yield _total(answer, label, "", found[key], grouped)
    chosen = answer.ledger.convention.params
    if chosen == "non-embedding":
        yield _total(answer, "N in 6·N·D", "", sp.expand(total - found.get("params.embedding", 0)), grouped)
    elif chosen != "all" and f"params.{chosen}" in found:
        yield _total(answer, "N in 6·N·D", "", found[f"params.{chosen}"], grouped)


def _flops(answer: Answer) -> Iterator[Total]:
    found, unit = answer.formulas, answer.ledger.convention.unit

    def scaled(number: int) -> str:
        return flops(number, unit)

    forward = found["flops.forward"]
    yield _total(answer, "forward", "", forward, scaled)
    if "flops.step" not in found:
        return
    yield _multiple(answer, "backward", found["flops.backward"], "forward", forward, scaled)
    step = found["flops.step"]
    tokens = tokens_of(answer, step)
    if tokens is None:
        yield _multiple(answer, "step", step, "forward", forward, scaled)
        yield Total("", f"  no 6·N′·D: {untold(answer, step)}")
    else:
        yield from _by_tokens(answer, tokens, step, scaled)
    if found["flops.hardware"] != step:
        yield _beyond(answer, "hardware", found["flops.hardware"], "step", step, scaled)
    if found["flops.optimizer"] != 0:
        yield _total(answer, "optimizer", "", found["flops.optimizer"], scaled)


def _by_tokens(answer: Answer, tokens: Tokens, step: Expr, scaled: Callable[[int], str]) -> Iterator[Total]:
    """The step as 6·N′·D and what is left, and what there is to say of N′."""
    more = text(answer.terms(tokens.rest))
    rest = "" if tokens.rest == 0 else f" - {more[1:]}" if more.startswith("-") else f" + {more}"
    yield Total("step", f"= {tokens.number}·{tokens.name}′·D{rest}", _valued(answer, step, scaled))
    yield from (Total("", f"  {line}") for line in said(answer, tokens))


def _bytes(answer: Answer) -> Iterator[Total]:
    found = answer.formulas
    labels = {
        "bytes.params": "weights",
        "bytes.grads": "gradients",
        "bytes.optimizer": "optimizer state",
        "bytes.master": "of it masters",
        "bytes.saved": "kept for backward",
        "bytes.saved_buffers": "and of buffers",
        "bytes.peak": "peak memory",
        "bytes.kv_cache": "KV cache",
        "bytes.read": "bytes read",
        "bytes.written": "bytes written",
    }
    taken = "N" in answer.ledger.graph.symbols
    name, whole = ("weights", found["bytes.params"]) if taken else ("N", found["params.total"])
    for key, label in labels.items():
        if key not in found:
            continue
        if key in ("bytes.params", "bytes.grads", "bytes.optimizer", "bytes.master") and label != name:
            there = _there(answer, key, found[key])
            yield _told_by_run(answer, label, key, found[key]) if there is None else _beyond(answer, label, there, name, whole, size)
        elif key == SAVED:
            there = _there(answer, key, found[key])
            yield _told_by_run(answer, label, key, found[key]) if there is None else _total(answer, label, "", there, size)
        elif key == PEAK:
            yield from _peak(answer, label, found[key])
        else:
            yield _total(answer, label, "", found[key], size)
        if key in LIMITED:
            yield from (Total("", f"  {line}") for line in elsewhere(answer, key))


def _peak(answer: Answer, label: str, peak: Expr) -> Iterator[Total]:
    """The peak: of many places that may hold it, the one that does at these sizes, else how many."""
    places = peak.args if isinstance(peak, sp.Max) else (peak,)
    if answer.sizes and not holds(answer.ledger.graph, PEAK, answer.sizes):
        yield _of_run(answer, label, PEAK, f"none of its {len(places)} forms holds")
        return
    if len(places) == 1:
        yield _total(answer, label, "", peak, size)
        return
    found = [answer.number(live) for live in places] if answer.sizes else []
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(places):
        yield Total(label, f"= the largest of {len(places)} forms, one for each place where it may lie")
        return
    largest = places[max(range(len(places)), key=lambda k: numbers[k])]
    yield _total(answer, label, "", largest, size)
    where = next((name for name, live in answer.ledger.graph.peak or () if answer.under(live) == largest), "")
    node = next((p.node for p in answer.ledger.graph.placed() if p.node.name == where), None)
    within = f" in {node.module}" if node and node.module else ""
    place = f"at {node.op.removeprefix('aten.')}{within}, {node.phase}; " if node else ""
    yield Total("", f"  {place}one of {len(places)} forms")


def _there(answer: Answer, key: str, expr: Expr) -> Expr | None:
    """The formula of a key as it is at these sizes; None where only a run tells it."""
    met = limits_at(answer.ledger.graph, key, answer.sizes)
    if not met:
        return expr
    more = met[0].more if len(met) == 1 else None
    return None if more is None else sp.expand(expr + answer.under(more))


def _told_by_run(answer: Answer, label: str, key: str, expr: Expr) -> Total:
    return _of_run(answer, label, key, f"= {_written(answer, expr)} elsewhere")


def _of_run(answer: Answer, label: str, key: str, text: str) -> Total:
    """What is known of bytes at sizes where their formula does not hold."""
    number = answer.told(key)
    if number is None:
        return Total(label, f"{text} at these sizes; only a run tells, of a model file or config")
    return Total(label, f"{text}; at these sizes", size(number))


def elsewhere(answer: Answer, key: str) -> list[str]:
    """Where the formula of kept bytes, gradients or of the peak is another: there a reshape copies less or more."""
    limits = [limit for limit in possible_limits(answer.ledger.graph, answer.sizes) if limit.key == key]
    met = limits_at(answer.ledger.graph, key, answer.sizes)
    known = [
        f"where {limit.text}: {text(answer.terms(answer.under(limit.more)))} more than elsewhere{', as here' * (limit in met)}"
        for limit in limits
        if limit.more is not None
    ]
    others = ", ".join(limit.text for limit in limits if limit.more is None)
    return known + ([f"not where {others}: there only a run tells"] if others else [])


def _total(answer: Answer, label: str, name: str, expr: Expr, scaled: Callable[[int], str]) -> Total:
    return Total(label, f"= {_written(answer, expr)}", _valued(answer, expr, scaled), name)


def _written(answer: Answer, expr: Expr) -> str:
    """A formula as text; where widths are symbols, a sum for each of them, a multiple of N if it is one."""
    state = answer.formulas.get("bytes.optimizer")
    if state is not None and state.has(sp.Min) and expr.has(sp.Min):
        return _eight_bit(answer, expr)
    widths = [symbol(name) for name in SYMBOLIC if symbol(name) in expr.free_symbols]
    whole = answer.formulas["params.total"] if "N" not in answer.ledger.graph.symbols else sp.Integer(0)
    parts, rest = [], expr
    for width in widths:
        share = expr.coeff(width)
        rest = sp.expand(rest - width * share)
        times = ratio(share, whole)
        if times is not None:
            parts.append(f"{f'{times}·' if times != 1 else ''}{width}·N")
        else:
            parts.append(_times(str(width), text(answer.terms(share))))
    return " + ".join([*parts, *([text(answer.terms(rest))] if rest != 0 or not parts else [])])


def _eight_bit(answer: Answer, expr: Expr) -> str:
    """A formula in terms of S₈, the 8-bit moments, of which the optimizer's line says how large they are."""
    whole, masters = answer.formulas["bytes.optimizer"], answer.formulas.get("bytes.master", sp.Integer(0))
    state = sp.expand(whole - masters)
    if expr == whole:
        before = "masters + S₈" if masters != 0 else "S₈"
        rule = f"2·n + 8·⌈n/{BLOCK}⌉ if n >= {grouped(LEAST)}, else 8·n"
        return f"{before}, of each tensor of n elements {rule}"
    mark = next(part for part in sp.Add.make_args(state) if part.has(sp.Min))
    coeff, body = mark.as_coeff_Mul()
    parts = (part.as_coeff_Mul() for part in sp.Add.make_args(expr))
    times = next((mine / coeff for mine, same in parts if same == body), sp.Integer(0))
    rest = sp.expand(expr - times * state)
    if rest.has(sp.Min):
        return text(answer.terms(expr))
    return f"{f'{times}·' if times != 1 else ''}S₈ + {text(answer.terms(rest))}"


def _times(width: str, share: str) -> str:
    """`w·(…)`, `2·w·(…)`: the width before a sum, after a number."""
    depth = 0
    for at, letter in enumerate(share):
        depth += (letter == "(") - (letter == ")")
        if letter in "+-" and depth == 0 and at:
            return f"{width}·({share})"
    number, dot, rest = share.partition("·")
    if share == "1":
        return width
    return f"{number}·{width}{dot}{rest}" if number.isdigit() else f"{width}·{share}"


def _multiple(
    answer: Answer, label: str, expr: Expr, name: str, other: Expr, scaled: Callable[[int], str]
) -> Total:
    """A formula as a whole multiple of another, if it is one."""
    times = ratio(expr, other)
    if times is None or expr == 0:
        return _total(answer, label, "", expr, scaled)
    return Total(label, f"= {times} × {name}" if times != 1 else f"= {name}", _valued(answer, expr, scaled))


def _beyond(
    answer: Answer, label: str, expr: Expr, name: str, other: Expr, scaled: Callable[[int], str]
) -> Total:
    """A formula as a multiple of another and a little more, if no more than two terms are left."""
    if expr.has(sp.Min) or any(symbol(width) in expr.free_symbols for width in SYMBOLIC):
        return _total(answer, label, "", expr, scaled)
    parts = sp.Add.make_args(other)
    common = [p for p in parts if p.free_symbols]
    if not common:
        return _total(answer, label, "", expr, scaled)
    first = max(common, key=lambda p: (answer.weight(p), str(p)))
    coeff, body = first.as_coeff_Mul()
    mine = next(
        (p.as_coeff_Mul()[0] for p in sp.Add.make_args(expr) if p.as_coeff_Mul()[1] == body), sp.Integer(0)
    )
    times = mine / coeff
    rest = sp.expand(expr - times * other)
    if not times.is_Integer or times < 1 or len(sp.Add.make_args(rest)) > 2:
        return _total(answer, label, "", expr, scaled)
    more = text(answer.terms(rest))
    joint = "" if rest == 0 else f" {more[0]} {more[1:]}" if more.startswith("-") else f" + {more}"
    formula = f"= {f'{times}·' if times != 1 else ''}{name}{joint}"
    return Total(label, formula, _valued(answer, expr, scaled))


def ratio(expr: Expr, other: Expr) -> sp.Rational | None:
    """The number by which `other` is multiplied in `expr`, if it is a whole number."""
    if other == 0:
        return None
    coeff, body = sp.Add.make_args(other)[0].as_coeff_Mul()
    mine = next(
        (p.as_coeff_Mul()[0] for p in sp.Add.make_args(expr) if p.as_coeff_Mul()[1] == body), sp.Integer(0)
    )
    times = mine / coeff
    return times if times.is_Integer and times and sp.expand(expr - times * other) == 0 else None


def _valued(answer: Answer, expr: Expr, scaled: Callable[[int], str]) -> str:
    number = answer.number(expr) if answer.sizes else None
    return scaled(number) if number is not None else ""
