"""One context-parallel rank as it is derived, against torch's ring attention on its part of the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct import oracles_context as torch_ring
from symacct import verify_runs as runs
from symacct.account import Ledger
from symacct.certificate import Check
from symacct.conventions import convention
from symacct.errors import Unsupported
from symacct.graph import Assumption, Graph, total_over
from symacct.oracles_parallel import Rank as Seen
from symacct.parallel.collectives import Traffic
from symacct.parallel.degrees import Degrees
from symacct.parallel.rank import Rank, rank
from symacct.symbols import symbol
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, check_of, models_at, torch_running

_SEQUENCES = ("T", "S")
_FUSED = "aten._scaled_dot_product_"
_HOP = (
    "torch's ring passes the gradients of keys and values on c times, the last time to where they belong, a "
    "reduce_scatter c - 1 times; symacct counts the latter: bytes of torch are compared without that hop"
)
_TABLES = (
    "what is made of the positions alone is whole on every rank as derived; torch's rank makes it of its own "
    "positions, and bytes.saved is compared so"
)


def context_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Products, kept bytes and what is sent of the rank that attends to all tokens. `share` is what the rank
    is said to do if another answer than the derived one is to be tested.

    Raises Unsupported where the sequence is divided otherwise than in fused attention alone.
    """
    ranks, alone = degrees.context, Degrees(context=degrees.context)
    share = share or rank(graph, alone)
    _attention_alone(share)
    c = share.names.of["cp"]
    sequences = [name for name in _SEQUENCES if name in source.dims]
    halves = (Assumption("divides", symbol(name), 2 * c, "") for name in sequences)
    bounded = replace(share.graph, assumptions=(*share.conditions, *halves))
    for point, real in models_at(source, bounded, {c.name: ranks}, found, seed):
        mine = {name: size // ranks if name in sequences else size for name, size in point.items()}
        part = _part(source, real, {name: mine[name] for name in source.dims})
        found.points.append(point)
        for method, does in torch_ring.METHODS.items():
            seen, blocks = _run(part, ranks, ranks - 1, method)
            oracle = f"torch's ring attention, which {does}, rank {ranks - 1} of {ranks}"
            found.notes.update(dict.fromkeys(seen.notes))
            found.checks += _checks(share, seen, method, oracle, point, found)
        if ranks * sum(block.causal for block in blocks) == len(blocks):  # all of it is causal
            found.checks += _balanced(share, part, point)
        return


def _attention_alone(share: Rank) -> None:
    """Raises Unsupported unless what the ranks send each other are keys and values of fused attention."""
    gathered = sp.Add(*(x.payload for x in share.traffic if _among(x) and x.phase == "forward"))
    tensors, needed, modules = share.graph.tensors(), sp.Integer(0), set()
    for place in share.graph.ops:
        if place.node.op.startswith(_FUSED) and place.node.phase == "forward":
            read = dict(place.node.arguments)
            modules.add(place.node.module)
            each = sp.Add(*(tensors[read[name].value].bytes for name in ("key", "value")))
            needed += total_over(sp.expand(each), place.loops)
    if needed == 0:
        raise Unsupported("the model has no fused attention in its graph, and torch's ring divides no other")
    if sp.expand(gathered - needed) != 0:
        rows = [x for x in share.traffic if _among(x) and x.phase == "forward" and x.what not in modules]
        rest = ", ".join(dict.fromkeys(x.what for x in rows))
        raise Unsupported(
            "ranks gather more of the sequence than the keys and values of attention, in "
            f"{rest or 'attention'}, which torch's context_parallel leaves to the model"
        )


def _among(x: Traffic) -> bool:
    """Whether context ranks send it each other, other than sums of gradients and of the loss."""
    return x.axis == "cp" and not x.once and x.kind != "all_reduce"


def _part(source: ModelSource, real: runs.Real, mine: Mapping[str, int]) -> runs.Real:
    """The model with as many tokens as a rank has."""
    inputs, judge = source.inputs(mine), source.loss
    loss = None if judge is None else lambda output: judge(output, mine, inputs)
    return runs.Real(real.model, inputs, loss)


def _run(
    part: runs.Real, ranks: int, rank: int, method: str, balanced: bool = False
) -> tuple[Seen, tuple[torch_ring.Block, ...]]:
    part.model.zero_grad(set_to_none=True)
    with torch_running("this model"):
        return torch_ring.ring_rank(part.model, part.inputs, part.loss, ranks, rank, method, balanced)


def _checks(
    share: Rank, seen: Seen, method: str, oracle: str, point: Mapping[str, int], found: Findings
) -> Iterator[Check]:
    yield check_of("flops.forward", share.flops["flops.forward"], seen.flops_forward, oracle, point)
    backward = share.flops["flops.hardware"] - share.flops["flops.forward"]
    yield check_of("flops.backward", backward, seen.flops_backward, oracle, point)
    kept = share.shares[0].kept
    if kept is not None:
        tables = _of_positions(share)
        if tables != 0:
            found.notes[_TABLES] = None
        own = kept - tables + tables / share.names.of["cp"]
        yield check_of("bytes.saved", own, seen.saved_bytes, oracle, point)
    found.notes[_HOP] = None
    for phase in ("forward", "backward"):
        rows = [x for x in share.traffic if _among(x) and x.phase == phase]
        sent = sp.Add(*(x.ring for x in rows))
        yield check_of(f"bytes sent in {phase}", sent, _sent(share, seen, method, phase), oracle, point)


def _of_positions(share: Rank) -> Expr:
    """Bytes kept of what shows the sequence and is not divided."""
    graph, c = share.graph, share.names.of["cp"]
    along = {symbol(name) for name in _SEQUENCES}

    def whole(size: Expr) -> bool:
        return bool(along & size.free_symbols) and c not in size.free_symbols

    sizes = graph.storages
    kept = [(sizes[name], count) for name, count in (graph.kept or {}).items() if name in sizes]
    return sp.expand(sp.Add(*(size * count for size, count in kept if whole(size))))


def _sent(share: Rank, seen: Seen, method: str, phase: str) -> int:
    """Bytes that torch's rank sends: of a gather, all but a part of the whole; of a rotation, all it holds.

    The last of the c rotations of an attention's gradients brings them home; it is left out.
    """
    ranks = share.degrees.context
    gathered = sum(x.payload for x in seen.sent if (x.kind, x.phase) == ("all_gather", phase))
    passed = [x.payload for x in seen.sent if (x.kind, x.phase) == ("all_to_all", phase)]
    hops = {"forward": ranks - 1, "backward": ranks if method == "allgather" else 2 * ranks - 1}[phase]
    home = sum(passed) // hops if phase == "backward" else 0
    return gathered * (ranks - 1) // ranks + sum(passed) - home


def _balanced(share: Rank, part: runs.Real, point: Mapping[str, int]) -> Iterator[Check]:
    """Products without pairs behind the mask, where each rank has a piece of both ends of the sequence."""
    ranks = share.degrees.context
    exact = Ledger(share.graph, convention(None, attention="exact")).formulas["flops.forward"]
    for number in dict.fromkeys((0, ranks - 1)):
        seen, blocks = _run(part, ranks, number, "allgather", True)
        oracle = f"torch's ring attention, balanced, rank {number} of {ranks}, pairs behind the mask left out"
        observed = seen.flops_forward - sum(block.behind for block in blocks)
        yield check_of("flops.forward (--attention exact)", exact, observed, oracle, point)
