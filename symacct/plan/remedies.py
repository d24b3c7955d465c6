"""What would change if a step were recomputed, sharded, of a smaller dtype or with fused attention: formulas
and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import sympy as sp
from sympy import Expr

from symacct.account import Ledger
from symacct.errors import SymacctError
from symacct.evaluation import evaluate
from symacct.graph import Graph, total_over
from symacct.parallel import Degrees, Rank, spelled
from symacct.plan.fitting import ABOVE, EXACT, Demand, Fit, fit
from symacct.plan.question import Case
from symacct.plan.ranks import fewest_ranks
from symacct.plan.scores import fused, scores_of
from symacct.plan.solving import Ceiling, fewest
from symacct.symbols import symbol

Derive = Callable[..., Ledger]
_ZERO = {1: "optimizer state", 2: "gradients", 3: "weights"}  # what each stage is the first to divide
_STATES = ("weights", "gradients", "optimizer state")
_ALL = "all states"
_NODE = 8  # cards among which states are divided for an example, where no number is known


@dataclass(frozen=True, slots=True)
class Measured:
    """What a changed step needs on a card, the FLOPs that a card does in it, and the degrees' numbers.

    `rank` is a rank's share of it, where it is divided.
    """

    demand: Demand
    flops: Expr
    numbers: Mapping[str, int]
    rank: Rank | None = None


Measure = Callable[[Ledger, Degrees | None], Measured]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: which kind of bytes becomes what, and the peak that a step then has; None where only `how`
    is known.

    `bound`: what the peak is one of. `more`: FLOPs that it adds to a step of a card. `sizes`: those beside
    the plan's at which the peak is told.
    """

    name: str
    kind: str = ""
    becomes: Expr | None = None
    peak: int | None = None
    how: str = ""
    bound: str = EXACT
    more: Expr | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of bytes that the formula is of."""
        return _STATES if self.kind == _ALL else (self.kind,)

    def bytes(self, plain: Mapping[str, int]) -> int | None:
        """Those of the kind at the plan's sizes and its own; None without a formula."""
        return None if self.becomes is None else int(evaluate(self.becomes, {**plain, **self.sizes}))


@dataclass(frozen=True, slots=True)
class Step:
    """The step to remedy. `derive(dtype=…, checkpoint=…)` traces it anew; None for a stored graph.

    `measure` says what a ledger needs on a card, by other degrees if they are given. `rank` is a rank's share
    of a divided step, `cards` how many there are.
    """

    case: Case
    wanted: Demand
    now: Fit
    derive: Derive | None
    measure: Measure
    rank: Rank | None = None
    cards: int = 1
    micro_batches: int = 1

    @property
    def graph(self) -> Graph:
        return self.case.ledger.graph


def remedies(step: Step) -> tuple[Remedy, ...]:
    """The remedies for a training step."""
    if step.graph.mode != "train":
        return ()
    found = [*_traced(step), *_fused(step)]
    return (*found, *(_sharded(step) if step.rank is None else _degrees(step, step.rank.degrees)))


def _traced(step: Step) -> Iterator[Remedy]:
    """Recomputation and a smaller dtype, traced: what a step keeps follows from no formula of the one at
    hand.
    """
    graph = step.graph
    recomputed = any(place.node.phase == "recompute" for place in graph.ops)
    wide = any(out.dtype == "float32" for place in graph.sources("parameter") for out in place.node.outputs)
    apart = not recomputed and scores_of(graph) is not None
    tries = [
        ("recompute each block", "checkpoint", "full", "kept for backward", not recomputed),
        ("recompute attention", "checkpoint", "selective", "kept for backward", apart),
        ("16 bits, bf16", "dtype", "bf16", "weights", wide),
    ]
    for name, option, value, kind, useful in tries:
        if useful and step.derive is None:
            how = f"a stored graph stays as recorded: plan {_file(graph)} --{option} {value}"
            yield Remedy(name, kind, how=how)
        elif useful:
            yield _retraced(step, Remedy(name, kind, how=f"--{option} {value}"), {option: value})


def _retraced(step: Step, plain: Remedy, change: Mapping[str, str]) -> Remedy:
    """A remedy with the numbers of the step that is traced with it; with the reason where that is refused."""
    assert step.derive is not None
    try:
        new = step.measure(step.derive(**change), None)
        found = _told(step, plain, new)
    except SymacctError as error:
        return replace(plain, how=f"cannot be traced: {str(error).splitlines()[0]}")
    if "checkpoint" not in change:
        return found
    return replace(found, more=sp.expand(new.flops - step.measure(step.case.ledger, None).flops))


def _told(step: Step, plain: Remedy, new: Measured, sizes: Mapping[str, int] | None = None) -> Remedy:
    """A remedy with the peak of a changed step, and the formula of its kind of bytes if it has none."""
    peak = int(fit(new.demand, step.now.memory, {**step.case.sizes, **new.numbers}).need)
    becomes = new.demand.kinds.get(plain.kind) if plain.becomes is None else plain.becomes
    return replace(plain, becomes=becomes, peak=peak, bound=new.demand.bound, sizes=sizes or {})


