"""Tensor and sequence parallelism: one rank's graph from the whole one."""

from __future__ import annotations

from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.errors import Unsupported
from symacct.graph import Assumption, Graph, SymbolInfo
from symacct.parallel.layout import Part
from symacct.parallel.lifetimes import deaths_of
from symacct.parallel.sharding import Division, Sharder


def sharded(graph: Graph, division: Division) -> Graph:
    """One rank's graph. Raises Unsupported with every op that cannot be divided as asked."""
    sharder = Sharder(graph, division)
    items = sharder.items()
    if set(sharder.cut) - set(division.caches):
        return sharded(graph, replace(division, caches={**division.caches, **sharder.cut}))
    if sharder.refusals:
        lines = [f"  {r.node.op} in {r.node.module or 'the model'} ({r.node.source or 'backward'}): {r.why}" for r in sharder.refusals]
        raise Unsupported("\n".join([f"{graph.target} cannot be divided so:", *dict.fromkeys(lines)]))
    ranks = sorted(division.ranks.free_symbols, key=str)
    return replace(
        graph, items=items, symbols={**graph.symbols, **{s.name: SymbolInfo("ranks of one axis", 2) for s in ranks}},
        assumptions=(*graph.assumptions, *conditions(sharder)), storages=_storages(sharder), kept=_kept(sharder), peak=None, deaths=deaths_of(sharder),
    )


def conditions(sharder: Sharder) -> tuple[Assumption, ...]:
    """What the number of ranks must divide, without what follows from the rest."""
    ranks = sharder.division.ranks
    sizes = sorted(sharder.conditions, key=lambda size: (sp.count_ops(size), str(size)))
    whole = {(a.left, a.right) for a in sharder.graph.assumptions if a.kind == "divides"}

    def follows(size: Expr, other: Expr) -> bool:
        return size != other and (sp.fraction(sp.cancel(size / other))[1] == 1 or (size, other) in whole)

    needed = [size for size in sizes if not any(follows(size, other) for other in sizes)]
    return tuple(Assumption("divides", size, ranks, sharder.conditions[size]) for size in needed)


def _storages(sharder: Sharder) -> dict[str, Expr]:
    ranks, layouts = sharder.division.ranks, sharder.layouts
    old = {value: sp.expand(size / ranks) if isinstance(layouts.get(value), Part) else size for value, size in sharder.graph.storages.items()}
    return {**old, **sharder.storages}


def _kept(sharder: Sharder) -> dict[str, Expr] | None:
    """How often each storage is kept: by what reads it in backward, in the version that it reads."""
    if sharder.graph.kept is None:
        return None
    found: dict[str, Expr] = {}
    for storage, count in sharder.graph.kept.items():
        versions = sharder.kept_as.get(storage, [storage])
        others = [actual for actual in versions if actual != storage and actual in sharder.forward]
        # what one reader outside the layers gathered stands for one repetition: the others keep the storage as it is
        single = [actual for actual in others if not sharder.births[actual].loops and count != 1]
        found.update((actual, sp.Integer(1) if actual in single else count) for actual in others)
        if len(others) < len(versions) or single:  # gathered again in backward: what is kept is the part
            found[storage] = sp.expand(count - len(single))
    return found
