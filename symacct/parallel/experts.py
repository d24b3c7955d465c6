"""Expert parallelism: each rank holds E/e experts, and tokens travel to their experts and back.

Tokens are taken as spread evenly over the experts, as a capacity or a balancing loss makes them; then a rank computes
and keeps what it did before, and only the weights and what is sent change.
"""

from __future__ import annotations

import sympy as sp
from sympy import Expr

from symacct.errors import Unsupported
from symacct.graph import Graph, Placed, Ref, Tensor, total_over
from symacct.parallel.collectives import Traffic
from symacct.parallel.holdings import Holding

_PRODUCTS = ("aten.bmm", "aten.mm", "aten.addmm", "aten.baddbmm", "aten._grouped_mm")


def expert_traffic(graph: Graph, held: tuple[Holding, ...], ranks: Expr, passes: Expr) -> tuple[Traffic, ...]:
    """Four all_to_all a layer and pass: tokens to the experts and back, and their gradients the same ways.

    Payload is what a rank holds of the tokens on their way in, as many as are routed, and of the outputs on their way
    back. Raises Unsupported where no product of an expert's weight shows them.
    """
    labels = {h.label for h in held if h.expert}
    tensors = graph.tensors()
    weight = {p.node.outputs[0].storage: p.node.label for p in graph.sources("parameter") if p.node.label in labels}
    if not weight:
        raise Unsupported(f"{graph.target} has no weights of E experts to spread; leave out ep")
    fed: dict[str, tuple[Expr, Expr]] = {}
    given: list[tuple[str, Expr, Expr]] = []
    for place in graph.ops:
        if place.node.op in _PRODUCTS and place.node.phase == "forward":
            operand, by = _operands(place, tensors)
            if by is not None and by.storage in weight:
                fed.setdefault(operand.storage, (_total(operand, place), _layers(place)))
                given.append((place.node.outputs[0].storage, _total(place.node.outputs[0], place), _layers(place)))
    reached = _descend(graph, {storage for storage, _, _ in given})
    incoming = {storage: size for storage, size in fed.items() if storage not in reached}
    if not incoming:
        raise Unsupported(f"no product of {graph.target} shows what its experts receive; leave out ep")
    widest = given[-1]
    rows = []
    for phase in ("forward", "backward"):
        for size, count in incoming.values():
            rows.append(Traffic("ep", "all_to_all", phase, "tokens to their experts", count * passes, sp.expand(size * passes), ranks))
        rows.append(Traffic("ep", "all_to_all", phase, "outputs back", widest[2] * passes, sp.expand(widest[1] * passes), ranks))
    return tuple(rows)


def _operands(place: Placed, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    refs: list[Ref] = [a for _, a in place.node.arguments if isinstance(a, Ref)]
    first, second = refs[-2:] if len(refs) > 1 else (refs[0], refs[0])
    operand = tensors[first.value]
    if first.shape is not None:
        operand = Tensor(operand.value, first.shape, operand.dtype, operand.storage, first.times)
    return operand, tensors[second.value]


def _total(tensor: Tensor, place: Placed) -> Expr:
    return sp.expand(total_over(sp.expand(tensor.bytes), place.loops))


def _layers(place: Placed) -> Expr:
    """How often a pass sends: once a layer, whatever number of experts it has."""
    return sp.Mul(*(loop.count for loop in place.loops if loop.size != "E"))


def _descend(graph: Graph, storages: set[str]) -> set[str]:
    """Storages that come from these in the forward pass, themselves included."""
    roots = {name: tensor.storage for name, tensor in graph.tensors().items()}
    found = set(storages)
    for place in graph.ops:
        if place.node.phase == "forward" and any(roots[r.value] in found and not r.back for r in place.node.refs):
            found.update(out.storage for out in place.node.outputs)
    return found
