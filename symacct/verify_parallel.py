"""What one rank of many is said to hold, compute and send, against torch's own parallelism in its fake
process group.

Tensor and sequence parallelism against `parallelize_module`, ZeRO 3 against `fully_shard`, pipelines against
`torch.distributed.pipelining`. Shards are those of tensor-parallel ranks where there are such.
"""

from __future__ import annotations

from collections.abc import Iterator

from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.parallel.degrees import Degrees
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings
from symacct.verify_sharded import pipeline_checks, sharded_checks
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
            degrees.zero == 3 and degrees.data > 1,
            lambda: sharded_checks(source, graph, degrees, found, seed),
        ),
        "pp": (degrees.stages > 1, lambda: pipeline_checks(graph, degrees, found)),
    }
    asked = {axis: compare for axis, (wanted, compare) in axes.items() if wanted}
    for axis, compare in asked.items():
        try:
            compare()
        except Unsupported as error:
            found.notes[f"{axis} is not compared: {error}"] = None
    if not found.checks:
        raise Unsupported(
            "; ".join(found.notes) or "nothing here that torch can be asked: give tp, pp, or dp with zero=3"
        )
    found.notes.update(dict.fromkeys(_unasked(degrees, len(asked))))
    return found


def _unasked(degrees: Degrees, asked: int) -> Iterator[str]:
    """What of the degrees nothing was compared with."""
    for name, degree in ("cp", degrees.context), ("ep", degrees.experts):
        if degree > 1:
            yield f"{name} is not compared: torch has no public way to divide an unmodified model so"
    if degrees.data > 1 and degrees.zero < 3:
        yield "dp is compared at zero=3 only, where fully_shard does it"
    if asked > 1 and degrees.stages > 1:
        yield "pipelines are compared alone, the other axes without them"
