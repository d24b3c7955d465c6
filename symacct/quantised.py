"""Optimizer state in 8 bits by a stated rule: that of bitsandbytes with blocks of 256. No torch.

Its kernels take memory addresses, so no trace shows them. A moment of a tensor with 4,096 elements or more
is one byte an element and a float32 for each block of 256 or less; of a smaller tensor it is float32. Step
counts are Python numbers. The two tables of 256 float32, one pair for all tensors, are left out.
Source: bitsandbytes 0.50.2, optim/optimizer.py (Optimizer2State.init_state, min_8bit_size = 4096).
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp
from sympy import Expr

from symacct.errors import ModelFileError
from symacct.graph import Graph, Item, Loop, Node, Tensor, total_over

LEAST, BLOCK = 4096, 256
RULE = (
    f"8-bit moments by bitsandbytes' rule: of tensors with {LEAST:,} elements or more 1 byte an element and "
    f"4 a block of {BLOCK}, of others float32; its two lookup tables of 1 KiB are left out"
)
_MOMENTS = ("exp_avg", "exp_avg_sq")


def moment_bytes(count: Expr) -> Expr:
    """Bytes of one moment of a tensor with this many elements, exact for any number of them.

    >>> moment_bytes(sp.Integer(4095)), moment_bytes(sp.Integer(4096))
    (16380, 4160)
    """
    large = sp.Min(1, sp.floor(count / LEAST))
    return sp.expand(4 * count * (1 - large) + (count + 4 * sp.ceiling(count / BLOCK)) * large)


def eight_bit(graph: Graph) -> Graph:
    """The step with the moments of its (fused) Adam in 8 bits.

    Raises ModelFileError where a layer's width changes with its depth, for then the sum has no closed form.
    """
    storages, more = dict(graph.storages), []
    for place in graph.sources("state"):
        old, new = place.node.outputs[0], _quantised(place.node).outputs[0]
        if new is old:
            continue
        if any({s.name for s in new.bytes.free_symbols} & {loop.index for loop in place.loops}):
            raise ModelFileError(
                f"{graph.target}: widths change from layer to layer, so the 8-bit state of all of them has "
                "no closed form"
            )
        storages[old.value] = sp.expand(new.bytes / new.times)
        more.append(total_over(new.bytes - old.bytes, place.loops))
    shift = sp.expand(sp.Add(*more))
    peak = None if graph.peak is None else tuple((name, sp.expand(live + shift)) for name, live in graph.peak)
    return replace(
        graph,
        items=_items(graph.items),
        storages=storages,
        peak=peak,
        measured=None,  # a run has the optimizer's own step
        remarks=(*graph.remarks, RULE),
    )


def _items(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple(
        replace(item, items=_items(item.items)) if isinstance(item, Loop) else _quantised(item)
        for item in items
    )


def _quantised(node: Node) -> Node:
    """A moment as the bytes that it takes, and a step count as none; any other node as it is."""
    key = node.label.rpartition(".")[2] if node.op == "state" else ""
    if key not in (*_MOMENTS, "step"):
        return node
    out = node.outputs[0]
    count = sp.Mul(*out.shape)
    size = sp.Integer(0) if key == "step" else moment_bytes(count)
    return replace(node, outputs=(Tensor(out.value, (size,), "uint8", out.storage, out.times),))
