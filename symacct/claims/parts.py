"""What a formula key is the sum of: each part with its module, op, source line and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sympy as sp
from sympy import Expr

from symacct.account import Ledger, add, saved_buffers, saved_bytes
from symacct.claims.counted import idle_parameters
from symacct.graph import MASTER, Placed, Tensor, total_over
from symacct.rules import find
from symacct.symbols import symbol

_PHASES = {
    "flops.forward": ("forward", "loss"),
    "flops.backward": ("backward",),
    "flops.step": ("forward", "loss", "backward"),
    "flops.hardware": ("forward", "loss", "backward", "recompute"),
    "flops.optimizer": ("optimizer",),
}
_SOURCES = {
    "params": "parameter",
    "bytes.params": "parameter",
    "bytes.grads": "gradient",
    "bytes.optimizer": "state",
    "bytes.master": "state",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A summand of a formula and where it comes from. Alike places are one part.

    `made` is how many values come out of the place: of a weight, in one application of it. `sizes` are those
    of its cost, of its shape and of the loops around it.
    """

    module: str
    op: str
    where: str
    meaning: str
    value: Expr
    made: Expr = sp.S.Zero
    sizes: frozenset[sp.Symbol] = frozenset()


def parts_of(ledger: Ledger, key: str) -> list[Part]:
    """The parts of a formula, alike places together, in execution order."""
    grouped: dict[tuple[str, str, str], list[Part]] = {}
    for part in (p for p in _single(ledger, key) if p.value != 0):
        grouped.setdefault(
            (part.module, part.where, "" if key.startswith("flops") else part.meaning), []
        ).append(part)
    made = []
    for members in grouped.values():
        ops = ", ".join(dict.fromkeys(p.op for p in members))
        sizes = frozenset[sp.Symbol]().union(*(p.sizes for p in members))
        made.append(replace(members[0], op=ops, value=add(p.value for p in members), sizes=sizes))
    return made


def _single(ledger: Ledger, key: str) -> Iterator[Part]:
    if key in _PHASES:
        yield from _flops(ledger, key)
    elif key == "bytes.saved":
        yield from _saved(ledger, saved_bytes(ledger.graph))
    elif key == "bytes.saved_buffers":
        yield from _saved(ledger, saved_buffers(ledger.graph))
    elif key in ("bytes.read", "bytes.written"):
        for entry in ledger.entries:
            yield _at(entry.place, entry.read if key == "bytes.read" else entry.written)
    elif key == "bytes.kv_cache":
        for place in ledger.graph.sources("cache"):
            if "after" in place.node.notes:
                yield from (_tensor(place, out, True) for out in place.node.outputs)
    elif (kind := _SOURCES.get(key, _SOURCES.get(key.partition(".")[0], ""))) and key != "params.embedding":
        for place in ledger.graph.sources(kind):
            if key == "bytes.master" and MASTER not in place.node.notes:
                continue
            for out in place.node.outputs:
                part = _tensor(place, out, key.startswith("bytes"))
                yield replace(part, value=part.value * _share(place, out)) if key == "params.active" else part


def _share(place: Placed, out: Tensor) -> Expr:
    """The part of a weight that works on one token: k of E for experts, stacked or one after another."""
    routed = any(loop.size == "E" for loop in place.loops) or (
        len(out.shape) == 3 and out.shape[0] == symbol("E")
    )
    return symbol("k") / symbol("E") if routed else sp.Integer(1)


def _flops(ledger: Ledger, key: str) -> Iterator[Part]:
    times = ledger.convention.forwards if key != "flops.optimizer" else None
    hardware = key == "flops.hardware"
    phases = _PHASES[key] if times is None else _PHASES["flops.forward"]
    whole = 1 + (times or 0)
    factor = {"flops.backward": times or 1, "flops.step": whole, "flops.hardware": whole}.get(key, 1)
    for entry in ledger.entries:
        value = factor * ledger.counted(entry) if entry.phase in phases else sp.Integer(0)
        if hardware and entry.phase == "recompute" and times is not None:
            value = ledger.counted(entry)
        if hardware:
            value = value + ledger.repeated(entry)
        yield _at(entry.place, value)


def unrepeated_parts(ledger: Ledger) -> list[Part]:
    """Forward products that a checkpoint around them does not run again: nothing needs their result."""
    again = {
        (e.module, e.place.node.source) for e in ledger.entries if e.phase == "recompute" and e.product != 0
    }
    inside = {_block(module) for module, _ in again}
    found = []
    for entry in ledger.entries:
        left_out = entry.phase == "forward" and entry.product != 0 and _block(entry.module) in inside
        if left_out and (entry.module, entry.place.node.source) not in again:
            part = _at(entry.place, ledger.counted(entry))
            found.append(
                replace(part, meaning=f"not run again: the checkpoint stops before it; {part.meaning}")
            )
    return found


def _block(module: str) -> tuple[str, ...]:
    return tuple(module.split(".")[:2])


def _at(place: Placed, value: Expr) -> Part:
    node = place.node
    rule = find(node.op)
    out = node.outputs[0].numel if node.outputs else sp.S.Zero
    law = rule.law if rule else "no rule"
    made = sp.expand(total_over(out, place.loops))
    return Part(node.module, node.op, node.source, law, value, made, _sizes(place, value, *node.outputs))


def _sizes(place: Placed, value: Expr, *shown: Tensor) -> frozenset[sp.Symbol]:
    """The sizes that a place has to do with."""
    told = [value, *(size for out in shown for size in out.shape), *(loop.count for loop in place.loops)]
    return frozenset(size for expr in told for size in expr.free_symbols)


def _saved(ledger: Ledger, kept: Mapping[str, Expr]) -> Iterator[Part]:
    makers = {out.value: place for place in ledger.graph.placed() for out in place.node.outputs}
    words = {"input": "an input", "buffer": "a buffer", "constant": "a tensor of the model"}
    for name, size in kept.items():
        place, node = makers[name], makers[name].node
        what = f"{words.get(node.op, 'its output')}, kept for backward"
        sizes = _sizes(place, size, *node.outputs)
        yield Part(node.module, node.op, node.source, what, size, sizes=sizes)


def idle_parts(ledger: Ledger) -> list[Part]:
    """The parameters that N counts though no product uses them."""
    parts = [_tensor(place, out, False) for place in idle_parameters(ledger) for out in place.node.outputs]
    return [replace(part, meaning=f"{part.meaning}: counted in N, used in no product") for part in parts]


def _tensor(place: Placed, out: Tensor, in_bytes: bool) -> Part:
    node = place.node
    size = out.bytes if in_bytes else out.numel
    shape = " × ".join(map(str, out.shape)) or "a number"
    return Part(
        node.module,
        node.op,
        node.source,
        f"{node.label or node.op}, {shape}",
        sp.expand(total_over(size, place.loops)),
        sp.expand(total_over(out.shape[0], place.loops)) if len(out.shape) == 2 else sp.S.Zero,
        _sizes(place, size, out),
    )
