"""Data parallelism: what ZeRO divides among the ranks, what FSDP gathers for a while, and what is sent.

Stages as in Rajbhandari et al. 2020, section 5: 1 divides the optimizer's state, 2 also gradients, 3 also parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.parallel.collectives import Traffic


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of parameters, gradients and optimizer state on one rank."""

    params: Expr
    grads: Expr
    optimizer: Expr

    @property
    def total(self) -> Expr:
        """All three together."""
        return sp.expand(self.params + self.grads + self.optimizer)


def divided_states(states: States, ranks: Expr, stage: int) -> States:
    """What one of `ranks` holds at a ZeRO stage; parts are taken as even, padding is outside.

    >>> from symacct.symbols import symbol
    >>> P, n = symbol("P"), symbol("n")
    >>> divided_states(States(2*P, 2*P, 12*P), n, 1).total
    4*P + 12*P/n
    """
    share = lambda size, at: sp.expand(size / ranks) if stage >= at else size  # noqa: E731
    return States(share(states.params, 3), share(states.grads, 2), share(states.optimizer, 1))


def gathered_on_stage(layers: Expr, rest: Expr) -> Expr:
    """What FSDP holds beside the parts on a pipeline's stage, at most: after a backward pass of it, all of it.

    torch's PipelineStage lets no layer go in backward, and sums gradients after the last micro-batch, so that each
    weight and its gradient are whole till then.
    """
    return sp.expand(2 * (layers + rest))


def gathered_bytes(layer: Expr, rest: Expr, ahead: bool = True) -> Expr:
    """What FSDP holds beside the parts, at most, from the bytes of one layer's parameters and of all outside the layers.

    Two gathered layers, one at work and one `ahead` (none, where all layers are one), and the full gradient of one. What
    is outside the layers, the root of `fully_shard`, stays gathered from its forward to its backward, with its gradient
    beside it.

    >>> gathered_bytes(sp.Integer(50_000_000 * 2), sp.Integer(0))  # 16 bit: 0.2 GB of parameters, 0.1 GB of gradients
    300000000
    """
    return sp.expand((3 if ahead else 2) * layer + 2 * rest)


@dataclass(frozen=True, slots=True)
class Gathers:
    """The units of FSDP in a pass: how many there are beside the root, how often they are called, all together, and the
    bytes of parameters that these calls gather. `rest` are the bytes of the root, which is gathered once.
    `first`: on a stage of a pipeline, the forward passes before its first backward pass; `each`: the bytes of each unit.
    """

    units: Expr
    calls: Expr
    called: Expr
    rest: Expr
    each: Expr
    first: Expr | None = None


def data_traffic(states: States, ranks: Expr, stage: int, passes: Expr, gathers: Gathers) -> tuple[Traffic, ...]:
    """What a step sends over the data-parallel axis. At stage 3 each of `passes` micro-batches gathers twice, unless on a pipeline's stage.

    Stage 0 sums gradients in one all_reduce; stages 1 and 2 scatter their sums, stage 2 those of every micro-batch, and
    gather the new parameters; stage 3 gathers parameters for forward and again for backward, and scatters the sums. A
    unit that is called several times is gathered in each, and scatters once; the root stays gathered for backward.
    A stage of a pipeline keeps what backward gathered, so that neither the next forward pass nor a backward pass right
    behind another one gathers it, and scatters after the last micro-batch (torch's PipelineStage).
    """
    root = sp.Integer(0 if gathers.rest == 0 else 1)
    units = gathers.units + root
    if stage == 0:
        return (Traffic("dp", "all_reduce", "backward", "gradients", units, states.grads, ranks),)
    times = passes if stage == 2 else sp.Integer(1)  # who keeps a part of the gradients alone cannot wait
    scatter = Traffic("dp", "reduce_scatter", "backward", "gradients", units * times, sp.expand(states.grads * times), ranks)
    if stage < 3:
        return scatter, Traffic("dp", "all_gather", "optimizer", "parameters", units, states.params, ranks)
    if gathers.first is not None:
        return *_on_stage(gathers, root, passes, ranks), scatter
    sent = lambda count, size: (sp.expand(count * passes), sp.expand(size * passes), ranks)  # noqa: E731
    return (
        Traffic("dp", "all_gather", "forward", "parameters", *sent(gathers.calls + root, gathers.called + gathers.rest)),
        Traffic("dp", "all_gather", "backward", "parameters", *sent(gathers.calls, gathers.called)),
        Traffic("dp", "reduce_scatter", "backward", "gradients", *sent(units, states.grads)),
    )


def _on_stage(gathers: Gathers, root: Expr, passes: Expr, ranks: Expr) -> tuple[Traffic, Traffic]:
    """A stage's forward and backward gathers. Its root is gathered once."""
    first = gathers.first
    assert first is not None

    def forward(calls: Expr, once: Expr) -> Expr:
        return calls * first + (calls - once) * (passes - first)

    again = passes - first + 1
    return (
        Traffic(
            "dp", "all_gather", "forward", "parameters",
            sp.expand(forward(gathers.calls, gathers.units) + root),
            sp.expand(forward(gathers.called, gathers.each) + gathers.rest), ranks,
        ),
        Traffic("dp", "all_gather", "backward", "parameters", sp.expand(gathers.units * again), sp.expand(gathers.each * again), ranks),
    )  # fmt: skip
