"""The closed forms as equations: each formula collected, or said by an earlier one where that is shorter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import sympy as sp
from sympy import Expr

from symacct.latex.blocks import Equation, Math, Text, spans
from symacct.latex.formula import TIMES, latex, pieces, spelled
from symacct.report.answer import Answer
from symacct.report.nearness import BOUNDS, condition
from symacct.report.tokens import Tokens, more_or_less, tokens_of

MEASURE = 265.0  # points: what a formula may fill beside the widest name of a quantity
PARAMETERS = "P"
QUANTITIES: dict[str, tuple[str, str]] = {
    "params.total": (PARAMETERS, "parameters, each once"),
    "params.trainable": (r"P_{\mathrm{trainable}}", "parameters that receive a gradient"),
    "params.active": (r"P_{\mathrm{active}}", "parameters that work on one token"),
    "params.embedding": (r"P_{\mathrm{embedding}}", "parameters in tables that are looked up"),
    "flops.forward": (r"F_{\mathrm{forward}}", "{unit}s of the forward pass, the loss included"),
    "flops.backward": (r"F_{\mathrm{backward}}", "{unit}s of the backward pass"),
    "flops.step": (r"F_{\mathrm{step}}", "{unit}s of forward and backward pass"),
    "flops.hardware": (r"F_{\mathrm{hardware}}", "the same with what is computed again"),
    "flops.optimizer": (r"F_{\mathrm{optimizer}}", "{unit}s of the optimizer's step"),
    "bytes.params": (r"M_{\mathrm{params}}", "bytes of the parameters"),
    "bytes.grads": (r"M_{\mathrm{grads}}", "bytes of the gradients"),
    "bytes.optimizer": (r"M_{\mathrm{optimizer}}", "bytes of the optimizer's state"),
    "bytes.master": (r"M_{\mathrm{master}}", "bytes of float32 copies of the parameters, part of these"),
    "bytes.saved": (r"M_{\mathrm{saved}}", "bytes kept for the backward pass"),
    "bytes.saved_buffers": (r"M_{\mathrm{buffers}}", "bytes of the model's buffers that the backward pass refers to"),
    "bytes.peak": (r"M_{\mathrm{peak}}", "bytes alive at the peak of a step"),
    "bytes.kv_cache": (r"M_{\mathrm{cache}}", "bytes of the key/value cache"),
    "bytes.read": (r"Q_{\mathrm{read}}", "bytes read by all ops"),
    "bytes.written": (r"Q_{\mathrm{written}}", "bytes written by all ops"),
}
_WHOLES = {  # the earlier formula that a later one may be said by
    "params.trainable": "params.total",
    "params.active": "params.total",
    "flops.backward": "flops.forward",
    "flops.step": "flops.forward",
    "flops.hardware": "flops.step",
    "bytes.params": "params.total",
    "bytes.grads": "params.total",
    "bytes.optimizer": "params.total",
    "bytes.master": "params.total",
}


def equations(answer: Answer, prefix: str) -> tuple[Equation, ...]:
    """The equations of the keys that begin so, in the contract's order, but for the peak: see memory."""
    made: list[Equation] = []
    for key in shown(answer):
        value = answer.formulas[key]
        if not key.startswith(prefix) or key == "bytes.peak":
            continue
        tokens = tokens_of(answer, value) if key == "flops.step" else None
        made += _by_tokens(answer, tokens, value) if tokens is not None else [equation(answer, key)]
    return tuple(made)


def shown(answer: Answer) -> list[str]:
    """The keys that say something of their own: neither 0 nor, of parameters, equal to all of them."""
    total = answer.formulas["params.total"]
    return [
        key
        for key, value in answer.formulas.items()
        if value != 0 and not (key.startswith("params.") and key != "params.total" and value == total)
    ]


