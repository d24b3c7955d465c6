"""What FSDP gathers as one: a layer of a tower, or a block that all layers share; the rest is the root.

As `fully_shard` has it, called on each layer and then on the model: a unit is gathered whenever it is called,
and again for each call's backward; its gradients, of all calls together, are scattered once (torch 2.13,
`_fsdp_param_group`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.domination import undominated
from symacct.graph import Graph, Loop, Placed, total_over
from symacct.parallel.data import gathered_bytes, gathered_on_stage
from symacct.parallel.degrees import Degrees
from symacct.parallel.holdings import Holding, layered_loops
from symacct.parallel.repeated import nodes_of
from symacct.symbols import symbol

_FORWARD = ("forward", "loss")


@dataclass(frozen=True, slots=True)
class Unit:
    """Alike units: the labels of their parameters, how many there are, and how often a pass calls them, all
    together.

    `prefixes` are the modules' paths, with a star for the number of the layer; none of a block that is
    shared.
    """

    labels: frozenset[str]
    prefixes: tuple[str, ...]
    count: Expr
    calls: Expr

    @property
    def shared(self) -> bool:
        """Whether one unit is called again and again."""
        return not self.prefixes


def units_of(graph: Graph) -> tuple[Unit, ...]:
    """The units of each region of layers of the forward pass. Layers that stand in one region are one unit."""
    params = {p.node.outputs[0].storage: p for p in graph.sources("parameter")}
    reads = _reads(graph, params)
    towers: list[tuple[set[str], set[str]]] = []  # prefixes, labels
    for loop in layered_loops(graph):
        labels = {params[s].node.label for s in _read_in(graph, loop, params) if params[s].loops}
        prefixes = {_prefix(label) for label in labels if "*" in label}
        met = [tower for tower in towers if tower[0] & prefixes]
        towers = [tower for tower in towers if tower not in met]
        towers.append((prefixes.union(*(t[0] for t in met)), labels.union(*(t[1] for t in met))))
    found = [_layer(graph, *tower, reads) for tower in towers if tower[0]]
    return (*found, *_shared(graph, params, reads))


def _read_in(graph: Graph, loop: Loop, params: Mapping[str, Placed]) -> set[str]:
    roots = {name: tensor.storage for name, tensor in graph.tensors().items()}
    nodes = [node for node in nodes_of(loop.items) if node.phase in _FORWARD]
    return {root for node in nodes for ref in node.refs if (root := roots[ref.value]) in params}


def _reads(graph: Graph, params: Mapping[str, Placed]) -> dict[str, Expr]:
    """How often a forward pass reads each parameter, by its value; a view reads nothing yet."""
    roots = {name: tensor.storage for name, tensor in graph.tensors().items()}
    found: dict[str, Expr] = {}
    for place in graph.ops:
        if place.node.phase in _FORWARD:
            made = {out.storage for out in place.node.outputs}
            for root in ({roots[ref.value] for ref in place.node.refs} & set(params)) - made:
                found[root] = found.get(root, sp.Integer(0)) + place.times
    return found


def _prefix(label: str) -> str:
    return label[: label.index("*") + 1]


def _layer(graph: Graph, prefixes: set[str], labels: set[str], reads: Mapping[str, Expr]) -> Unit:
    """A tower's layers, with those that stand apart because they differ in something: `blocks.0` beside `blocks.*`."""
    counts: dict[str, Expr] = {}
    calls: dict[str, Expr] = {}
    mine = set(labels)
    for place in graph.sources("parameter"):
        label = place.node.label
        whole = next(
            (f"{p}{label[found.end() :]}" for p in sorted(prefixes) if (found := _numbered(p).match(label))),
            None,
        )
        if label in labels or whole is not None:
            mine.add(label)
            key = label if whole is None else whole
            own = place.loops[0].count if place.loops else sp.Integer(1)
            counts[key] = counts.get(key, sp.Integer(0)) + own
            inner = sp.Mul(*(loop.count for loop in place.loops[1:]))
            calls[key] = calls.get(key, sp.Integer(0)) + reads.get(place.node.outputs[0].storage, own) / inner
    example = {symbol(name): sp.Integer(info.traced_at) for name, info in graph.symbols.items()}
    most = max((int(counts[k].xreplace(example)) for k in counts), default=0)
    full = [k for k in sorted(counts) if int(counts[k].xreplace(example)) == most]
    least = min(full, key=lambda k: float(calls[k].xreplace(example)))
    return Unit(frozenset(mine), tuple(sorted(prefixes)), sp.expand(counts[least]), sp.expand(calls[least]))


