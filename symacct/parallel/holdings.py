"""What a rank holds of a graph, parameter by parameter and kept storage by kept storage, and where in depth it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.account import saved_bytes
from symacct.errors import Unsupported
from symacct.graph import Graph, Loop, Placed, total_over
from symacct.parallel.layout import GRADIENT
from symacct.symbols import symbol

BEFORE, INSIDE, AFTER = "before", "inside", "after"
_FORWARD = ("forward", "loss")


@dataclass(frozen=True, slots=True)
class Holding:
    """A parameter with its gradient and state, in bytes over all its repetitions; `unit` in those of one layer.

    `summed` is what replicas add up of the gradient: of one that is also added to a buffer, the buffer alone.
    `scalars` is the part of the state that is no tensor of the parameter's kind, such as a count of steps.

    `where`: before the layers, inside or after them; a tied table may be both before and after. `expert`: it belongs
    to one expert of many; `stacked`: all of them are one tensor.
    """

    label: str
    where: tuple[str, ...]
    expert: bool
    stacked: bool
    numel: Expr
    param: Expr
    grad: Expr
    summed: Expr
    state: Expr
    scalars: Expr
    unit: Expr


def holdings(graph: Graph) -> tuple[Holding, ...]:
    """Every parameter of the graph."""
    params = list(graph.sources("parameter"))
    grads = _owned(params, graph.sources("gradient"), lambda label: label)
    states = _owned(params, graph.sources("state"), lambda label: label.rpartition(".")[0])
    depths, places = {loop.size for loop in layered_loops(graph)}, _places(graph)
    return tuple(_holding(graph, place, grads, states, depths, places) for place in params)


def _owned(params: list[Placed], made: Iterable[Placed], owner: Callable[[str], str]) -> dict[str, list[Placed]]:
    """Gradients or state by the parameter's value. Layers of several kinds in turn have parameters of one label: their
    gradients come in the order of the parameters, and have their shapes.
    """
    alike: dict[tuple[str, tuple[Expr, ...]], list[Placed]] = {}
    for place in made:
        alike.setdefault((place.node.label, place.node.outputs[0].shape), []).append(place)
    found: dict[str, list[Placed]] = {}
    for (label, shape), places in alike.items():
        mine = [p.node.outputs[0] for p in params if p.node.label == owner(label)]
        mine = [tensor for tensor in mine if tensor.shape == shape] or mine
        each = -(-len(places) // max(len(mine), 1))
        for number, place in enumerate(places if mine else ()):
            found.setdefault(mine[number // each].value, []).append(place)
    return found


def _holding(
    graph: Graph, place: Placed, grads: dict[str, list[Placed]], states: dict[str, list[Placed]], depths: set[str], places: dict[str, tuple[str, ...]]
) -> Holding:
    tensor, label = place.node.outputs[0], place.node.label
    inside = any(loop.size in depths for loop in place.loops)
    where = (INSIDE,) if inside else places.get(tensor.value, (BEFORE,))
    inner = tuple(loop for loop in place.loops if loop.size not in depths)
    return Holding(
        label, where, *_of_expert(graph, place), _over(tensor.numel, place), _over(tensor.bytes, place),
        *_gradients(grads.get(tensor.value, [])), *_states(states.get(tensor.value, [])),
        sp.expand(total_over(tensor.bytes, inner)),
    )


def _gradients(places: list[Placed]) -> tuple[Expr, Expr]:
    """Bytes of a parameter's gradients, and of those that replicas add up: the first, to which others are added."""
    sizes = [_over(p.node.outputs[0].bytes, p) for p in places]
    return sp.Add(*sizes), sizes[0] if sizes else sp.Integer(0)


def _states(places: list[Placed]) -> tuple[Expr, Expr]:
    """Bytes of a parameter's state, and of what of it is a single number."""
    tensors = sp.Add(*(_over(p.node.outputs[0].bytes, p) for p in places if p.node.outputs[0].shape))
    return tensors, sp.Add(*(_over(p.node.outputs[0].bytes, p) for p in places if not p.node.outputs[0].shape))


def _over(size: Expr, place: Placed) -> Expr:
    return sp.expand(total_over(sp.expand(size), place.loops))


def _of_expert(graph: Graph, place: Placed) -> tuple[bool, bool]:
    """Whether a parameter belongs to experts, and whether it holds all of them."""
    if "E" not in graph.symbols:
        return False, False
    shape = place.node.outputs[0].shape
    stacked = len(shape) > 1 and str(shape[0]) == "E" and "expert" in place.node.label.lower()
    return stacked or any(loop.size == "E" for loop in place.loops), stacked


def depth_of(graph: Graph) -> str:
    """The size that repeats the layers: that of the forward pass's outermost region; empty where nothing repeats."""
    sizes = [loop.size for loop in layered_loops(graph)]
    return sizes[0] if sizes else ""


def period_of(graph: Graph) -> int:
    """After how many layers their kinds come again."""
    depth = symbol(depth_of(graph))
    parts = [loop.count.coeff(depth) for loop in layered_loops(graph) if loop.size == depth.name]
    return int(sp.ilcm(1, *(part.q for part in parts if part.is_Rational)))


