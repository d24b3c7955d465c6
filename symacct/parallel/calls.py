"""An op call on its way through the laws: the layouts of its operands, and the collectives that bring about others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import sympy as sp
from sympy import Expr

from symacct.graph import Node, Ref, Tensor
from symacct.parallel.layout import WHOLE, Layout, Part, Summand, local_shape

Shape = tuple[Expr, ...]
_WHOLE_VIEWS = ("aten.view", "aten._unsafe_view", "aten.t", "aten.transpose", "aten.permute", "aten.expand", "aten.detach", "aten.unsqueeze")
_COPIES = ("aten.clone", "aten.repeat")  # worth making of the whole where what they copy is repeated
_EARLIER = ("forward", "loss")


class Walk(Protocol):
    """What a call needs of the walk that it is part of."""

    division: Any
    tensors: dict[str, Tensor]
    maker: dict[str, Node]
    tables: dict[str, str]
    layouts: dict[str, Layout]
    versions: dict[tuple[str, str, Layout], str]
    made: dict[str, Tensor]
    cut: dict[str, Part]

    @property
    def notes(self) -> tuple[str, ...]: ...
    def integral(self, ratio: Expr) -> bool: ...
    def settled_part(self, shape: Shape) -> Part | None: ...
    def fresh(self, stem: str) -> str: ...
    def emit(self, node: Node, source: str) -> None: ...


@dataclass
class Placing:
    """A node's operands by name, those of a list as "tensors.0". `chosen` names the versions that replace operands,
    `spelled` the plain arguments that a rank gives otherwise.
    """

    sharder: Walk
    node: Node
    chosen: dict[str, str] = field(default_factory=dict)
    spelled: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refs: dict[str, Ref] = dict(_named(self.node.arguments))
        self.tensors = tuple(self.refs)
        self.op = self.node.op
        self.backward = self.node.phase == "backward"
        self.outputs = tuple(out.shape for out in self.node.outputs)
        self._arguments = dict(self.node.arguments)
        self._layouts = {name: sharder_layout(self.sharder, ref) for name, ref in self.refs.items()}

    def layout(self, name: str) -> Layout:
        """The layout of an operand, as it is by now."""
        return self._layouts[name]

    def shape(self, name: str) -> Shape:
        """The global shape of an operand."""
        ref = self.refs[name]
        return ref.shape if ref.shape is not None else self.sharder.tensors[ref.value].shape

    def argument(self, name: str, default: Any = None) -> Any:
        """A plain argument."""
        found = self._arguments.get(name)
        return default if found is None else _plain(found)

    def spread(self, name: str) -> None:
        """Give, in place of a flag that is set, the number of ranks that do even parts of what it asks for."""
        if (given := self.argument(name)) is not None and given is not False:
            self.spelled[name] = self.sharder.division.ranks * (1 if given is True else given)

    def made_by(self, name: str) -> str:
        """The op that made an operand."""
        maker = self.sharder.maker.get(self.refs[name].value)
        return maker.op if maker else ""

    def table(self) -> Layout | None:
        """The layout of the table that the lookup of this module reads."""
        value = self.sharder.tables.get(self.node.module)
        return self.sharder.layouts.get(value) if value else None

    def along(self, shape: Shape) -> Part | None:
        """The division of the sequence, if the axis divides it and a tensor of this shape shows it."""
        return self.sharder.settled_part(shape)

    def integral(self, ratio: Expr) -> bool:
        """Whether a quotient of sizes is an integer wherever the graph's formulas hold."""
        return self.sharder.integral(ratio)

    def hides_sequence(self, before: Shape, after: Shape) -> bool:
        """Whether the divided sequence is a dimension before a view, and none after it."""
        return self.sharder.settled_part(before) is not None and self.sharder.settled_part(after) is None

    def settle(self, name: str) -> Layout:
        """An operand that is no summand: sums are made now, scattered along the sequence where that is divided."""
        if isinstance(self._layouts[name], Summand):
            self.want(name, self.sharder.settled_part(self.shape(name)) or WHOLE)
        return self._layouts[name]

    def summed(self, name: str) -> bool:
        """Whether an earlier op of this pass had these summands summed already."""
        ref, settled = self.refs[name], self.sharder.settled_part(self.shape(name)) or WHOLE
        chain = self._views(ref) if settled == WHOLE else []
        value = next(iter(chain[0].refs)).value if chain else ref.value
        return not ref.back and any((era, value, settled) in self.sharder.versions for era in self._eras(self._layouts[name]))

    def gather(self, name: str) -> None:
        """The whole operand on every rank."""
        if self._layouts[name] != WHOLE:
            self.want(name, WHOLE)

    def reduce(self, shape: Shape) -> None:
        """Agree with the other ranks on a tensor of this shape: float32, as losses compute."""
        sharder = self.sharder
        name = sharder.fresh(self.node.name)
        sharder.emit(Node(name, "c10d.all_reduce_", (), (Tensor(name, shape, "float32", name),), self.node.phase, self.node.module, self.node.source, notes=sharder.notes), "")

    def want(self, name: str, layout: Layout) -> None:
        """The operand in this layout, by a collective or by dropping what other ranks hold."""
        ref = self.refs[name]
        maker = self.sharder.maker.get(ref.value)
        if maker is not None and maker.op == "cache" and isinstance(layout, Part):
            self.sharder.cut[maker.label] = layout  # it need not be held whole at all
        self._layouts[name] = layout
        self.chosen[name] = self._version(ref, self.shape(name), layout)

    def _version(self, ref: Ref, shape: Shape, layout: Layout) -> str:
        sharder = self.sharder
        held = sharder_layout(sharder, ref)
        key = f"{ref.value}@{ref.back}" if ref.back else ref.value
        for era in self._eras(held):
            known = sharder.versions.get((era, key, layout))
            if known is not None:
                return known
        tensor = sharder.tensors[ref.value]
        chain = self._views(ref) if layout == WHOLE else []
        if isinstance(layout, Part) and not layout.sequence and isinstance(held, Part) and held.sequence:
            whole = self._version(ref, shape, WHOLE)
            made = self._moved(Ref(whole), shape, sharder.made[whole], WHOLE, layout)
        elif (part := self._scattered(key, held, layout, shape)) is not None:
            made = self._moved(Ref(part[0]), shape, sharder.made[part[0]], part[1], layout)
        elif chain:
            first = next(iter(chain[0].refs))
            made = self._version(first, sharder.tensors[first.value].shape, WHOLE)
            for node in chain:
                made = self._viewed(node, made)
        else:
            made = self._moved(ref, shape, tensor, held, layout)
        sharder.versions[self._eras(held)[0], key, layout] = made
        return made

    def _scattered(self, key: str, held: Layout, layout: Layout, shape: Shape) -> tuple[str, Part] | None:
        """The parts of a sum that was scattered already: who wants it whole gathers these, and sums nothing anew."""
        part = self.sharder.settled_part(shape)
        if part is None or layout != WHOLE or not isinstance(held, Summand):
            return None
        made = (self.sharder.versions.get((era, key, part)) for era in self._eras(held))
        return next(((name, part) for name in made if name is not None), None)

    def _eras(self, held: Layout) -> tuple[str, ...]:
        """When a version can have been made to serve here: a gathered input is not kept where it is gathered again."""
        now = "forward" if self.node.phase in _EARLIER else self.node.phase
        anew = self.sharder.division.again and isinstance(held, Part)
        return (now,) if anew else tuple(dict.fromkeys((now, "forward", "recompute", "backward")))

    def _views(self, ref: Ref) -> list[Node]:
        """The views of the whole of a storage that lead to an operand: what they show is brought together once.

        Before it is repeated, too, as few heads of keys are for many of queries.
        """
        found: list[Node] = []
        while not ref.back:
            maker = self.sharder.maker.get(ref.value)
            if maker is None or len(maker.outputs) != 1 or maker.op not in (*_WHOLE_VIEWS, *_COPIES):
                break
            operand = next(iter(maker.refs))
            if operand.shape is not None or self.sharder.layouts.get(operand.value, WHOLE) == WHOLE:
                break
            found.insert(0, maker)
            ref = operand
            if self._scattered(ref.value, sharder_layout(self.sharder, ref), WHOLE, self.sharder.tensors[ref.value].shape):
                break
        return self._growing(found)

    def _growing(self, chain: list[Node]) -> list[Node]:
        """The chain from behind the last copy of no more than what it begins with."""
        tensors = self.sharder.tensors
        for at, node in reversed(list(enumerate(chain))):
            if node.op in _COPIES:
                begun = tensors[next(iter(chain[0].refs)).value].numel
                return chain if sp.expand(node.outputs[0].numel - begun) != 0 else chain[at + 1 :]
        return chain

    def _viewed(self, node: Node, source: str) -> str:
        """The same view of the whole tensor."""
        sharder, out = self.sharder, node.outputs[0]
        name = sharder.fresh(out.value)
        arguments = tuple((k, Ref(source) if isinstance(a, Ref) else a) for k, a in node.arguments)
        shown = sharder.made[source].storage
        made = Tensor(name, out.shape, out.dtype, name if node.op in _COPIES else shown)
        sharder.emit(Node(name, node.op, arguments, (made,), self._phase, self.node.module, self.node.source), shown)
        return name

    def _moved(self, ref: Ref, shape: Shape, tensor: Tensor, held: Layout, layout: Layout) -> str:
        name = self.sharder.fresh(ref.value)
        ranks = self.sharder.division.ranks
        cut = held == WHOLE
        if cut:
            op = "aten.narrow"
        elif isinstance(held, Summand):
            op = "c10d.reduce_scatter" if isinstance(layout, Part) else "c10d.all_reduce"
        else:
            op = "c10d.all_to_all" if isinstance(layout, Part) else "c10d.all_gather"
        within = cut or (op == "c10d.all_reduce" and not ref.back)  # a sum is made in place of its summands
        made = Tensor(name, local_shape(shape, layout, ranks), tensor.dtype, tensor.storage if within else name, ref.times)
        operand = Ref(ref.value, ref.back, ref.times, None if ref.shape is None else local_shape(shape, held, ranks))
        self.sharder.emit(self._node(name, op, operand, made), tensor.storage)
        self.sharder.layouts[name] = layout
        return name

    def _node(self, name: str, op: str, ref: Ref, out: Tensor) -> Node:
        return Node(name, op, (("self", ref),), (out,), self._phase, self.node.module, self.node.source, notes=self.sharder.notes)

    @property
    def _phase(self) -> str:
        return self.node.phase if self.node.phase != "gradients" else "backward"


def sharder_layout(sharder: Walk, ref: Ref) -> Layout:
    return sharder.layouts.get(ref.value, WHOLE)


def _named(arguments: tuple[tuple[str, Any], ...]) -> list[tuple[str, Ref]]:
    found = []
    for name, argument in arguments:
        if isinstance(argument, Ref):
            found.append((name, argument))
        elif isinstance(argument, tuple):
            found += [(f"{name}.{k}", part) for k, part in enumerate(argument) if isinstance(part, Ref)]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, sp.Integer) else value
