"""The parts of the answer of `plan` that speak of a divided step: what goes over the links, and torch's
styles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from symacct.parallel.shared_inputs import Shared, apart_from
from symacct.parallel.torch_styles import TorchPlan
from symacct.plan.planning import Plan
from symacct.plan.ranks import Sent
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import size
from symacct.report.planned_formulas import bracketed, written
from symacct.report.planned_time import spelled
from symacct.report.rates import duration
from symacct.report.readable import text

_LINKS = (Column("by ring", "formula"), Column("bytes", "right"), Column("alone", "right"))
_NARROW = 28  # wider names stand in lines of their own
_APART = (Column("what no style says"), Column("how ranks hold it", "text"))


def links(plan: Plan, answer: Answer) -> Grid:
    """Collectives by axis: how many, their bytes by ring and by tree, and their time if nothing else is
    done meanwhile. Of a pipeline each line is of the stage that sends most of its kind.
    """
    stages = plan.rank is not None and plan.rank.degrees.stages > 1
    return Grid((Column("a rank sends at most" if stages else "a rank sends"), *_LINKS), tuple(line for row in plan.links for line in _sent(row, answer)))


def _sent(row: Sent, answer: Answer) -> Iterator[tuple[str, str, str, str]]:
    alone = "" if row.seconds is None else duration(row.seconds)
    formula = written(row.payload, answer)
    if row.ranks is not None:
        ranks = text(answer.terms(row.ranks))
        below = ranks if row.ranks.is_Symbol or row.ranks.is_Integer else f"({ranks})"
        formula = f"{bracketed(formula)}·({ranks} - 1)/{below}"
    yield (
        f"{row.axis} {row.kind} × {spelled(Fraction(row.count))}",
        f"= {formula}",
        size(int(row.bytes)),
        alone,
    )
    if row.tree is not None:
        yield "  by tree", f"≤ {written(row.tree, answer)}", size(int(row.tree_bytes)), ""


def hops(plan: Plan) -> str:
    """How many hops follow one another in each way of sending."""
    if not any(row.ranks is not None for row in plan.links):
        return ""
    summed = any(row.tree is not None for row in plan.links)
    ring = "a ring of n ranks takes n - 1 hops for each"
    return ring + (", for an all_reduce 2·(n - 1), and a double binary tree 2·⌈log₂ n⌉" if summed else "")


def styles(plan: TorchPlan, page: Page, answer: Answer) -> None:
    """The tensor-parallel plan, as torch's `parallelize_module` takes it."""
    whose = "as --styles has it" if plan.own else "as proposed"
    page.line(f"tensor-parallel plan {whose}, for torch's parallelize_module", "bold")
    widest = max(map(len, plan.styles), default=0) + 2
    for path, style in plan.styles.items():
        if widest > _NARROW:
            page.line(path)
        page.hanging("" if widest > _NARROW else path, [style], min(widest, 4 if widest > _NARROW else widest))
    if plan.apart:
        page.grid(Grid(_APART, tuple(plan.apart.items())))
    for path, first in plan.tied.items():
        page.hanging("", [f"{path} is {first}: tie them again after parallelize_module, which parts them"], 0)
    for place in plan.gathered:
        page.hanging("", [f"the ranks' parts of the sequence are gathered before {place}, which no style says"], 0)
    if plan.loss:
        page.line("the loss is computed within loss_parallel(), from divided scores")
    for remark in _sharing(plan.shared, answer):
        page.hanging("", [remark], 0)
    page.line("whether torch runs the model's own code so: symacct verify with the tp and sp of this --parallel")


def _sharing(shared: Iterable[Shared], answer: Answer) -> Iterator[str]:
    """How modules that share an input come to the counted collectives."""
    if around := ", ".join(dict.fromkeys(group.around for group in shared if group.around)):
        yield f"modules that share an input bring it in once, by a PrepareModuleInput around them: on {around}"
    for group in shared:
        if group.more:
            yield f"{apart_from(group, lambda count: text(answer.terms(count)))}, unless they are put in a module of their own or fused into one Linear"
