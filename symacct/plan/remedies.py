"""What would change if a step were recomputed, sharded, of a smaller dtype or with fused attention: formulas
and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.errors import SymacctError
from symacct.graph import Graph, total_over
from symacct.plan.fitting import EXACT, Demand, Fit, fit
from symacct.plan.question import Case
from symacct.plan.solving import Ceiling, fewest
from symacct.symbols import symbol

Derive = Callable[..., Ledger]
Measure = Callable[[Ledger], Demand]
_FUSED = ("aten._scaled_dot_product", "aten.scaled_dot_product", "aten._flash", "aten._efficient")


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: which kind of bytes becomes what, and the peak that a step then has; None where only `how`
    is known.

    `bound`: what the peak is one of. `more`: FLOPs that it adds to a step.
    """

    name: str
    kind: str = ""
    becomes: Expr | None = None
    peak: int | None = None
    how: str = ""
    bound: str = EXACT
    more: Expr | None = None


def remedies(
    case: Case, wanted: Demand, now: Fit, derive: Derive | None, measure: Measure, divided: bool = False
) -> tuple[Remedy, ...]:
    """The remedies for a training step. `derive(dtype=…, checkpoint=…)` traces anew; None for a stored graph.

    `measure` says what a ledger needs on a card. Those that divide states are left out of a step that is
    `divided`.
    """
    graph = case.ledger.graph
    if graph.mode != "train":
        return ()
    found = [*_traced(case, now, derive, measure), *_fused(graph, wanted)]
    return (*found, *([] if divided else _sharded(wanted, now, case)))


def _traced(case: Case, now: Fit, derive: Derive | None, measure: Measure) -> Iterator[Remedy]:
    """Recomputation and a smaller dtype, traced: what a step keeps follows from no formula of the one at
    hand.
    """
    graph = case.ledger.graph
    recomputed = any(place.node.phase == "recompute" for place in graph.ops)
    wide = any(out.dtype == "float32" for place in graph.sources("parameter") for out in place.node.outputs)
    tries = [
        ("recompute each block", "checkpoint", "full", "kept for backward", not recomputed),
        (
            "recompute attention",
            "checkpoint",
            "selective",
            "kept for backward",
            not recomputed and _unfused(graph),
        ),
        ("16 bits, bf16", "dtype", "bf16", "weights", wide),
    ]
    for name, option, value, kind, useful in tries:
        if useful and derive is None:
            how = f"a stored graph stays as recorded: plan {_file(graph)} --{option} {value}"
            yield Remedy(name, kind, how=how)
        elif useful and derive is not None:
            yield _retraced(
                case, now, derive, measure, Remedy(name, kind, how=f"--{option} {value}"), {option: value}
            )


def _retraced(
    case: Case, now: Fit, derive: Derive, measure: Measure, plain: Remedy, change: Mapping[str, str]
) -> Remedy:
    """A remedy with the numbers of the step that is traced with it; with the reason where that is refused."""
    try:
        ledger = derive(**change)
        new = measure(ledger)
        peak = int(fit(new, now.memory, case.sizes).need)
    except SymacctError as error:
        return replace(plain, how=f"cannot be traced: {str(error).splitlines()[0]}")
    more = None
    if "checkpoint" in change:
        more = sp.expand(case.under(_again(ledger) - _again(case.ledger)))
    return replace(plain, becomes=new.kinds.get(plain.kind), peak=peak, bound=new.bound, more=more)


def _again(ledger: Ledger) -> Expr:
    """FLOPs that backward computes again, as fused attention does without a remedy too."""
    return ledger.formulas["flops.hardware"] - ledger.formulas["flops.step"]


def _file(graph: Graph) -> str:
    """The model file of a stored graph, read off its nodes."""
    sources = [place.node.source.rpartition(":")[0] for place in graph.ops if place.node.source]
    return max(sorted(set(sources)), key=sources.count) if sources else "its model file"


