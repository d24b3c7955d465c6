"""One rank's share of a graph: every node with the shapes that one rank sees, and the collectives between the ranks.

The graph is read as a program on global tensors; what is given is how its parameters are divided. Layouts follow op
by op (`laws`); where an op needs another layout than its operand has, a collective is inserted as a node of its own:

    c10d.all_gather      parts to the whole         c10d.reduce_scatter   summands to parts
    c10d.all_reduce      summands to the whole      aten.narrow           the whole to a part: nothing is sent

Gradients of whole parameters that end as summands are summed over the ranks, as under sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.domain import Domain
from symacct.errors import Unsupported
from symacct.graph import SOURCES, Graph, Item, Loop, Node, Ref, Tensor
from symacct.parallel.calls import Placing
from symacct.parallel.division import Division, Refusal
from symacct.parallel.laws import Undivided, layouts_of
from symacct.parallel.layout import GRADIENT, SUMMAND, WHOLE, Layout, Part, Summand, divided, local_shape
from symacct.parallel.lifetimes import Birth
from symacct.parallel.products import product  # noqa: F401  registers the laws of products
from symacct.parallel.repeated import entrance, nodes_of, passed_on, renamed
from symacct.symbols import symbol

_POINTS = 4
_PASSES = ("forward", "loss")


@dataclass
class Sharder:
    """One walk over a graph. `refusals` and `conditions` tell afterwards what went wrong and what must divide."""

    graph: Graph
    division: Division
    layouts: dict[str, Layout] = field(default_factory=dict)
    conditions: dict[Expr, str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    met: list[Refusal] = field(default_factory=list)  # the refusals of every try, first ones first
    kept_as: dict[str, list[str]] = field(default_factory=dict)
    storages: dict[str, Expr] = field(default_factory=dict)
    versions: dict[tuple[str, str, Layout], str] = field(default_factory=dict)
    made: dict[str, Tensor] = field(default_factory=dict)
    out: list[Item] = field(default_factory=list)
    forward: set[str] = field(default_factory=set)
    births: dict[str, Birth] = field(default_factory=dict)  # of the storages that this division adds
    last: dict[str, str] = field(default_factory=dict)  # the last node that reads each storage
    loops: list[Loop] = field(default_factory=list)
    cut: dict[str, Part] = field(default_factory=dict)  # parts of a cache of which a rank needs a part alone
    faces: dict[str, str] = field(default_factory=dict)  # the storage of a view of another version
    outside: set[str] = field(default_factory=set)  # summands that a region reads, summed before it
    count: int = 0

    def __post_init__(self) -> None:
        self.tensors = self.graph.tensors()
        self.maker = {out.value: p.node for p in self.graph.placed() for out in p.node.outputs}
        self.tables: dict[str, str] = {p.node.module: ref.value for p in self.graph.ops if p.node.op == "aten.embedding" for k, ref in p.node.arguments if k == "weight"}
        self.param_of = {p.node.label: p.node.outputs[0] for p in self.graph.sources("parameter")}
        self.shapes_of: dict[str, set[tuple[Expr, ...]]] = {}  # several where layers of some kinds alternate
        for p in self.graph.sources("parameter"):
            self.shapes_of.setdefault(p.node.label, set()).add(p.node.outputs[0].shape)
        gradients = [p.node for p in self.graph.sources("gradient")]
        self.added_to = {out.value: node.label for node in gradients for out in node.outputs if out.storage == out.value}
        self.where = {p.node.name: (p.node.phase, tuple(id(loop) for loop in p.loops)) for p in self.graph.placed()}
        self.home = {out.value: self.where[p.node.name][1] for p in self.graph.placed() for out in p.node.outputs}
        domain = Domain(tuple(self.graph.symbols), self.graph.assumptions)
        drawn = islice(domain.points(7, low=3, high=90_000), _POINTS)
        self._points = [{symbol(n): sp.Integer(v) for n, v in point.items()} for point in drawn]
        self._integral: dict[Expr, bool] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What marks the nodes that this division inserts."""
        return (f"axis:{self.division.ranks}",)

    def integral(self, ratio: Expr) -> bool:
        """Whether a quotient of sizes is an integer wherever the graph's formulas hold, told at points of the domain."""
        if ratio not in self._integral:
            self._integral[ratio] = all(ratio.xreplace(point).is_Integer for point in self._points)
        return self._integral[ratio]

    def items(self) -> tuple[Item, ...]:
        """The items of one rank's graph."""
        self.out = []
        for item in self.graph.items:
            self._item(item)
        return tuple(self.out)

    def _item(self, item: Item) -> None:
        if isinstance(item, Loop):
            self._loop(item)
        elif item.op in SOURCES:
            self._source(item)
        else:
            self._node(item)

    # Regions that repeat

    def _loop(self, loop: Loop) -> None:
        """A region whose carried values have, after it, the layout that they came in with."""
        carried = {ref.value for node in nodes_of(loop.items) for ref in node.refs if ref.back}
        loose = passed_on(loop, carried)  # these may be summands from one repetition to the next
        self._settle_before(loop)
        before, outer = self._state(), self.out
        guess = {value: self._entering(value, outer, value in loose) for value in carried}
        for _ in range(4):
            self._restore(before)
            self.out = []
            self.layouts.update(guess)
            self.loops.append(loop)
            for item in loop.items:
                self._item(item)
            self.loops.pop()
            found = {value: self.layouts[value] for value in carried}
            settled = {value: self._settled_kind(value) if isinstance(x, Summand) and value not in loose else x for value, x in found.items()}
            if settled == guess:
                break
            guess = settled
        body, self.out = self.out, outer
        for value, layout in guess.items():
            if isinstance(self.layouts[value], Summand) and value not in loose:
                body = self._summed(body, value, layout)
        for value in carried - loose:
            self._enter(value, guess[value])
        self.out.append(replace(loop, items=tuple(body)))

    def _settle_before(self, loop: Loop) -> None:
        """Sum what a region reads from outside once, before it, rather than in each of its repetitions.

        Sums of gradients among other ranks are no reason to: sums of sums may be taken in any order.
        """
        inside = {out.value for node in nodes_of(loop.items) for out in node.outputs}
        for node in (node for node in nodes_of(loop.items) if GRADIENT not in node.notes):
            for ref in node.refs:
                if not ref.back and ref.value not in inside and isinstance(self.layouts.get(ref.value), Summand) and node.phase != "optimizer":
                    self._placing(replace(node, arguments=(("self", Ref(ref.value)),), outputs=())).settle("self")
                    self.outside.add(ref.value)

    def _summed(self, body: list[Item], value: str, layout: Layout) -> list[Item]:
        """The region with the summands of a carried value summed: where an op of it asks for that, else at its end, where
        the next iteration takes them up.
        """
        tensor, ranks = self.tensors[value], self.division.ranks
        summand, maker = self.fresh(value), self.maker[value]
        out = Tensor(value, local_shape(tensor.shape, layout, ranks), tensor.dtype, value, tensor.times)
        known = self.versions.get((maker.phase, value, layout))
        self.layouts[summand], self.layouts[value] = self.layouts[value], layout
        self.storages |= {value: out.bytes} | ({summand: tensor.bytes} if tensor.storage == value else {})
        if known is not None:
            return [renamed(renamed(item, value, summand), known, value, out) for item in body]
        op = "c10d.reduce_scatter" if isinstance(layout, Part) else "c10d.all_reduce"
        node = Node(self.fresh(value), op, (("self", Ref(summand)),), (out,), maker.phase, maker.module, maker.source, notes=self.notes)
        return [*(renamed(item, value, summand) for item in body), node]

    def _state(self) -> tuple[Any, ...]:
        return dict(self.layouts), dict(self.conditions), list(self.refusals), {k: list(v) for k, v in self.kept_as.items()}, dict(self.storages), dict(self.versions), dict(self.made)

    def _restore(self, state: tuple[Any, ...]) -> None:
        layouts, conditions, refusals, kept, storages, versions, made = state
        self.layouts, self.conditions, self.refusals = dict(layouts), dict(conditions), list(refusals)
        self.kept_as, self.storages = {k: list(v) for k, v in kept.items()}, dict(storages)
        self.versions, self.made = dict(versions), dict(made)

    def _entering(self, value: str, before: list[Item], loose: bool) -> Layout:
        found = entrance(value, self.maker, self.tensors, before)
        layout = self.layouts[found[1]] if found else WHOLE
        return self._settled_kind(value) if isinstance(layout, Summand) and not loose else layout

    def _enter(self, value: str, layout: Layout) -> None:
        found = entrance(value, self.maker, self.tensors, self.out)
        if found is not None and self.layouts[found[1]] != layout:
            self._placing(replace(found[0], arguments=(("self", Ref(found[1])),), outputs=())).want("self", layout)

    # Nodes

    def _source(self, node: Node) -> None:
        out = node.outputs[0] if node.outputs else None
        if out is None:
            return
        layout: Layout = WHOLE
        if node.op == "parameter":
            layout = self.held(node.label)
        elif node.op == "input" and (self.division.tokens or out.dtype.startswith(("float", "bfloat"))):
            layout = self.settled_part(out.shape) or WHOLE  # it comes from a layer that divides the sequence too
        elif node.op == "cache":  # what the step leaves behind is held as what it was made of
            layout = self.division.caches.get(node.label, WHOLE) if out.storage == out.value else self.layouts.get(out.storage, WHOLE)
        elif node.op in ("state", "gradient"):
            owner = node.label if node.op == "gradient" else node.label.rpartition(".")[0]
            if out.shape in self.shapes_of.get(owner, ()):
                layout = self.held(owner)
            if node.op == "gradient" and out.value not in self.added_to:
                self._gradient(node, out, layout)
        self._record(out, layout, node)
        self.out.append(self._local(node, {}))

    def _gradient(self, node: Node, out: Tensor, layout: Layout) -> None:
        """A gradient is held as its parameter is: summands are summed now, if they are not added to other ones first."""
        held = self.layouts.get(out.storage, WHOLE)
        if isinstance(held, type(layout)) or (layout == WHOLE and node.label in self.added_to.values()):
            return
        if layout == WHOLE:
            self._together(node, out.storage)
        else:
            self._refuse_gradient(node, node.label, layout)

    def _adding(self, node: Node) -> str:
        """The storage of earlier micro-batches' gradients that a node adds to; empty if it adds to none.

        They are held as their parameter is, which a walk that decides that knows only by now.
        """
        storage = node.outputs[0].storage if node.outputs else ""
        label = self.added_to.get(storage)
        if label is None or node.phase != "backward" or not node.op.endswith("_"):
            return ""
        layout = self.held(label) if self.tensors[storage].shape in self.shapes_of[label] else WHOLE
        self.layouts[storage] = layout
        added = [self.layouts.get(ref.value, WHOLE) for ref in node.refs if self.tensors[ref.value].storage != storage]
        if isinstance(layout, Part) and not all(isinstance(other, Part) for other in added):
            self._refuse_gradient(node, label, layout)
        return storage

    def _together(self, node: Node, value: str) -> None:
        """The gradient of a whole parameter, of which each rank has a summand or a part by now: once in a step."""
        op = "c10d.all_reduce_" if isinstance(self.layouts[value], Summand) else "c10d.all_gather_"
        notes, storage = (*self.notes, GRADIENT), self.tensors[value].storage
        self.emit(Node(self.fresh(value), op, (("self", Ref(value)),), (), "backward", node.module, node.source, notes=notes), storage)
        aliases = [value for value, tensor in self.tensors.items() if tensor.storage == storage]
        self.layouts.update(dict.fromkeys(aliases, WHOLE))

    def _refuse_gradient(self, node: Node, label: str, layout: Layout) -> None:
        origins = (layout.origin,) if isinstance(layout, Part) else ()
        self.refusals.append(Refusal(node, f"the gradient of {label} is not divided as it is", origins))
        self.met.append(self.refusals[-1])

    def _node(self, node: Node) -> None:
        adds_to = self._adding(node)
        call = self._placing(node)
        for name in [name for name, ref in call.refs.items() if ref.value in self.outside and not ref.back and self.loops]:
            call.settle(name)
        try:
            layouts = layouts_of(call)
        except Undivided as error:
            self.refusals.append(Refusal(node, str(error), error.origins))
            self.met.append(self.refusals[-1])
            layouts = [WHOLE] * len(node.outputs)
        for out, layout in zip(node.outputs, layouts, strict=True):
            view = out.storage != out.value
            self._record(out, layout, node)
            if view and len(call.refs) == 1:
                ((name, ref),) = call.refs.items()
                actual = self._actual(name, ref, call)
                if actual != self.tensors[ref.value].storage:  # a face of another version of what it was a face of
                    self.faces[out.value] = actual
            if view and isinstance(self.layouts.get(out.storage), Summand) and not isinstance(layout, Summand):
                self.layouts[out.value] = layout
        for name, ref in call.refs.items():
            self.last[self._actual(name, ref, call)] = node.name
        if node.phase in ("backward", "recompute"):
            self._read(node, call)
        self.out.append(self._local(node, call.chosen, call.spelled))
        if adds_to and self.layouts[adds_to] == WHOLE != self.layouts[node.outputs[0].value]:
            self._together(node, node.outputs[0].value)

    def _placing(self, node: Node) -> Placing:
        return Placing(self, node)

    def _record(self, out: Tensor, layout: Layout, node: Node) -> None:
        self.layouts[out.value] = layout
        if isinstance(layout, Part):
            for size in divided(out.shape, layout):
                self.conditions.setdefault(size, node.source)

    def _read(self, node: Node, call: Placing) -> None:
        """What a backward op reads, by the storage that the tensor it was traced with lies in."""
        if node.outputs and all(o.storage != o.value for o in node.outputs) and not node.op.endswith("_"):
            return
        for name, ref in call.refs.items():
            storage, actual = self.tensors[ref.value].storage, self._actual(name, ref, call)
            self.kept_as.setdefault(storage, [])
            if actual not in self.kept_as[storage]:
                self.kept_as[storage].append(actual)

    def _actual(self, name: str, ref: Ref, call: Placing) -> str:
        """The storage that an operand really lies in."""
        if name in call.chosen:
            return self.made[call.chosen[name]].storage
        return self.faces.get(ref.value, self.tensors[ref.value].storage)

    def held(self, label: str) -> Layout:
        """How a parameter is held."""
        return self.division.params.get(label, WHOLE)

    # Building

    def fresh(self, stem: str) -> str:
        """A name that no node has."""
        self.count += 1
        return f"{stem}.{self.division.ranks}{self.count}"

    def emit(self, node: Node, source: str) -> None:
        """Insert a node before the one at hand. `source` is the storage that it reads."""
        self.out.append(node)
        self.last[source] = node.name
        self.where[node.name] = (node.phase, tuple(id(loop) for loop in self.loops))
        for out in node.outputs:
            self.made[out.value] = out
            if out.storage == out.value:
                self.births[out.value] = Birth(node.name, tuple(self.loops), source, node.phase)
            if out.storage == out.value:
                self.storages[out.value] = out.bytes
                if node.phase in _PASSES:
                    self.forward.add(out.value)

    def settled_part(self, shape: tuple[Expr, ...]) -> Part | None:
        """Where summands are scattered to: the sequence, if the axis divides it and the tensor shows it."""
        found = [k for k, size in enumerate(shape) if size in self.division.sequence]
        return Part(found[0], sequence=True) if len(found) == 1 else None

    def _settled_kind(self, value: str) -> Layout:
        return self.settled_part(self.tensors[value].shape) or WHOLE

    def _local(self, node: Node, chosen: Mapping[str, str], spelled: Mapping[str, Any] | None = None) -> Node:
        """The node as one rank runs it."""
        ranks, faces = self.division.ranks, self.faces
        outputs = tuple(replace(o, shape=local_shape(o.shape, self.layouts[o.value], ranks), storage=faces.get(o.value, o.storage)) for o in node.outputs)
        given = ((k, (spelled or {}).get(k, a)) for k, a in node.arguments)
        return replace(node, arguments=tuple((k, self._argument(k, a, chosen)) for k, a in given), outputs=outputs)

    def _argument(self, name: str, argument: Any, chosen: Mapping[str, str]) -> Any:
        if isinstance(argument, Ref):
            layout = self.layouts.get(argument.value, WHOLE)
            if name in chosen:
                return Ref(chosen[name], 0, argument.times)
            shape = None if argument.shape is None else local_shape(argument.shape, layout, self.division.ranks)
            return replace(argument, shape=shape)
        if isinstance(argument, tuple):
            return tuple(self._argument(f"{name}.{k}", part, chosen) for k, part in enumerate(argument))
        return argument


__all__ = ["SUMMAND", "Division", "Refusal", "Sharder", "Unsupported"]