def equation(answer: Answer, key: str) -> Equation:
    """One formula, by an earlier one if it is a whole multiple of it and at most two terms more."""
    value, left = answer.formulas[key], name_of(answer, key)
    whole = _WHOLES.get(key, "")
    found = _beyond(answer, value, answer.formulas[whole]) if whole in answer.formulas else None
    if found is None:
        return Equation(left, tuple(pieces(answer.terms(value), MEASURE)), value, {}, key)
    times, rest = found
    name = name_of(answer, whole)
    head = name if times == 1 else f"{times}{TIMES}{name}"
    return Equation(left, (head, *more(answer, rest)), value, {plain(name): answer.formulas[whole]}, key)


def name_of(answer: Answer, key: str) -> str:
    """The quantity's name, spelled out where a size of the model has it."""
    taken = {spelled(name) for name in answer.ledger.graph.symbols}
    name = QUANTITIES[key][0]
    return r"P_{\mathrm{total}}" if name == PARAMETERS and name in taken else name


def more(answer: Answer, rest: Expr) -> list[str]:
    """What is added to an earlier formula, its signs before it."""
    made = pieces(answer.terms(rest), MEASURE) if rest != 0 else []
    return [f"- {made[0][1:]}" if made[0].startswith("-") else f"+ {made[0]}", *made[1:]] if made else []


def _by_tokens(answer: Answer, tokens: Tokens, step: Expr) -> Iterator[Equation]:
    """The step as 6 N' D and what is left, then N' and D."""
    prime = f"{tokens.name}'"
    names = {prime: tokens.active, "D": tokens.tokens}
    head = TIMES.join((str(tokens.number), prime, "D"))
    left = name_of(answer, "flops.step")
    yield Equation(left, (head, *more(answer, tokens.rest)), step, names, "flops.step")
    for name, value in names.items():
        yield Equation(name, tuple(pieces(answer.terms(value), MEASURE)), value)


def counted(answer: Answer, found: Tokens) -> Text:
    """What N' counts, what any other count leaves over, and where 6 N' D alone is near."""
    prime = f"{found.name}'"
    short = Math(TIMES.join((str(found.number), prime, "D")))
    text = spans(Math(prime), f" counts the parameters {found.meaning}. ") if found.meaning else ()
    for words, less in found.others:
        over, sign = more_or_less(less)
        beyond = Math(_times(answer, f"{found.number}{TIMES}D", over))
        text = spans(text, "Were ", Math(prime), f" {words}, ", short, " would count ", beyond, f" too {'much' if sign == 'less' else 'little'}. ")
    if found.near is None:
        return text
    bounds, numbers = (", ".join(map(str, row)) for row in (BOUNDS, found.near.numbers))
    where = f" alone is within {bounds} % of the step while "
    region = condition(found.near, spelled(found.near.length.name), prime, partial(_times, answer))
    return spans(text, short, where, Math(region), " for ", Math(f"n = {numbers}"), ".")


def _times(answer: Answer, head: str, expr: Expr) -> str:
    """A product of a name and an expression, with a bracket where that is a sum."""
    made = latex(expr, answer.reading)
    bracketed = len(answer.terms(expr)) > 1 or made.startswith("-")
    return f"{head}{TIMES}({made})" if bracketed else f"{head}{TIMES}{made}"


def _beyond(answer: Answer, expr: Expr, other: Expr) -> tuple[sp.Integer, Expr] | None:
    """A whole number of times the other and at most two terms; None if there is no such number."""
    shared = [part for part in _parts(other) if part.free_symbols]
    if not shared or expr == 0:
        return None
    coeff, body = max(shared, key=lambda part: (answer.weight(part), str(part))).as_coeff_Mul()
    mine = next(
        (n for n, rest in (part.as_coeff_Mul() for part in _parts(expr)) if rest == body), sp.Integer(0)
    )
    times = mine / coeff
    rest = sp.expand(expr - times * other)
    shorter = rest == 0 or len(_parts(rest)) < min(len(_parts(expr)) - 1, 3)
    return (times, rest) if times.is_Integer and times > 0 and shorter else None


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return sp.Add.make_args(expr)


def plain(name: str) -> str:
    """A quantity's name as the reader spells it."""
    return name.replace(r"_{\mathrm{", "_").replace("}}", "")