def _file(graph: Graph) -> str:
    """The model file of a stored graph, read off its nodes."""
    sources = [place.node.source.rpartition(":")[0] for place in graph.ops if place.node.source]
    return max(sorted(set(sources)), key=sources.count) if sources else "its model file"


def _fused(step: Step) -> Iterator[Remedy]:
    """Scores of attention that is spelled out, which a fused kernel computes again: a formula, and no peak,
    as other ops would run.
    """
    found, graph = scores_of(step.graph), step.graph
    if found is None or graph.kept is None or not found.storages & set(graph.kept):
        return
    ledger = step.case.ledger
    without = Ledger(fused(graph, found), ledger.convention, ledger.allow_unknown)
    kept = step.measure(without, None).demand.kinds.get("kept for backward")
    how = (
        "what is as large as the scores is computed again; one fp32 number a row and head, which is kept "
        "for it, is not counted"
    )
    if found.biases:
        how += "; a learned bias is kept as its mask"
    how += "; the peak is that of a plan of the model with F.scaled_dot_product_attention"
    yield Remedy("fused attention", "kept for backward", kept, how=how)


def _degrees(step: Step, degrees: Degrees) -> Iterator[Remedy]:
    """A divided step by other degrees: the sequence divided too, and more of the states."""
    if degrees.tensor > 1 and not degrees.sequence:
        yield _changed(step, "sequence parallelism", "kept for backward", replace(degrees, sequence=True))
    if degrees.data * degrees.context > 1:
        for zero in range(degrees.zero + 1, 4):
            yield _changed(step, f"ZeRO stage {zero}", _ZERO[zero], replace(degrees, zero=zero))


def _changed(step: Step, name: str, kind: str, degrees: Degrees) -> Remedy:
    plain = Remedy(name, kind, how=f"--parallel {spelled(degrees)}")
    try:
        return _told(step, plain, step.measure(step.case.ledger, degrees))
    except SymacctError as error:
        return replace(plain, how=f"cannot be: {str(error).splitlines()[0]}")


def _sharded(step: Step) -> Iterator[Remedy]:
    """States divided among n cards: what lives at any place of a step, whatever is gathered beside it, and
    the peak among so many cards as there are, else are needed, else of a node.
    """
    case, wanted, now = step.case, step.wanted, step.now
    n = symbol("n") if "n" not in case.sizes else symbol("n_cards")
    state = wanted.kinds.get("optimizer state")
    if not state:
        return
    counts = sp.expand(case.under(_counts(case.ledger.graph)))
    becomes = sp.expand(state - counts) / n + counts
    floor = lower_bounds(wanted, n, counts)
    numbers = {symbol(name): sp.Integer(value) for name, value in case.sizes.items()}
    count = fewest([Ceiling(expr.xreplace(numbers), now.memory) for expr in floor], n)
    yield _among(step, Remedy("optimizer state over n cards", "optimizer state", becomes), n, 1, None)
    said = "gathered weights come on top"
    if not now.fits and count is None:
        said = "what is kept for backward alone does not fit: no number of cards is enough at these sizes"
    elif not now.fits:
        count = max(count or 1, 1 if wanted.bound == ABOVE else 2)
        said = f"at least {count:,} card{'s' * (count != 1)}; {said}"
    plain = Remedy("all states over n cards", _ALL, floor[-1], how=said)
    yield _among(step, plain, n, 3, None if now.fits else count)


def _among(step: Step, plain: Remedy, n: sp.Symbol, zero: int, count: int | None) -> Remedy:
    """A remedy with the peak of a rank of ZeRO's stage; without it where the step cannot be divided so."""
    number = step.cards if step.cards > 1 else max(count or _NODE, 2)
    try:
        found = _divided(step, plain, n, zero, number)
        if not count or found.peak is None or found.peak <= step.now.memory:
            return found
        enough = _enough(step, zero, number)
        said = "no number of cards is proved enough" if enough is None else f"{enough:,} are enough"
        return _divided(step, replace(plain, how=f"{plain.how}, and then {said}"), n, zero, enough or number)
    except SymacctError as error:
        why = f"no peak, for {str(error).splitlines()[0]}"
        return replace(plain, how=_joined(plain.how, why), sizes={n.name: number})


def _divided(step: Step, plain: Remedy, n: sp.Symbol, zero: int, number: int) -> Remedy:
    degrees = Degrees(data=number, zero=zero, micro_batches=step.micro_batches)
    how = _joined(plain.how, f"--parallel {spelled(degrees)}")
    return _told(step, replace(plain, how=how), step.measure(step.case.ledger, degrees), {n.name: number})


def _enough(step: Step, zero: int, number: int) -> int | None:
    """The fewest cards with which a rank's peak fits; None where no number of them is enough."""
    degrees = Degrees(data=number, zero=zero, micro_batches=step.micro_batches)
    new = step.measure(step.case.ledger, degrees)
    assert new.rank is not None
    return fewest_ranks(new.rank, new.demand, step.now.memory, {**step.case.sizes, **new.numbers}).number


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


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