def _numbered(prefix: str) -> re.Pattern[str]:
    return re.compile(re.escape(prefix).replace(r"\*", r"\d+") + r"(?=\.)")


def _shared(graph: Graph, params: Mapping[str, Placed], reads: Mapping[str, Expr]) -> Iterator[Unit]:
    """Blocks that a region of no layers of its own calls in each repetition: not the cell of a recurrence,
    whose repetitions are the steps of an input.
    """
    roots = {name: tensor.storage for name, tensor in graph.tensors().items()}
    steps = {
        s.name for p in graph.sources("input") for size in p.node.outputs[0].shape for s in size.free_symbols
    }
    outside = {
        roots[r.value]
        for item in graph.items
        if not isinstance(item, Loop)
        for r in item.refs
        if item.phase in _FORWARD
    }
    layers = {id(loop) for loop in layered_loops(graph)}
    for item in graph.items:
        if isinstance(item, Loop) and id(item) not in layers and item.size not in steps:
            mine = {s: params[s].node.label for s in _read_in(graph, item, params) if s not in outside}
            if mine:
                least = min(mine, key=lambda s: (len(str(reads[s])), mine[s]))
                yield Unit(frozenset(mine.values()), (), sp.Integer(1), sp.expand(reads[least]))


def layer_bytes(graph: Graph, units: Iterable[Unit]) -> list[dict[str, Expr]]:
    """Bytes of each parameter of one unit, by label; of layers of several kinds the most."""
    size: dict[str, list[Expr]] = {}
    for p in graph.sources("parameter"):
        size.setdefault(p.node.label, []).append(total_over(sp.expand(p.node.outputs[0].bytes), p.loops[1:]))
    return [{label: largest(size[label]) for label in unit.labels} for unit in units]


def largest(sizes: Iterable[Expr]) -> Expr:
    """The largest of these bytes; a maximum where the sizes decide."""
    found = undominated(sp.expand(size) for size in sizes)
    return sp.Max(*found) if found else sp.Integer(0)


def gathered(graph: Graph, mine: Iterable[tuple[Holding, Expr]], e: Expr, degrees: Degrees) -> Expr:
    """What FSDP holds whole for a while on a stage, at most: of several towers, that of the largest layer.

    With ZeRO stage 2 gradients alone, of one layer and of all outside the layers, until they are scattered.
    `mine`: the parameters that the stage holds, and which part of each; `e`: among how many ranks experts are spread.
    """
    if degrees.zero < 2 or degrees.data * degrees.context == 1:
        return sp.Integer(0)
    spread = lambda h, size: size / e if h.expert else size  # noqa: E731
    here, units = list(mine), units_of(graph)
    sizes, owner = layer_bytes(graph, units), {h.label: h for h, _ in here}
    inside = {label for unit in sizes for label in unit}
    rest = sp.Add(*(spread(h, h.param) for h, _ in here if h.label not in inside))
    if degrees.stages > 1 and degrees.zero == 3:
        whole = (spread(h, part * h.param) for h, part in here if h.label in inside)
        return gathered_on_stage(sp.Add(*whole), rest)
    layer = largest(
        sp.Add(*(spread(owner[label], size) for label, size in unit.items() if label in owner))
        for unit in sizes
    )
    if degrees.zero == 2:
        return sp.expand(layer + rest)
    ahead = len(units) > 1 or not all(unit.shared for unit in units)
    return gathered_bytes(layer, sp.expand(rest), ahead=ahead)
