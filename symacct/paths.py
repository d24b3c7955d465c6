"""Questions about a graph as a graph: what a node comes from, and the longest chain of work that cannot run in parallel.

Both read the networkx view. An operand from an earlier iteration is an edge of the loop, not of one iteration; the
chain leaves it out and counts a repeated node once for each repetition.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import sympy as sp

from symacct.account import Ledger
from symacct.errors import SizeError
from symacct.graph import Graph, Placed


def ancestors(graph: Graph, name: str) -> tuple[Placed, ...]:
    """The nodes that the node of this name depends on, in execution order. Raises SizeError for an unknown name."""
    view = graph.to_networkx()
    if name not in view:
        raise SizeError(f"{graph.target}: no node is named {name}; 'symacct explain --format json' lists the names")
    found = nx.ancestors(view, name)
    return tuple(place for place in graph.placed() if place.node.name in found)


def critical_path(ledger: Ledger, sizes: Mapping[str, int]) -> tuple[tuple[Placed, ...], int]:
    """The chain of dependent nodes with the most FLOPs at these sizes, and those FLOPs, repetitions included.

    FLOPs are the ledger's, under its convention. Raises SizeError for sizes outside the domain.
    """
    numbers = ledger.checked(sizes)
    cost = {e.place.node.name: int(sp.Integer(ledger.counted(e).xreplace(numbers))) for e in ledger.entries}
    view = nx.DiGraph()
    order = {place.node.name: k for k, place in enumerate(ledger.graph.placed())}
    view.add_nodes_from(order)
    for a, b in ledger.graph.to_networkx().edges():
        if order[a] < order[b]:  # what is made later comes from the iteration before
            view.add_edge(a, b, weight=cost.get(b, 0))
    chain = nx.dag_longest_path(view, weight="weight")
    places = {place.node.name: place for place in ledger.graph.placed()}
    return tuple(places[name] for name in chain), sum(cost.get(name, 0) for name in chain)
