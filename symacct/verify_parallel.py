"""What one rank of many is said to hold, compute and send, against torch's own parallelism in its fake
process group.

Tensor and sequence parallelism against `parallelize_module`, ZeRO 3 against `fully_shard`, over data and
context ranks, context parallelism against torch's ring attention, experts against its all_to_all, pipelines
against the schedules and the frontend of `torch.distributed.pipelining`, and stages cut by hand where other
ranks divide them. Shards are those of tensor-parallel ranks where there are such.
"""

from __future__ import annotations

from collections.abc import Iterator

from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.parallel.degrees import Degrees
from symacct.tracing.source import ModelSource
from symacct.verify_context import context_checks
from symacct.verify_experts import expert_checks
from symacct.verify_findings import Findings
from symacct.verify_sharded import pipeline_checks, sharded_checks
from symacct.verify_stage_ranks import sharded_stage_checks, tensor_stage_checks
from symacct.verify_stages import stage_checks
from symacct.verify_tensor import tensor_checks

__all__ = ["Findings", "parallel_checks"]


def parallel_checks(source: ModelSource, graph: Graph, degrees: Degrees, seed: int = 0) -> Findings:
    """All that torch can be asked about these degrees. Raises Unsupported when that is nothing."""
    found = Findings()
    if graph.mode != "train":
        raise Unsupported(
            f"{graph.target} was traced in mode {graph.mode}: parallel degrees are compared in training steps"
        )
    axes = {
        "tp": (degrees.tensor > 1, lambda: tensor_checks(source, graph, degrees, found, seed)),
        "zero=3": (
            degrees.zero == 3 and degrees.data * degrees.context > 1,
            lambda: sharded_checks(source, graph, degrees, found, seed),
        ),
        "cp": (degrees.context > 1, lambda: context_checks(source, graph, degrees, found, seed)),
        "ep": (degrees.experts > 1, lambda: expert_checks(source, graph, degrees, found, seed)),
        "pp": (degrees.stages > 1, lambda: pipeline_checks(graph, degrees, found)),
        "what stages of pp hold": (
            degrees.stages > 1 and degrees.interleave == 1,
            lambda: stage_checks(source, graph, degrees, found, seed),
        ),
        "pp with tp": (
            min(degrees.stages, degrees.tensor) > 1,
            lambda: tensor_stage_checks(source, graph, degrees, found, seed),
        ),
        "pp with zero=3": (
            degrees.zero == 3 and min(degrees.stages, degrees.data * degrees.context) > 1,
            lambda: sharded_stage_checks(source, graph, degrees, found, seed),
        ),
    }
    asked = {axis: compare for axis, (wanted, compare) in axes.items() if wanted}
    for axis, compare in asked.items():
        try:
            compare()
        except Unsupported as error:
            if not any(str(error) in note for note in found.notes):
                found.notes[f"{axis} is not compared: {error}"] = None
    unasked = dict.fromkeys(_unasked(degrees))
    if not found.checks:
        nothing = "nothing here that torch can be asked: give tp, cp, ep, pp, or dp with zero=3"
        raise Unsupported("; ".join([*([] if asked else [nothing]), *found.notes, *unasked]))
    found.notes.update(unasked)
    return found


def _unasked(degrees: Degrees) -> Iterator[str]:
    """What of the degrees nothing was compared with."""
    if degrees.context > 1 and degrees.zero == 3:
        yield "zero=3 over dp·cp ranks is compared with whole sequences, and cp with whole weights"
    both = min(degrees.context, degrees.experts)
    if max(degrees.context, degrees.experts) > 1 and max(degrees.tensor, degrees.stages, both) > 1:
        yield "cp and ep are each compared alone, without the other axes"
    if degrees.data > 1 and degrees.zero < 3:
        yield "dp is compared at zero=3 only, where fully_shard does it"
    if degrees.stages > 1 and degrees.tensor > 1 and degrees.zero == 3:
        yield "of pp, tp and zero=3 two at a time are compared, not all three"
