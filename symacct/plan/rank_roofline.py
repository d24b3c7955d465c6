"""The least time of a divided step: on the rank of the stage that takes longest, with its part of the
optimizer's step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp

from symacct.account import Ledger
from symacct.devices import Device
from symacct.evaluation import evaluate
from symacct.parallel import Degrees, Rank
from symacct.parallel.holdings import depth_of
from symacct.parallel.own_experts import of_own_experts
from symacct.parallel.staged import on_stage
from symacct.plan.roofline import Roofline, model_flops, roofline

ONE_PASS = "the roofline is of one of the {} micro-batches, and the optimizer's step"


@dataclass(frozen=True, slots=True)
class Slowest:
    """The roofline of a rank of the slowest kind of stage; `said` is what a reader must know of it."""

    found: Roofline
    said: tuple[str, ...]


def slowest(
    rank: Rank, ledger: Ledger, card: Device, sizes: Mapping[str, int], precision: str | None
) -> Slowest:
    """One micro-batch and the optimizer's step on a rank. `ledger` is that of the whole step; traffic between
    ranks is outside. Raises what `roofline` raises.
    """
    degrees, said = rank.degrees, []
    ranks = degrees.tensor * degrees.context * degrees.stages
    share = Fraction(evaluate(model_flops(ledger), sizes)) / ranks
    ledgers, sizes, sure = staged(rank, ledger, sizes)
    spread = spread_of(degrees)
    if spread > 1:
        said.append(
            f"the optimizer's step in the roofline is on 1/{spread} of the elements, as zero={degrees.zero} "
            "divides them"
        )
    if degrees.micro_batches > 1:
        said.append(ONE_PASS.format(degrees.micro_batches))
    if not sure:
        said.append("ops that read parts of experts' weights read those of all experts in the roofline")
    made = {name: roofline(own, card, sizes, precision, spread) for name, own in ledgers.items()}
    name = max(made, key=lambda name: made[name].fused.seconds)
    if degrees.stages > 1:
        depth = depth_of(rank.graph)
        said.append(f"the roofline is that of the {name}, the slowest, with {depth} = {sizes[depth]}")
    if made[name].unfused.model > share:
        said.append("MFU in the roofline counts all that its rank computes, more than an even share of the model's FLOPs")
    return Slowest(made[name], tuple(said))


def spread_of(degrees: Degrees) -> int:
    """Among how many ranks the optimizer's step is divided."""
    return degrees.data * degrees.context if degrees.zero else 1


def staged(
    rank: Rank, ledger: Ledger, sizes: Mapping[str, int]
) -> tuple[dict[str, Ledger], dict[str, int], bool]:
    """The ledger of one micro-batch on each kind of stage, the sizes that its formulas are at, and whether
    its ops read the weights of a rank's own experts alone.
    """
    whole = Ledger(rank.graph, ledger.convention, ledger.allow_unknown)
    sizes = {name: sizes[name] for name in rank.graph.symbols}
    made = {rank.shares[0].stage.name: whole}
    if rank.degrees.stages > 1:
        sizes[depth_of(rank.graph)] //= rank.degrees.stages
        made = {share.stage.name: on_stage(whole, share.stage) for share in rank.shares}
    if rank.degrees.experts == 1:
        return made, sizes, True
    parts = sp.Integer(rank.degrees.experts)
    own = {name: of_own_experts(each, parts, not rank.degrees.zero) for name, each in made.items()}
    return {name: each for name, (each, _) in own.items()}, sizes, all(sure for _, sure in own.values())
