"""Why is MFU low? The step's least time, unfused, taken apart without a rest, and what it does not show.

    unfused time  =  model FLOPs at the peak  +  each loss below

A loss is one of: chains that fusing would merge; ops that only move bytes, by kind; products that wait for
memory, that run below the peak of the chief precision, that repeat work. Model FLOPs are here those that must
be computed: of a causal mask the unmasked pairs. Launches, odd sizes and copies from the host have no time in
a roofline; they follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from symacct.evaluation import evaluate
from symacct.plan.fusion import Kernel
from symacct.plan.roofline import Bound, Roofline
from symacct.rules import find

USEFUL = "useful products at the peak"
FUSING = "element-wise chains that are not fused"
_KINDS = {
    "pointwise": ("element-wise ops", ""),
    "draws": ("dropout and random draws", ""),
    "normalisation": ("norms", "one kernel for a norm and what stands beside it"),
    "softmax": ("softmax over rows", "a loss or attention that keeps no row in memory"),
    "reduction": ("sums, means and orderings", "one kernel with what they sum"),
    "pooling": ("pooling", ""),
    "losses": ("the loss", ""),
    "scatter": ("scatters and gradients of lookups", ""),
    "copies": ("copies and changes of layout", "layouts, or a cache, that need no copy"),
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the unfused step's least time that computes nothing useful: what, and how many seconds."""

    reason: str
    seconds: Fraction
    remedy: str
    modules: tuple[str, ...] = ()


def losses(found: Roofline) -> tuple[Loss, ...]:
    """The losses, largest first; with `useful` they add up to the unfused time."""
    totals: dict[tuple[str, str], dict[str, Fraction]] = {}
    for reason, remedy, module, seconds in _parts(found):
        if seconds:
            by_module = totals.setdefault((reason, remedy), {})
            by_module[module] = by_module.get(module, Fraction(0)) + seconds
    made = [
        Loss(
            reason,
            sum(parts.values(), Fraction(0)),
            remedy,
            tuple(sorted(parts, key=lambda m: (-parts[m], m))),
        )
        for (reason, remedy), parts in totals.items()
    ]
    return tuple(sorted(made, key=lambda loss: (-loss.seconds, loss.reason)))


def useful(found: Roofline) -> Fraction:
    """Seconds that the step's model FLOPs would take at the peak, masked pairs left out."""
    return sum(
        (Fraction(_model(b, found), found.unfused.peak) for b in found.unfused.bounds if b.product),
        Fraction(0),
    )


def _parts(found: Roofline) -> Iterator[tuple[str, str, str, Fraction]]:
    """(reason, remedy, module, seconds) of every kernel once its chains are fused, and of the fusing."""
    alone = {id(bound.kernel.last): bound for bound in found.unfused.bounds}
    for bound in found.fused.bounds:
        kernel, module = bound.kernel, bound.kernel.last.module
        if len(kernel.entries) > 1:
            apart = sum((alone[id(entry)].seconds for entry in kernel.entries), Fraction(0))
            yield FUSING, "torch.compile merges them", module, apart - bound.seconds
        if bound.product:
            yield from _of_product(bound, module, found)
        else:
            yield *_kind(kernel), module, bound.seconds


def _of_product(bound: Bound, module: str, found: Roofline) -> Iterator[tuple[str, str, str, Fraction]]:
    at_own, chief = Fraction(bound.product, bound.peak), found.unfused.peak
    yield (
        "products that wait for memory",
        "larger matrices: more rows by a larger batch, or wider layers",
        module,
        bound.seconds - at_own,
    )
    slower = at_own - Fraction(bound.product, chief)
    yield f"products that run below {found.precision}'s peak", "a narrower dtype for them", module, slower
    again = Fraction(bound.product - _model(bound, found), chief)
    if bound.kernel.last.phase == "recompute":
        yield "products that checkpoints repeat", "keep more for backward where memory allows", module, again
    else:
        yield (
            "scores that fused attention computes again in backward",
            "the price of not keeping them",
            module,
            again,
        )


def _model(bound: Bound, found: Roofline) -> int | Fraction:
    """The kernel's product FLOPs without what only the hardware repeats."""
    entry = bound.kernel.last  # a product is a kernel of its own
    if entry.phase == "recompute":
        return 0
    if entry.recomputed == 0:
        return bound.product
    repeated = Fraction(evaluate(entry.recomputed, found.sizes)) / evaluate(entry.product, found.sizes)
    return bound.product * (1 - repeated)


def _kind(kernel: Kernel) -> tuple[str, str]:
    last = kernel.last
    if last.phase == "optimizer":
        return (
            "the optimizer's step",
            "a fused optimizer, which passes over each state once; more tokens a step",
        )
    rule = find(last.op)
    family = rule.price.__module__.rpartition(".")[2] if rule else ""
    return _KINDS.get(family, ("other ops without products", ""))


# What a roofline does not show


def seconds_a_launch(found: Roofline) -> Fraction:
    """The least time of the unfused step for each kernel; a host that launches slower is the limit."""
    count = found.unfused.launched
    return found.unfused.seconds / count if count else Fraction(0)
