"""The ledger of a rank that holds E/e experts: it reads and writes its own weights, and steps these alone.

Tokens are taken as spread evenly, so that its products are those of all experts on its own tokens, and so are
the bytes of everything but weights, their gradients and their optimizer's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.account import Entry, Ledger
from symacct.graph import Graph, Placed, Ref, Tensor, total_over
from symacct.parallel.holdings import holdings
from symacct.parallel.staged import Stepped
from symacct.symbols import symbol

_OPTIMIZER = "optimizer"
_COSTS = ("product", "elementwise", "reduction", "transcendental", "recomputed", "causal", "read", "written")


def of_own_experts(ledger: Ledger, ranks: Expr, stepping: bool = True) -> tuple[Ledger, bool]:
    """The ledger of one of `ranks`, and whether it is that for every op; else some read the weights of all.

    `stepping`: the optimizer's step is divided too; it need not be where ZeRO divides all of it.
    """
    graph = ledger.graph
    labels = {h.label for h in holdings(graph) if h.expert}
    steps = _steps(ledger, labels, ranks) if stepping else {}
    weights, tensors = _weights(graph, labels), graph.tensors()
    entries, sure = [], True
    for entry in ledger.entries:
        own: Entry | None
        if entry.phase == _OPTIMIZER:
            own = steps.get(entry.place.node.name, entry)
        else:
            own = _own(entry, weights, tensors, ranks)
        sure = sure and own is not None
        entries.append(own or entry)
    made = Ledger(graph, ledger.convention, ledger.allow_unknown)
    made.__dict__["entries"] = tuple(entries)
    return made, sure


def _steps(ledger: Ledger, labels: set[str], ranks: Expr) -> dict[str, Entry]:
    """By name, the optimizer's ops as a part of what they do with weights of experts, and the rest of it."""
    graph = ledger.graph
    others = {h.label for h in holdings(graph)} - labels
    parts = [
        {
            entry.place.node.name: entry
            for entry in _stepped(ledger, walk).entries
            if entry.phase == _OPTIMIZER
        }
        for walk in (Stepped(graph, others), Stepped(graph, labels))
    ]
    rest, own = parts
    return {
        entry.place.node.name: _together(entry, rest, own, ranks)
        for entry in ledger.entries
        if entry.phase == _OPTIMIZER
    }


def _stepped(ledger: Ledger, walk: Stepped) -> Ledger:
    items = tuple(item for item in map(walk.item, ledger.graph.items) if item is not None)
    return Ledger(replace(ledger.graph, items=items), ledger.convention, ledger.allow_unknown)


def _together(entry: Entry, rest: Mapping[str, Entry], own: Mapping[str, Entry], ranks: Expr) -> Entry:
    """An entry of the optimizer with its experts' part scaled. One of no parameter is in both, and stays."""
    name = entry.place.node.name
    mine, others = own.get(name), rest.get(name)
    if mine is None or others is None:
        return entry if mine is None else _scaled(mine, ranks)
    if _costs(mine) == _costs(others) == _costs(entry):
        return entry
    sums = zip(_COSTS, _costs(_scaled(mine, ranks)), _costs(others), strict=True)
    return replace(entry, **{kind: one + other for kind, one, other in sums if one is not None})


def _costs(entry: Entry) -> list[Expr]:
    return [getattr(entry, kind) for kind in _COSTS]


def _weights(graph: Graph, labels: set[str]) -> set[str]:
    """Values that are weights of experts or their gradients, views and casts of them, and what is cast so."""
    roots = {value: tensor.storage for value, tensor in graph.tensors().items()}
    sources = (p for op in ("parameter", "gradient") for p in graph.sources(op) if p.node.label in labels)
    found = {out.storage for place in sources for out in place.node.outputs}
    places = [place for place in graph.ops if place.node.phase != _OPTIMIZER and len(place.node.outputs) == 1]
    for walk in (places, places[::-1]):
        for place in walk:
            refs, out = list(place.node.refs), place.node.outputs[0]
            if len(refs) == 1 and refs[0].shape is None and _alike(graph, refs[0], out):
                ends = {roots[refs[0].value], out.storage}
                found |= ends if ends & found else set()
    return {value for value, root in roots.items() if root in found}


def _alike(graph: Graph, ref: Ref, out: Tensor) -> bool:
    return bool(sp.expand(graph.tensors()[ref.value].numel - out.numel) == 0)


def _scaled(entry: Entry, ranks: Expr) -> Entry:
    """What an op on weights alone costs where they are divided: of what grows with experts, a part."""
    costs = zip(_COSTS, _costs(entry), strict=True)
    return replace(entry, **{kind: _part(size, ranks) for kind, size in costs if size is not None})


def _part(size: Expr, ranks: Expr) -> Expr:
    """Not so a count of steps of a stacked weight, which every rank has."""
    terms = sp.Add.make_args(sp.expand(size))
    return sp.Add(*(term / ranks if symbol("E") in term.free_symbols else term for term in terms))


def _own(entry: Entry, weights: set[str], tensors: Mapping[str, Tensor], ranks: Expr) -> Entry | None:
    """An entry with the bytes of a rank's own weights; None where they cannot be told from the rest."""
    node = entry.place.node
    read = {(ref.value, ref.back): _shown(ref, tensors) for ref in node.refs if ref.value in weights}
    outs = [out.value in weights for out in node.outputs]
    if not read and not any(outs):
        return entry
    if all(ref.value in weights for ref in node.refs) and all(outs) and outs:
        return _scaled(entry, ranks)
    less = _over(read.values(), entry.place)
    written = entry.written
    if entry.read == 0:  # a view
        return entry
    if not _within(less, entry.read) or (any(outs) and not all(outs)):
        return None
    if outs and all(outs):
        written = _part(written, ranks)
    return replace(entry, read=sp.expand(entry.read - less + less / ranks), written=written)


def _over(sizes: Iterable[Expr], place: Placed) -> Expr:
    return sp.expand(total_over(sp.expand(sp.Add(*sizes)), place.loops))


def _shown(ref: Ref, tensors: Mapping[str, Tensor]) -> Expr:
    tensor = tensors[ref.value]
    return sp.Mul(ref.times, *(ref.shape if ref.shape is not None else tensor.shape)) * tensor.width


def _within(part: Expr, whole: Expr) -> bool:
    """Whether a sum of bytes has these among its terms."""
    return all(c.is_nonnegative for c in sp.expand(whole - part).as_coefficients_dict().values())
