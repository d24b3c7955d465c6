"""The collectives of one rank as they are derived, each as often as it runs at a point, against those heard of torch's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.graph import Graph
from symacct.parallel.rank import Rank
from symacct.parallel.shared_inputs import Shared, apart_from
from symacct.parallel.torch_styles import torch_plan
from symacct.verify_findings import numbers_of
from symacct.verify_shapes import Step


def sent_in(
    graph: Graph, steps: list[Step], ranks: Expr, point: Mapping[str, int]
) -> Iterator[tuple[Step, int]]:
    """Each collective that one rank takes part in, with the bytes of the whole tensor."""
    tensors, numbers = graph.tensors(), numbers_of(point)
    for step in steps:
        if step.node.op.startswith("c10d."):
            operand = next((tensors[ref.value] for ref in step.node.refs), None)
            out = step.node.outputs[0] if step.node.outputs else operand
            assert out is not None
            times = ranks if kind_of(step.node.op) == "reduce_scatter" else 1
            yield step, int(sp.expand(out.bytes * times).xreplace(numbers))


def differences(
    expected: Counter, observed: Counter, places: Mapping[Any, list[str]], kind: str
) -> Iterator[str]:
    for key in expected | observed:
        if key[0] == kind and expected[key] != observed[key]:
            named = f" ({'; '.join(list(dict.fromkeys(places[key]))[:3])})" if key in places else ""
            what = f"{kind} of {key[2]:,} bytes in {key[1]}"
            yield f"{what}: {expected[key]} foretold{named}, {observed[key]} seen"


def kind_of(op: str) -> str:
    return op.removeprefix("c10d.").removesuffix("_")


def added(alone: Iterable[Shared], numbers: Mapping[sp.Symbol, sp.Integer]) -> Counter[tuple[str, str, int]]:
    """Collectives that torch takes for each of some modules, beside the derived ones, by kind, phase and bytes."""
    found = Counter[tuple[str, str, int]]()
    for more in (more for group in alone for more in group.more):
        found[more.kind, more.phase, int(more.bytes.xreplace(numbers))] += int(more.count.xreplace(numbers))
    return found


def alone_in(graph: Graph, share: Rank) -> list[Shared]:
    """The modules of a graph that share an input which torch brings in for each, where ranks divide it so."""
    if share.plan is None:
        return []
    told = torch_plan(graph, share.graph, share.plan, share.names.of["tp"], share.degrees.sequence)
    return [group for group in told.shared if group.more]


def notes_of(alone: Iterable[Shared]) -> Iterator[str]:
    """What is said of them where torch's collectives are compared."""
    return (f"{apart_from(group)}; the comparison adds these" for group in alone)
