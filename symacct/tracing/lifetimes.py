"""A traced graph's memory: what is kept for backward, where storages die, and the peak of a steady step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy as sp

from symacct.deaths import deaths
from symacct.errors import GraphError, TraceError
from symacct.graph import Graph
from symacct.liveness import timeline
from symacct.lowering import Lowering
from symacct.peak import most_alive, peak
from symacct.records import Trace
from symacct.symbols import symbol

Places = tuple[tuple[str, sp.Expr], ...]


def with_memory(graph: Graph, lowering: Lowering, structural: Sequence[str]) -> Graph:
    """The graph with all that is known of its memory; what follows no rule is left out, and a remark says so."""
    remarks = list(graph.remarks)
    kept = lowering.kept if graph.mode == "train" else None
    if kept is not None and lowering.irregular:
        remarks.append(
            f"what is kept for backward follows no rule at {lowering.irregular[0]}; bytes.saved is left out"
        )
        kept = None
    try:
        graph = replace(graph, kept=kept, deaths=deaths(lowering.concrete, lowering.names, lowering.tensors))
    except TraceError as error:
        graph = replace(graph, kept=kept)
        remarks.append(f"{error}; when each tensor dies is left out")
    graph = replace(graph, peak=_peak(graph, lowering, structural))
    if graph.peak is None:
        remarks.append("live bytes follow no rule that the runs confirm; bytes.peak is left out")
    return replace(graph, remarks=tuple(remarks))


def _peak(graph: Graph, lowering: Lowering, structural: Sequence[str]) -> Places | None:
    """Candidates for the peak, by the sizes that live in each run, else by the deaths; the runs must confirm
    them."""
    if lowering.merged:
        return None
    found = peak(lowering.concrete, lowering.names, lowering.storages, structural)
    if found is not None:
        return tuple((candidate.node, candidate.bytes) for candidate in found)
    places = _of_deaths(graph)
    runs = [run.trace for run in lowering.concrete]
    return (
        places
        if places is not None and all(_confirmed(places, trace.sizes, trace) for trace in runs)
        else None
    )


def _of_deaths(graph: Graph) -> Places | None:
    if graph.deaths is None:
        return None
    try:
        return tuple((moment.node, live) for moment, live in timeline(graph).candidates())
    except GraphError:
        return None


def _confirmed(places: Places, sizes: Mapping[str, int], trace: Trace) -> bool:
    """Whether the largest candidate is the peak of a run at these sizes."""
    numbers = {symbol(n): sp.Integer(v) for n, v in sizes.items()}
    values = [live.xreplace(numbers) for _, live in places]
    return all(value.is_Integer for value in values) and max(values) == most_alive(trace)
