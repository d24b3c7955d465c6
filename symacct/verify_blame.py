"""Which op, module and source line a total that disagrees comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy as sp

from symacct.account import Ledger
from symacct.graph import Graph, total_over
from symacct.records import Trace, template
from symacct.symbols import symbol
from symacct.verify_shapes import Alignment, Call, Step, align

_SHOWN = 3
_TIMES, _PRODUCTS = "aten.mul", ("aten.bmm", "aten.mm")


def products(ledger: Ledger, steps: Sequence[Step], calls: Sequence[Call], sizes: Mapping[str, int], phases: Sequence[str]) -> str:
    """The ops whose products differ from the counter's, in words: at most three, the widest difference first."""
    paired = align(steps, calls)
    differing = [*_by_node(ledger, steps, calls, paired, sizes, phases), *_swapped(ledger, steps, calls, paired, sizes, phases)]
    differing.sort(key=lambda found: -abs(found[1] - found[2]))
    lines = [f"{place}: {derived:,} derived, {counted:,} counted" for place, derived, counted in differing[:_SHOWN]]
    if not lines and paired.broken:
        lines = [paired.broken]
    return "; ".join(lines) or "no single op differs"


def _by_node(
    ledger: Ledger, steps: Sequence[Step], calls: Sequence[Call], paired: Alignment, sizes: Mapping[str, int], phases: Sequence[str]
) -> Iterator[tuple[str, int, int]]:
    """Nodes all of whose calls are paired: (place, derived, counted)."""
    counted: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for i, j in paired.pairs:
        counted[steps[i].node.name] += calls[j].flops
        met[steps[i].node.name] += 1
    runs = Counter(step.node.name for step in steps)
    numbers = _numbers(sizes)
    for entry in ledger.entries:
        name = entry.place.node.name
        if entry.phase in phases and met[name] and met[name] == runs[name]:
            derived = entry.product.xreplace(numbers)
            if derived != counted[name]:
                yield entry.place.node.place, _whole(derived), counted[name]


def _swapped(
    ledger: Ledger, steps: Sequence[Step], calls: Sequence[Call], paired: Alignment, sizes: Mapping[str, int], phases: Sequence[str]
) -> Iterator[tuple[str, int, int]]:
    """Stretches in which ops differ: the graph's model FLOPs there, or with a kernel's repetition, against the counter's."""
    numbers = _numbers(sizes)
    by_name = {entry.place.node.name: entry for entry in ledger.entries}
    runs = Counter(step.node.name for step in steps)
    for swap in paired.swaps:
        entries = [by_name[steps[i].node.name] for i in swap.steps if steps[i].node.name in by_name]
        if not entries or entries[0].phase not in phases:
            continue
        with_repeats = sum(e.product.xreplace(numbers) / max(1, runs[e.place.node.name]) for e in entries)
        repeats = sum(e.recomputed.xreplace(numbers) / max(1, runs[e.place.node.name]) for e in entries)
        counted = sum(calls[j].flops for j in swap.calls)
        if counted not in (with_repeats, with_repeats - repeats):
            chief = max(entries, key=lambda e: e.product.xreplace(numbers))
            yield chief.place.node.place, _whole(with_repeats), counted


def multiplied(ledger: Ledger, steps: Sequence[Step], trace: Trace, sizes: Mapping[str, int], phases: Sequence[str]) -> tuple[int, str]:
    """FLOPs of the products that a run at sizes of 1 multiplies elementwise instead, and their source lines in words.

    What `einsum` sums over a size of 1, or over none, it does so: torch's counter then sees no product.
    """
    here = Counter((r.phase, r.source, r.op) for r in trace.records)
    graph = Counter((s.node.phase, s.node.source, s.node.op) for s in steps)
    numbers = _numbers(sizes)
    flops, lines = 0, set()
    for entry in ledger.entries:
        phase, source, op = entry.phase, entry.place.node.source, entry.op
        more = here[phase, source, _TIMES] > graph[phase, source, _TIMES]
        if phase in phases and op in _PRODUCTS and more and not here[phase, source, op]:
            flops += _whole(entry.product.xreplace(numbers))
            lines.add(source)
    return flops, ", ".join(sorted(lines))


def tensors(graph: Graph, kind: str, trace: Trace, sizes: Mapping[str, int], nbytes: bool) -> str:
    """The parameters, gradients or states whose sizes differ from those of a run on fake tensors, in words."""
    from symacct.dtypes import width

    numbers = _numbers(sizes)
    foretold: Counter[str] = Counter()
    for place in graph.sources(kind):
        for out in place.node.outputs:
            size = total_over(out.bytes if nbytes else out.numel, place.loops).xreplace(numbers)
            foretold[template(place.node.label)] += _whole(size)
    found: Counter[str] = Counter()
    for record in trace.records:
        if record.op == kind:
            for value in record.outputs:
                count = sp.prod(value.shape) * (width(value.dtype) if nbytes else 1)
                found[template(record.name)] += int(count)
    wrong = [name for name in {**foretold, **found} if foretold[name] != found[name]]
    lines = [f"{kind} {name}: {foretold[name]:,} derived, {found[name]:,} observed" for name in wrong[:_SHOWN]]
    return "; ".join(lines) or f"no single {kind} differs from a run on fake tensors"


def _numbers(sizes: Mapping[str, int]) -> dict[sp.Symbol, sp.Integer]:
    return {symbol(name): sp.Integer(value) for name, value in sizes.items()}


def _whole(value: Any) -> int:
    return int(value) if getattr(value, "is_Integer", isinstance(value, int)) else -1
