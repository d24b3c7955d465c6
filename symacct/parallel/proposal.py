"""A tensor-parallel plan for an unmodified model, in the words of torch's `parallelize_module`.

A weight whose input is whole is divided by columns, one whose input is divided by rows, a table that looks up the
model's input by rows of the vocabulary. Where a division then meets an op that needs the whole of it, the weights
that it came from stay whole, and the walk begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.graph import SOURCES, Graph, Node, Ref
from symacct.parallel.faces import FACES, face
from symacct.parallel.layout import WHOLE, Layout, Part, divided
from symacct.parallel.sharding import Division, Refusal, Sharder
from symacct.symbols import symbol

_PARTING = ("aten.split", "aten.split_with_sizes", "aten.unsafe_split", "aten.unbind", "aten.select")
_PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which parameters are divided and how; `whole` says which weights stay whole, and why. `own`: a user's own."""

    params: Mapping[str, Part]
    styles: Mapping[str, str]
    whole: Mapping[str, str]
    own: bool = False


def propose(
    graph: Graph, ranks: Expr, sizes: Mapping[str, int] | None = None, sequence: tuple[Expr, ...] = (), undivided: Mapping[str, str] | None = None
) -> Plan:
    """The plan, for these sizes if numbers are given: what they do not divide stays whole. So does `undivided`: label, reason.

    A plan for uneven sizes is that for even ones without what they do not divide: the second of two products is not
    divided another way because the first one is whole.
    """
    division = Division(ranks, {}, sequence)
    walk = _agreed(graph, division, dict(undivided or {}), {}, dict(sizes or {}), None)
    if walk.broken():
        walk = _agreed(graph, division, dict(walk.whole), dict(walk.pieces), walk.sizes, walk.decided)
    return walk.plan()


def _agreed(
    graph: Graph, division: Division, whole: dict[str, str], parts: dict[str, tuple[Expr, ...]], sizes: Mapping[str, int], even: Mapping[str, Part] | None
) -> _Proposer:
    """The first walk in which every division stands; without `even` whatever the sizes divide."""
    while True:
        walk = _Proposer(graph, division, whole, parts, sizes, even)
        walk.items()
        blamed = walk.blamed()
        if not blamed:
            return walk
        for label, why in blamed.items():
            if label in parts or label not in walk.fused:
                whole[label] = why
            else:
                parts[label] = walk.fused[label]


