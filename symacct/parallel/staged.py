"""The ledger of what one pipeline stage runs of a step: its layers, what stands at its end of them, and its
part of the optimizer's step. At the stage's own number of layers its formulas are its costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symacct.account import Ledger
from symacct.graph import Graph, Item, Loop, Node, Ref
from symacct.parallel.holdings import AFTER, BEFORE, INSIDE, holdings, stands
from symacct.parallel.peak import followed
from symacct.parallel.pipeline import Stage

_OPTIMIZER = "optimizer"


def on_stage(ledger: Ledger, stage: Stage) -> Ledger:
    """The entries of a stage alone. Lists of an optimizer's op are those of the stage's own parameters."""
    graph = ledger.graph
    here = {INSIDE, *([BEFORE] if stage.before else []), *([AFTER] if stage.after else [])}
    labels = {h.label for h in holdings(graph) if here & set(h.where)}
    stepped = Stepped(graph, labels)
    items = tuple(item for item in map(stepped.item, graph.items) if item is not None)
    places = stands(graph)
    made = Ledger(replace(graph, items=items), ledger.convention, ledger.allow_unknown)
    made.__dict__["entries"] = tuple(
        entry for entry in made.entries if entry.phase == _OPTIMIZER or places[entry.place.node.name] in here
    )
    return made


class Stepped:
    """A walk that leaves of the optimizer's ops what they do with some parameters, and with none."""

    def __init__(self, graph: Graph, labels: set[str]) -> None:
        self.labels = labels
        self.roots = {value: tensor.storage for value, tensor in graph.tensors().items()}
        self.owner: dict[str, str] = {}
        for op in ("parameter", "gradient", "state"):
            for place in graph.sources(op):
                label = place.node.label.rpartition(".")[0] if op == "state" else place.node.label
                self.owner.update((out.storage, label) for out in place.node.outputs)

    def item(self, item: Item) -> Item | None:
        """The item without what is of other parameters; None if nothing is left."""
        if isinstance(item, Loop):
            items = tuple(part for part in map(self.item, item.items) if part is not None)
            return replace(item, items=items) if items else None
        return self._node(item) if item.phase == _OPTIMIZER else item

    def _node(self, node: Node) -> Node | None:
        self.owner.update(followed(node, self.owner, self.roots))
        first: Any = next((a for _, a in node.arguments if isinstance(a, (Ref, tuple))), None)
        if isinstance(first, Ref):
            return node if self._mine(first) else None
        if first is None:
            return node
        kept = [k for k, ref in enumerate(first) if self._mine(ref)]
        if not kept:
            return None
        cut = lambda row: tuple(row[k] for k in kept) if len(row) == len(first) else row  # noqa: E731
        arguments = tuple((name, cut(a) if isinstance(a, tuple) else a) for name, a in node.arguments)
        return replace(node, arguments=arguments, outputs=cut(node.outputs))

    def _mine(self, ref: Any) -> bool:
        """Whether an operand is of these parameters, or of none at all."""
        label = _owner(ref, self.owner, self.roots)
        return label is None or label in self.labels


def _owner(ref: Any, owner: Mapping[str, str], roots: Mapping[str, str]) -> str | None:
    return owner.get(roots[ref.value]) if isinstance(ref, Ref) else None
