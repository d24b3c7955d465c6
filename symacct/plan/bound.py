"""What bounds a step on the rank with most to do: arithmetic at the peak, traffic of memory, or links waited
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sympy import Expr

from symacct.account import Ledger, add
from symacct.evaluation import Number, evaluate
from symacct.parallel import Rank
from symacct.plan.fusion import executed
from symacct.plan.planning import Plan
from symacct.plan.rank_roofline import spread_of, staged
from symacct.plan.roofline import Roofline
from symacct.plan.serving import moving
from symacct.plan.training_time import utilisation
from symacct.plan.waiting import waited

COMPUTE, MEMORY, LINKS = "compute", "memory", "communication"
_OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of a step, each as if nothing else took time; idle time of a pipeline is in none of them.

    `memory` is None without a bandwidth, `links` without a figure for them or for an undivided step.
    `merged` says that element-wise chains move bytes once, as the roofline has it; else every op does.
    `unsure` says that memory is from above: with ep some op of a rank's ledger reads all experts; `masked`
    that pairs behind a causal mask are in no arithmetic.
    """

    compute: Fraction
    memory: Fraction | None
    links: Fraction | None
    merged: bool = False
    unsure: bool = False
    masked: bool = False

    @property
    def seconds(self) -> dict[str, Fraction]:
        """Those that are known, by what takes them."""
        found = {COMPUTE: self.compute, MEMORY: self.memory, LINKS: self.links}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def limit(self) -> str | None:
        """What takes longest. None if not settled: memory by a figure from above, or nothing to compare."""
        chosen = max(self.seconds, key=lambda name: self.seconds[name])
        return None if len(self.seconds) == 1 or (chosen == MEMORY and self.unsure) else chosen


def bound(plan: Plan, roof: Roofline | None = None) -> Bound | None:
    """What bounds a plan's step; of an undivided one only beside its roofline, and only in training.

    FLOPs are all that the hardware executes, as the roofline counts them; bytes are the roofline's with
    chains merged if it is at hand, else those of the ledger.
    """
    rank, question = plan.rank, plan.question
    if rank is None and (roof is None or plan.training is None):
        return None
    made = work(plan)
    compute = Fraction(made.flops) / question.card.peak(plan.precision)
    memory, unsure = None, False
    if question.card.bandwidth is not None:
        moved, unsure = _moved(plan, rank, roof)
        memory = moving(moved, question.card.bandwidth)
    return Bound(compute, memory, _waited(plan, compute), roof is not None, unsure, made.masked)


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of products that a card executes in a step, of a pipeline's stages the busiest; recomputed ones
    too, the optimizer's not. `masked`: pairs behind a causal mask are left out.
    """

    flops: Number
    masked: bool


def work(plan: Plan) -> Work:
    """What a card executes in a step, all micro-batches together, whatever the convention counts."""
    rank, sizes, ledgers = plan.rank, plan.sizes, [plan.case.ledger]
    times = plan.question.accumulate if rank is None else rank.degrees.micro_batches
    if rank is not None:
        made, sizes, _ = staged(rank, plan.case.ledger, sizes)
        ledgers = list(made.values())
    masked = any(entry.causal is not None for ledger in ledgers for entry in ledger.entries)
    return Work(times * max(evaluate(executed(ledger), sizes) for ledger in ledgers), masked)


def most_mfu(plan: Plan) -> Fraction | None:
    """The largest MFU of a divided step: with what kernels execute on the busiest card, at the peak, and a pipeline's
    idle time. None for an undivided step, and without training.
    """
    if plan.rank is None or plan.training is None:
        return None
    run, steps = plan.training.run, plan.training.steps or 1
    idle = Fraction(evaluate(plan.rank.idle, plan.sizes))
    seconds = Fraction(work(plan).flops) * (1 + idle) / run.peak
    return utilisation(run.flops, seconds * steps, run.peak, run.cards)


def _waited(plan: Plan, compute: Fraction) -> Fraction | None:
    """Seconds of the links by the rule of a search. None without a figure for links, or without a rank."""
    if plan.rank is None:
        return None
    seconds: dict[str, Fraction] = {}
    for row in plan.links:
        if row.seconds is None:
            return None
        seconds[row.axis] = seconds.get(row.axis, Fraction(0)) + row.seconds
    return Fraction(waited(seconds, compute))


def _moved(plan: Plan, rank: Rank | None, roof: Roofline | None) -> tuple[Number, bool]:
    """Bytes read and written in a step: of each micro-batch, and of the optimizer's step on a rank's part.

    And whether that is from above.
    """
    passes = plan.question.accumulate if rank is None else rank.degrees.micro_batches
    if roof is not None:
        found = roof.fused.bounds
        moved = sum(b.bytes * (1 if b.kernel.last.phase == _OPTIMIZER else passes) for b in found)
        return moved, rank is not None and not staged(rank, plan.case.ledger, plan.sizes)[2]
    assert rank is not None
    ledgers, sizes, sure = staged(rank, plan.case.ledger, plan.sizes)
    formulas = [_of_stage(ledger, passes, spread_of(rank.degrees)) for ledger in ledgers.values()]
    return max(evaluate(formula, sizes) for formula in formulas), not sure


def _of_stage(ledger: Ledger, passes: int, spread: int) -> Expr:
    once: list[Expr] = []
    each: list[Expr] = []
    for entry in ledger.entries:
        (once if entry.phase == _OPTIMIZER else each).extend((entry.read, entry.written))
    return passes * add(each) + add(once) / spread
