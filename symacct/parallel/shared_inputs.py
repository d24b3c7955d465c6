"""Column-parallel modules that read one tensor: where torch's styles bring it in once, as is counted, and where each of
them does by itself.

A PrepareModuleInput on a module around them, which is given that tensor, brings it in for all. Without such a module
torch sums the gradient of each, and along a divided sequence also gathers the input for each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import sympy as sp
from sympy import Expr

from symacct.formula_text import to_text
from symacct.graph import Graph, Placed

_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
_OWN = ("aten.view", "aten._unsafe_view", "aten.reshape", "aten._to_copy", "aten.expand")  # what a Linear does to its input
_EARLIER = ("forward", "loss")


@dataclass(frozen=True, slots=True)
class More:
    """Collectives that torch takes beside the counted ones: how often, and the bytes of one's whole tensor."""

    kind: str
    phase: str
    count: Expr
    bytes: Expr

    @property
    def payload(self) -> Expr:
        """The bytes of all of them."""
        return sp.expand(self.count * self.bytes)


@dataclass(frozen=True, slots=True)
class Total:
    """Of several collectives how many, and all their bytes."""

    count: Expr
    payload: Expr


@dataclass(frozen=True, slots=True)
class Shared:
    """Modules that read one tensor. `around`: the module that is given it and holds them; empty if there is none, and
    then `more` is what torch takes beside what is counted in a pass.
    """

    paths: tuple[str, ...]
    around: str
    more: tuple[More, ...] = ()


@dataclass(slots=True)
class _Read:
    """A tensor that modules read: how often it is there, how often they read it, whether all in the loops around it."""

    tensor: str
    times: Expr
    whole_loops: bool = True
    back: bool = False
    readers: dict[str, str] = field(default_factory=dict)  # module by weight's label
    reads: list[Expr] = field(default_factory=list)


def shared_inputs(graph: Graph, labels: Collection[str], gathered: Collection[str]) -> tuple[Shared, ...]:
    """Of the modules with these weights, divided by columns, those that share an input. `gathered`: weights before which
    the ranks' parts of the sequence are brought together.
    """
    called = {place.node.module for place in graph.ops}
    makers = {out.value: place for place in graph.placed() for out in place.node.outputs}
    found = []
    for read in _reads(graph, makers, labels):
        extra = sp.expand(sp.Add(*read.reads) - read.times)
        if extra == 0:
            continue
        paths = tuple(dict.fromkeys(read.readers.values()))
        parent, inside = _parent(paths), makers[read.tensor].node.module
        given = read.back or not f"{inside}.".startswith(f"{parent}.")
        if parent in called and parent and given and read.whole_loops:
            found.append(Shared(paths, parent))
        else:
            found.append(Shared(paths, "", tuple(_more(graph, makers, read, extra, gathered))))
    return tuple(found)


def _reads(graph: Graph, makers: Mapping[str, Placed], labels: Collection[str]) -> list[_Read]:
    """What each of these weights' products reads in forward, the module's own views and casts left out."""
    roots = {p.node.outputs[0].storage: p.node.label for p in graph.sources("parameter")}
    tensors, found = graph.tensors(), dict[tuple[str, int], _Read]()
    for place in graph.ops:
        node = place.node
        if node.op not in _PRODUCTS or node.phase not in _EARLIER:
            continue
        operand, weight = list(node.refs)[-2:]
        label = roots.get(tensors[weight.value].storage, "")
        if label not in labels:
            continue
        while (maker := makers[operand.value].node).module == node.module and maker.op in _OWN:
            operand = next(maker.refs)
        around = makers[operand.value].loops
        times = sp.Mul(*(loop.count for loop in place.loops if loop in around))
        read = found.setdefault((operand.value, operand.back), _Read(operand.value, times, back=bool(operand.back)))
        read.readers[label] = node.module
        read.whole_loops &= all(loop in around for loop in place.loops)
        read.reads.append(place.times)
    return list(found.values())


def _parent(paths: tuple[str, ...]) -> str:
    """The innermost path that holds all of these."""
    shared = []
    for level in zip(*(path.split(".")[:-1] for path in paths), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _more(graph: Graph, makers: Mapping[str, Placed], read: _Read, extra: Expr, gathered: Collection[str]) -> Iterator[More]:
    size = graph.tensors()[read.tensor].bytes
    in_parts = any(label in gathered for label in read.readers)
    if in_parts:
        yield More("all_gather", "forward", extra, size)
    if _needs_gradient(graph, makers, read.tensor):
        yield More("reduce_scatter" if in_parts else "all_reduce", "backward", extra, size)


def _needs_gradient(graph: Graph, makers: Mapping[str, Placed], value: str) -> bool:
    """Whether anything that is trained went into a value."""
    trained = {place.node.label for place in graph.sources("gradient")}
    ahead, seen = [value], set[str]()
    while ahead:
        node = makers[ahead.pop()].node
        if node.op == "parameter" and node.label in trained:
            return True
        if node.name not in seen:
            seen.add(node.name)
            ahead += [ref.value for ref in node.refs]
    return False


def apart_from(group: Shared, spell: Callable[[Expr], str] = to_text) -> str:
    """What torch does for modules that share an input with no module around just them, in words."""
    gathers = any(more.kind == "all_gather" for more in group.more)
    counts = " and ".join(f"{spell(more.count)} {more.kind}s" for more in group.more)
    what = "gathers and keeps it and sums its gradient" if gathers else "sums its gradient"
    who = ", ".join(group.paths)
    return f"{who} share an input that no module around just them is given: torch {what} for each, {counts} more in a pass than counted"


def beside(alone: Iterable[Shared], kind: str, phase: str = "") -> Total:
    """What torch takes of one kind, in one phase if told, for modules that it brings an input in for one by one."""
    rows = [more for group in alone for more in group.more if more.kind == kind and phase in ("", more.phase)]
    return Total(sp.Add(*(more.count for more in rows)), sp.Add(*(more.payload for more in rows)))