class _Proposer(Sharder):
    """A walk over the forward pass that decides each weight when it first meets it.

    `even` is the plan for sizes that divide, of which it then takes what these sizes divide; None while that is sought.
    """

    def __init__(
        self, graph: Graph, division: Division, whole: Mapping[str, str], pieces: Mapping[str, tuple[Expr, ...]], sizes: Mapping[str, int],
        even: Mapping[str, Part] | None,
    ) -> None:
        super().__init__(graph, division)
        self.whole, self.pieces, self.sizes, self.even = whole, pieces, sizes, even
        self.decided: dict[str, Part] = {}
        self.styles: dict[str, str] = {}
        self.indivisible: dict[str, str] = {}
        self.fused: dict[str, tuple[Expr, ...]] = {}
        self.label_of = {out.value: p.node.label for p in graph.sources("parameter") for out in p.node.outputs}
        self.inputs = {out.value for p in graph.sources("input") for out in p.node.outputs}
        self.options: dict[str, dict[int, Part]] = {}

    def plan(self) -> Plan:
        """What was decided."""
        return Plan(self.decided, self.styles, {**self.whole, **self.indivisible})

    def blamed(self) -> dict[str, str]:
        """The parameters whose division cannot stand, with the reason."""
        found: dict[str, str] = {}
        for refusal in self.met[:1]:  # what comes after it may be its fault
            where = f"{refusal.node.op} in {refusal.node.module or 'the model'}" + (f", {refusal.node.source}" if refusal.node.source else "")
            origins = sorted(set(refusal.origins) & set(self.decided), key=self._weight)  # the smaller one stays whole
            found.update((origin, f"{refusal.why} ({where})") for origin in origins[:1])
        if self.met and not found:  # nothing to blame but the last division made
            found = {list(self.decided)[-1]: self.met[0].why} if self.decided else {}
        return found | (self.broken() if self.even is not None else {})

    def _weight(self, label: str) -> tuple[int, int]:
        """The elements of a parameter, at the sizes at hand or those of the example, and when it was decided."""
        example = {symbol(name): sp.Integer(info.traced_at) for name, info in self.graph.symbols.items()}
        numbers = {symbol(name): sp.Integer(value) for name, value in self.sizes.items()}
        return int(self.param_of[label].numel.xreplace(numbers).xreplace(example)), list(self.decided).index(label)

    def broken(self) -> dict[str, str]:
        """Divisions of sizes that the number of ranks does not divide."""
        found: dict[str, str] = {}
        for value, layout in self.layouts.items():
            if isinstance(layout, Part) and layout.origin and value in self.tensors:
                why = self._uneven(divided(self.tensors[value].shape, layout))
                if why:
                    found[layout.origin] = why
        return found

    def _uneven(self, sizes: tuple[Expr, ...]) -> str:
        numbers = {symbol(name): sp.Integer(value) for name, value in self.sizes.items()}
        ranks = self.division.ranks.xreplace(numbers)
        for size in sizes:
            number = size.xreplace(numbers)
            if number.is_Integer and ranks.is_Integer and number % ranks != 0:
                return f"{size} = {int(number):,} is no multiple of {self.division.ranks} = {ranks}"
        return ""

    def held(self, label: str) -> Layout:
        """How a parameter is held, as far as that is decided."""
        return self.decided.get(label, WHOLE)

    def _restore(self, state: tuple[Any, ...]) -> None:
        super()._restore(state)
        self.layouts.update((value, self.decided[label]) for value, label in self.label_of.items() if label in self.decided)

    def _node(self, node: Node) -> None:
        arguments = dict(node.arguments)
        first = next(iter(node.refs), None)
        if first is not None and first.value in self._of_params() and node.op.removeprefix("aten.") in FACES:
            self._follow(node, first)
        if node.phase not in ("forward", "loss"):
            return super()._node(node)
        if node.op in _PRODUCTS:
            operands = [a for a in arguments.values() if isinstance(a, Ref)]
            self._decide_product(node, operands)
        elif node.op == "aten.embedding":
            self._decide_table(node, arguments)
        elif node.op in ("aten.add", "aten.add_"):
            self._decide_added(arguments)
        elif node.op in _PARTING and first is not None:
            self._note_fused(node, first)
        return super()._node(node)

    def emit(self, node: Node, source: str) -> None:
        super().emit(node, source)
        layout = self.layouts.get(node.outputs[0].value) if node.outputs else None
        if node.op == "aten.narrow" and node.phase == "forward" and isinstance(layout, Part) and not layout.sequence:
            self._wasted(node)

    def _wasted(self, node: Node) -> None:
        """Sums that every rank made whole only to drop most of them: the weights before need not be divided."""
        value: str | None = next(iter(node.refs)).value
        for _ in range(30):
            maker = self.maker.get(value or "")
            if maker is None or maker.op in SOURCES:
                return
            operands = list(maker.refs)
            if maker.op in _PRODUCTS:
                held = self.layouts.get(operands[-2].value)
                if isinstance(held, Part) and held.origin:
                    why = f"what {maker.module} makes of it is needed in parts again"
                    self.met.append(Refusal(maker, why, (held.origin,)))
                return
            value = operands[0].value if operands else None

    def _of_params(self) -> dict[str, dict[int, Part]]:
        if not self.options:
            for value, label in self.label_of.items():
                rank = len(self.tensors[value].shape)
                self.options[value] = {dim: Part(dim, origin=label) for dim in range(rank)}
        return self.options

    def _follow(self, node: Node, ref: Ref) -> None:
        """Where each possible division of a parameter lies in a view of it."""
        shape = self.tensors[ref.value].shape
        arguments = {k: int(a) if isinstance(a, sp.Integer) else a for k, a in node.arguments if not isinstance(a, Ref)}
        outputs = [out.shape for out in node.outputs]
        for out in node.outputs:
            seen = {dim: face(node.op.removeprefix("aten."), arguments, part, shape, outputs, self.integral) for dim, part in self.options[ref.value].items()}
            self.options[out.value] = {dim: part for dim, part in seen.items() if isinstance(part, Part)}

    def _decide_product(self, node: Node, operands: list[Ref]) -> None:
        a, b = operands[-2:]
        options = self._of_params().get(b.value)
        label = self._label(b)
        if options is None or label is None or label in self.decided or label in self.whole:
            return
        rank = len(self.tensors[b.value].shape)
        layout = self.layouts.get(a.value)
        inner = isinstance(layout, Part) and not layout.sequence and layout.dim == len(self.tensors[a.value].shape) - 1
        wanted = rank - 2 if inner else rank - 1
        dim = next((dim for dim, part in options.items() if part.dim == wanted), None)
        if dim is None or (inner and isinstance(layout, Part) and layout.outer != 1):
            return
        if isinstance(layout, Part) and not layout.sequence and not inner:
            return  # divided experts or batches
        if not self._as_when_even(label, dim, a):
            return
        self._decide(label, dim, "rowwise" if inner else "colwise")
        if not inner and len(operands) == 3:
            bias = self._label(operands[0])
            if bias is not None and bias not in self.decided and bias not in self.whole and label in self.decided:
                self._decide(bias, len(self.param_of[bias].shape) - 1, "colwise", origin=label)

    def _as_when_even(self, label: str, dim: int, operand: Ref) -> bool:
        """Whether even sizes have this dimension divided too; if it is another one, the weight is whole as what it reads is."""
        if self.even is None:
            return True
        part = self.even.get(label)
        if part is not None and part.dim != dim:
            self.indivisible[label] = self._uneven(divided(self.param_of[label].shape, part)) or self._behind(operand)
        return part is not None and part.dim == dim

    def _behind(self, operand: Ref) -> str:
        """Why an operand is whole: the reason of the nearest weight that it was made with."""
        reasons, ahead, seen = {**self.whole, **self.indivisible}, [operand.value], set[str]()
        for value in ahead:
            maker = self.maker.get(value)
            if maker is None or value in seen:
                continue
            seen.add(value)
            labels = [label for ref in maker.refs if (label := self._label(ref)) is not None] if maker.op in _PRODUCTS else []
            if why := next((reasons[label] for label in labels if label in reasons), ""):
                return why
            ahead += [ref.value for ref in maker.refs] if not labels else []
        return "what it reads is whole"

    def _decide_added(self, arguments: Mapping[str, object]) -> None:
        """A bias that is added to a product rather than within it, as where the product's input is not contiguous."""
        product, bias = arguments.get("self"), arguments.get("other")
        if not isinstance(product, Ref) or not isinstance(bias, Ref):
            return
        layout, label, shape = self.layouts.get(product.value), self.label_of.get(bias.value), self.tensors[product.value].shape
        if label is None or label in self.decided or label in self.whole or not isinstance(layout, Part) or not layout.origin:
            return
        if layout.dim == len(shape) - 1 and self.param_of[label].shape == shape[-1:]:
            self._decide(label, 0, "colwise", origin=layout.origin)

    def _decide_table(self, node: Node, arguments: Mapping[str, object]) -> None:
        table, indices = arguments.get("weight"), arguments.get("indices")
        if not isinstance(table, Ref) or not isinstance(indices, Ref):
            return
        label = self._label(table)
        root = self.tensors[indices.value].storage
        if label is None or self.param_of[label].shape[0].is_number:  # two segments are no vocabulary
            return
        if label not in self.decided and label not in self.whole and root in self.inputs:
            self._decide(label, 0, "rowwise")

    def _label(self, ref: Ref) -> str | None:
        return self.label_of.get(self.tensors[ref.value].storage)

    def _decide(self, label: str, dim: int, style: str, origin: str = "") -> None:
        param = self.param_of[label]
        part = self._part(dim, self.pieces.get(origin or label, ()) if style == "colwise" else (), origin or label)
        if self.even is not None and (why := self._uneven(divided(param.shape, part))):
            self.indivisible[label] = why
            return
        self.decided[label], self.styles[label] = part, style
        twins = {value for value, other in self.label_of.items() if other == label}  # layers of other kinds have them too
        self.layouts.update(dict.fromkeys(twins, part))
        for value, options in self.options.items():
            if self.tensors[value].storage in twins and value not in twins and dim in options:
                self.layouts[value] = replace(options[dim], outer=part.outer, pieces=part.pieces)

    @staticmethod
    def _part(dim: int, pieces: tuple[Expr, ...], origin: str) -> Part:
        """A division of a dimension, or of each of the pieces that a fused weight holds in it."""
        if len(set(pieces)) > 1:
            return Part(dim, pieces=pieces, origin=origin)
        return Part(dim, sp.Integer(max(len(pieces), 1)), origin=origin)

    def _note_fused(self, node: Node, ref: Ref) -> None:
        """A split of a divided dimension: the weight that makes it holds as many alike pieces."""
        layout = self.layouts.get(ref.value)
        if not isinstance(layout, Part) or not layout.origin:
            return
        shape = self.tensors[ref.value].shape
        if int(dict(node.arguments).get("dim", 0)) % len(shape) != layout.dim:
            return
        if shape[layout.dim].is_Integer:
            self.fused.setdefault(layout.origin, (sp.Integer(1),) * int(shape[layout.dim]))
        elif len(node.outputs) > 1:
            self.fused.setdefault(layout.origin, tuple(out.shape[layout.dim] for out in node.outputs))