def _unfused(graph: Graph) -> bool:
    """Whether attention is spelled out: a softmax, and no fused kernel."""
    ops = [place.node.op for place in graph.ops if place.node.phase == "forward"]
    fused = any(op.startswith(_FUSED) for op in ops)
    return not fused and any(op.startswith("aten._softmax") for op in ops)


def _fused(graph: Graph, wanted: Demand) -> Iterator[Remedy]:
    """Scores of unfused attention, kept for backward: what grows with the square of a length and would be
    recomputed.
    """
    if not _unfused(graph):
        return
    kept = wanted.kinds.get("kept for backward")
    lengths = _lengths(graph)
    square = scores(kept, lengths) if kept is not None else sp.Integer(0)
    if square != 0:
        gone = ", ".join(sorted(s.name for s in lengths))
        how = (
            f"scores are recomputed, what grows with the square of {gone} falls away; "
            "one fp32 number a row and head, which is kept for it, is not counted"
        )
        yield Remedy("fused attention", "kept for backward", sp.expand(kept - square), how=how)


def scores(kept: Expr, lengths: set[sp.Symbol]) -> Expr:
    """The terms that have the square of a length, or a product of two lengths."""
    found = sp.Integer(0)
    for term in sp.Add.make_args(sp.expand(kept)):
        powers = term.as_powers_dict()
        if sum(powers.get(length, 0) for length in lengths) >= 2:
            found += term
    return found


def _lengths(graph: Graph) -> set[sp.Symbol]:
    """The lengths of the integer inputs: all their dimensions but the first."""
    shapes = [out.shape for p in graph.sources("input") for out in p.node.outputs if "int" in out.dtype]
    return {size for shape in shapes for dim in shape[1:] for size in dim.free_symbols}


def _sharded(wanted: Demand, now: Fit, case: Case) -> Iterator[Remedy]:
    """States divided among n cards: what lives at any place of a step, whatever is gathered beside it."""
    n = symbol("n") if "n" not in case.sizes else symbol("n_cards")
    state = wanted.kinds.get("optimizer state")
    if not state:
        return
    counts = sp.expand(case.under(_counts(case.ledger.graph)))
    becomes = sp.expand(state - counts) / n + counts
    yield Remedy("optimizer state over n cards", "optimizer state", becomes, how="--parallel dp=n,zero=1")
    floor = lower_bounds(wanted, n, counts)
    numbers = {symbol(name): sp.Integer(value) for name, value in case.sizes.items()}
    count = fewest([Ceiling(expr.xreplace(numbers), now.memory) for expr in floor], n)
    if now.fits:
        said = "gathered weights come on top: --parallel dp=n,zero=3"
    elif count is None:
        said = "what is kept for backward alone does not fit: no number of cards is enough at these sizes"
    else:
        cards = f"at least {count:,} card{'s' * (count != 1)}"
        said = f"{cards}; gathered weights come on top: --parallel dp={count},zero=3"
    yield Remedy("all states over n cards", "all states", floor[-1], how=said)


def _counts(graph: Graph) -> Expr:
    """Bytes of the optimizer's state that has no dimension, such as step counts: every card holds them."""
    found = [(place, out) for place in graph.sources("state") for out in place.node.outputs if not out.shape]
    return sp.Add(*(total_over(sp.expand(out.bytes), place.loops) for place, out in found))


def lower_bounds(wanted: Demand, n: sp.Symbol, counts: Expr = sp.Integer(0)) -> list[Expr]:
    """Bytes that fully sharded training cannot go below: when backward begins, and when the optimizer
    steps. `counts` are those of the state that is on every card.
    """
    kinds = wanted.kinds
    lasting = kinds["weights"] + kinds["optimizer state"] - counts
    begun = sp.expand(lasting) / n + counts + kinds.get("kept for backward", sp.Integer(0))
    return [begun, sp.expand(lasting + kinds["gradients"]) / n + counts]
