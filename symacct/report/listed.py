"""The answer of `graphs`: the stored graphs, what each is a graph of, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from symacct.account import Ledger
from symacct.expressions import to_text
from symacct.graph import Graph, Loop, Placed
from symacct.report.grids import Column, Grid, Page
from symacct.report.readable import reading_of, shown


def grid(graphs: Iterable[Graph]) -> Grid:
    """A line per graph: sizes, parameters, forward FLOPs."""
    rows = []
    for graph in graphs:
        formulas, reading = Ledger(graph, allow_unknown=True).formulas, reading_of(graph)
        rows.append(
            (
                graph.target,
                " ".join(graph.symbols),
                str(len(graph.ops)),
                shown(formulas["params.total"], reading),
                shown(formulas["flops.forward"], reading),
            )
        )
    columns = (
        ("graph", "left"),
        ("sizes", "text"),
        ("ops", "right"),
        ("parameters", "formula"),
        ("forward FLOPs", "formula"),
    )
    return Grid(tuple(Column(*column) for column in columns), tuple(rows))


def as_json(graphs: Iterable[Graph]) -> str:
    """A list of objects."""
    found = []
    for graph in graphs:
        formulas = Ledger(graph, allow_unknown=True).formulas
        found.append(
            {
                "name": graph.target,
                "mode": graph.mode,
                "symbols": list(graph.symbols),
                "nodes": len(graph.ops),
                "params.total": to_text(formulas["params.total"]),
                "flops.forward": to_text(formulas["flops.forward"]),
            }
        )
    return json.dumps(found, indent=2, ensure_ascii=False)


def listing(graph: Graph, page: Page) -> None:
    """A graph as a program: a line a node, loops indented."""
    page.line(f"{graph.target} · {graph.mode} · {graph.device} behaviour · {len(graph.ops)} ops", "bold")
    page.hanging(
        "sizes", [f"{name} {info.meaning}".rstrip() for name, info in graph.symbols.items()], 13, " · "
    )
    if graph.assumptions:
        page.hanging("holds when", [a.short for a in graph.assumptions], 13, ",  ")
    around: tuple[Loop, ...] = ()
    phase = ""
    for place in graph.placed():
        if place.node.phase != phase:
            phase, around = place.node.phase, ()
            page.line()
            page.line(phase, "bold")
        for loop in place.loops[_common(around, place.loops) :]:
            page.line(
                f"{'  ' * (place.loops.index(loop) + 1)}for {loop.index} in 0 … {shown(loop.count - 1)}"
            )
        around = place.loops
        page.line(_line(place))


def _common(one: tuple[Loop, ...], other: tuple[Loop, ...]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a is not b),
        min(len(one), len(other)),
    )


def _line(place: Placed) -> str:
    node = place.node
    made = ", ".join(
        f"{out.value} ({', '.join(shown(dim) for dim in out.shape)}) {out.dtype}" for out in node.outputs
    )
    used = ", ".join(ref.value + (f"[-{ref.back}]" if ref.back else "") for ref in node.refs)
    where = "  ".join(filter(None, (node.label or node.module, node.source)))
    return f"{'  ' * (len(place.loops) + 1)}{made} = {node.op}({used})    {where}"