def layered_loops(graph: Graph) -> list[Loop]:
    """The outermost regions of the forward pass whose repetitions have parameters of their own: layers, not time steps."""
    sizes = {loop.size for place in graph.sources("parameter") for loop in place.loops}
    return [item for item in graph.items if isinstance(item, Loop) and item.size in sizes and any(_runs(item))]


def _runs(loop: Loop) -> list[bool]:
    found = []
    for item in loop.items:
        if isinstance(item, Loop):
            found += _runs(item)
        elif item.phase in _FORWARD:
            found.append(True)
    return found


def one_tower(graph: Graph) -> Loop:
    """The region of the layers. Raises Unsupported where the forward pass has none, or several."""
    loops = layered_loops(graph)
    if len(loops) == 1:
        return loops[0]
    what = "no layer repeats" if not loops else f"{len(loops)} regions of layers run one after the other"
    raise Unsupported(f"{graph.target} cannot be cut into pipeline stages: {what} in its forward pass; leave out pp")


def _places(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Whether a value outside the layers is first used before or after them in the forward pass."""
    found: dict[str, list[str]] = {}
    roots = {name: tensor.storage for name, tensor in graph.tensors().items()}
    passed = False
    for item in graph.items:
        if isinstance(item, Loop):
            passed = passed or bool(_runs(item))
        elif item.phase in _FORWARD:
            for ref in item.refs:
                rows = found.setdefault(roots[ref.value], [])
                here = AFTER if passed else BEFORE
                if here not in rows:
                    rows.append(here)
    return {value: tuple(rows) for value, rows in found.items()}


def kept_by_place(graph: Graph) -> dict[str, Expr] | None:
    """Bytes kept for backward of one pass, by where the storage was made: before, inside or after the layers."""
    if graph.kept is None:
        return None
    position = positions(graph)
    found: dict[str, list[Expr]] = {BEFORE: [], INSIDE: [], AFTER: []}
    entry = _entry(graph)
    for value, size in saved_bytes(graph).items():
        where = position.get(value, AFTER)
        found[AFTER if value == entry else where].append(size)
    return {where: sp.expand(sp.Add(*rows)) for where, rows in found.items()}


def stands(graph: Graph) -> dict[str, str]:
    """Whether each node belongs to what stands before, inside or after the layers; backward runs from after to before.

    A gradient's node is placed by where its parameter is.
    """
    depth, held = depth_of(graph), {h.label: h.where[-1] for h in holdings(graph)}
    found: dict[str, str] = {}
    passed = {"forward": False, "backward": False}
    for item in graph.items:
        nodes = [(place.node, True) for place in _all(item)] if isinstance(item, Loop) else [(item, False)]
        layered = isinstance(item, Loop) and item.size == depth
        for node, _ in nodes:
            way = "backward" if node.phase in ("backward", "recompute") else "forward"
            behind = passed[way] == (way == "forward")
            label = next((name for name in held if name.rpartition(".")[0] == node.module), "") if GRADIENT in node.notes else ""
            found[node.name] = INSIDE if layered else held[label] if label else AFTER if behind else BEFORE
        if layered and any(node.phase in _FORWARD for node, _ in nodes):
            passed["forward"] = True
        if layered and any(node.phase in ("backward", "recompute") for node, _ in nodes):
            passed["backward"] = True
    return found


def positions(graph: Graph) -> dict[str, str]:
    """Whether each value is made before, inside or after the layers."""
    depth = depth_of(graph)
    position: dict[str, str] = {}
    passed = False
    for item in graph.items:
        if isinstance(item, Loop) and item.size == depth and _runs(item):
            passed = True
            position.update((out.value, INSIDE) for node in _all(item) for out in node.node.outputs)
        elif isinstance(item, Loop):
            position.update((out.value, INSIDE if item.size == depth else AFTER if passed else BEFORE) for node in _all(item) for out in node.node.outputs)
        else:
            position.update((out.value, AFTER if passed else BEFORE) for out in item.outputs)
    return position


def _entry(graph: Graph) -> str:
    """The storage that enters the first layer, if layers keep what they are given.

    In the layers count what each hands on, so the first layer's input takes the place of the last one's output, which
    is kept by what comes after the layers.
    """
    loops = layered_loops(graph)
    if len(loops) != 1:
        return ""
    tensors, kept = graph.tensors(), graph.kept or {}
    carried = [tensors[ref.value] for place in _all(loops[0]) for ref in place.node.refs if ref.back]
    before = [item for item in graph.items[: graph.items.index(loops[0])] if not isinstance(item, Loop) and item.phase in _FORWARD]
    for node in reversed(before):
        for out in node.outputs:
            if out.storage in kept and any(c.storage in kept and c.shape == out.shape for c in carried):
                return out.storage
    return ""


def _all(loop: Loop) -> list[Placed]:
    found: list[Placed] = []
    for item in loop.items:
        found += _all(item) if isinstance(item, Loop) else [Placed(item, ())]
    return found


def boundary(graph: Graph) -> Expr:
    """Bytes that one stage hands to the next: what the layers carry from one to the next in the forward pass."""
    loop = one_tower(graph)
    tensors = graph.tensors()
    carried = {ref.value for place in _all(loop) for ref in place.node.refs if ref.back}
    return sp.expand(sp.Add(*(tensors[value].bytes for value in sorted(carried))))
