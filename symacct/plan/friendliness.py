"""Sizes that a device's matrix units like or dislike, and what the step must fetch from the host.

Tensor cores work on tiles: rows of 16-bit numbers should be multiples of 8 (16 bytes) to be loaded whole, and
of 64 or 128 to fill a tile (NVIDIA, "Matrix Multiplication Background User's Guide": tile quantization). A
side that is none is rounded up by the kernel, and the work on what was added is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.account import Entry, Ledger, add, saved_bytes
from symacct.evaluation import Number, evaluate
from symacct.graph import Placed, Ref, Tensor, total_over
from symacct.plan.fusion import least_product

MULTIPLES = (8, 64, 128)
TILE = 128
_OPERANDS = {
    "aten.mm": ("self", "mat2"),
    "aten.bmm": ("self", "mat2"),
    "aten.matmul": ("self", "mat2"),
    "aten._int_mm": ("self", "mat2"),
    "aten._scaled_mm": ("self", "mat2"),
    "aten._grouped_mm": ("self", "mat2"),
    "aten.addmm": ("mat1", "mat2"),
    "aten.baddbmm": ("batch1", "batch2"),
}
_LOOKUPS = ("aten.embedding", "aten.embedding_bag", "aten._embedding_bag")


@dataclass(frozen=True, slots=True)
class Sided:
    """A product and the sides of the matrices in it: rows, columns, depth; of a convolution its channels."""

    entry: Entry
    sides: tuple[Expr, ...]
    whole: bool

    @property
    def product(self) -> Expr:
        """FLOPs over all repetitions."""
        return least_product(self.entry)


@dataclass(frozen=True, slots=True)
class Side:
    """A side of products: its formula, its size, and the largest of 8, 64, 128 that divides it, else 1.

    `share` is the part of all product FLOPs that products with this side do.
    """

    side: Expr
    size: Number
    divisor: int
    share: Fraction
    modules: tuple[str, ...]


def sided(ledger: Ledger) -> tuple[Sided, ...]:
    """The products whose sides are known: of matrix products all, of attention and convolutions the fixed."""
    tensors = ledger.graph.tensors()
    found = ((entry, _sides(entry.place, tensors)) for entry in ledger.entries if entry.product != 0)
    return tuple(Sided(entry, sides, entry.op in _OPERANDS) for entry, sides in found if sides)


def unfriendly(ledger: Ledger, sizes: Mapping[str, int]) -> tuple[Side, ...]:
    """Sides that are no multiple of 128 (short ones and head widths: of 8), those with most FLOPs first."""
    total = evaluate(add(least_product(e) for e in ledger.entries), sizes)
    held: dict[Expr, list[Sided]] = {}
    for product in _steady(sided(ledger)):
        for side in dict.fromkeys(product.sides):
            held.setdefault(side, []).append(product)
    rows = []
    for side, products in held.items():
        size = evaluate(side, sizes)
        asked = TILE if size >= TILE and any(p.whole for p in products) else MULTIPLES[0]
        if size % asked:
            part = evaluate(add(p.product for p in products), sizes)
            modules = tuple(dict.fromkeys(p.entry.module for p in products))
            divisor = max(n for n in (1, *MULTIPLES) if size % n == 0)
            rows.append(Side(side, size, divisor, Fraction(part, total) if total else Fraction(0), modules))
    return tuple(sorted(rows, key=lambda row: (-row.share, row.divisor, str(row.side))))


def padded(ledger: Ledger, sizes: Mapping[str, int], multiple: int) -> Fraction:
    """FLOPs of the matrix products with each side that is long enough rounded up, against what they are."""
    before, after = Fraction(0), Fraction(0)
    for product in _steady(p for p in sided(ledger) if p.whole):
        flops = Fraction(evaluate(product.product, sizes))
        numbers = [evaluate(side, sizes) for side in product.sides]
        before += flops
        after += flops * _factor(numbers, multiple)
    return after / before if before else Fraction(1)


def _factor(numbers: Iterable[Number], multiple: int) -> Fraction:
    factor = Fraction(1)
    for number in numbers:
        factor *= Fraction(-(-number // multiple) * multiple, number) if number >= multiple else 1
    return factor


def small(ledger: Ledger, sizes: Mapping[str, int], side: int = TILE) -> tuple[int, Fraction]:
    """How many launches are products with a side under a tile's, and their share of all product FLOPs."""
    few = [p for p in _steady(sided(ledger)) if p.whole and min(evaluate(s, sizes) for s in p.sides) < side]
    total = evaluate(add(least_product(e) for e in ledger.entries), sizes)
    part = evaluate(add(p.product for p in few), sizes)
    return int(evaluate(add(p.entry.place.times for p in few), sizes)), Fraction(
        part, total
    ) if total else Fraction(0)


# The vocabulary


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the logits and the tables of a model cost, as formulas. `rows` is the vocabulary.

    FLOPs are those that the convention counts, bytes those that kernels move op by op, `kept` the bytes kept
    for backward that are as wide as the vocabulary. `of_*` are the totals that they are a part of.
    """

    rows: Expr
    flops: Expr
    of_flops: Expr
    moved: Expr
    lookups: Expr
    of_moved: Expr
    kept: Expr
    of_kept: Expr
    parameters: Expr
    of_parameters: Expr


def vocabulary(ledger: Ledger) -> Vocabulary | None:
    """The part of logits and tables; None for a model whose output is not as wide as one of its tables."""
    tensors = ledger.graph.tensors()
    weights = (_operand(e.place, "weight", tensors) for e in ledger.entries if e.op in _LOOKUPS)
    tables = {weight.shape[0] for weight in weights if weight is not None}
    widths = {p.entry.place.node.outputs[0].shape[-1] for p in sided(ledger) if p.entry.phase == "forward"}
    rows = next(iter(sorted(tables & widths, key=str)), None)
    if rows is None:
        return None
    passes = [e for e in ledger.entries if e.phase != "optimizer" and not e.op.startswith("aten.embedding")]
    seen = [e for e in passes if any(rows in tensor.shape for tensor in _touched(e, tensors))]
    looked = [e for e in ledger.entries if e.op.startswith("aten.embedding")]
    kept = saved_bytes(ledger.graph).items()
    found = ledger.formulas
    return Vocabulary(
        rows=rows,
        flops=add(ledger.counted(e) for e in seen),
        of_flops=add(ledger.counted(e) for e in ledger.entries),
        moved=add(e.read + e.written for e in seen),
        lookups=add(e.read + e.written for e in looked),
        of_moved=add(e.read + e.written for e in ledger.entries),
        kept=add(value for name, value in kept if tensors[name].shape[-1:] == (rows,)),
        of_kept=found.get("bytes.saved", sp.Integer(0)),
        parameters=add(
            sp.expand(total_over(out.numel, place.loops))
            for place in ledger.graph.sources("parameter")
            for out in place.node.outputs
            if rows in out.shape
        ),
        of_parameters=found["params.total"],
    )


def host_bytes(ledger: Ledger) -> Expr:
    """Bytes of the inputs, which come from the host for every step."""
    places = ledger.graph.sources("input")
    return add(
        sp.expand(total_over(out.bytes, place.loops)) for place in places for out in place.node.outputs
    )


def _touched(entry: Entry, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    yield from entry.place.node.outputs
    yield from (tensors[ref.value] for ref in entry.place.node.refs)


def _steady(products: Iterable[Sided]) -> Iterator[Sided]:
    """Products whose sides are the same in every repetition."""
    for product in products:
        indices = {loop.index for loop in product.entry.place.loops}
        if not any(indices & {s.name for s in side.free_symbols} for side in product.sides):
            yield product


def _sides(place: Placed, tensors: Mapping[str, Tensor]) -> tuple[Expr, ...]:
    node = place.node
    if node.op in _OPERANDS:
        left, right = (_operand(place, name, tensors) for name in _OPERANDS[node.op])
        if left is None or right is None or min(len(left.shape), len(right.shape)) < 2:
            return ()
        return (left.shape[-2], right.shape[-1], left.shape[-1])
    if node.op.startswith("aten.convolution"):
        weight = _operand(place, "weight", tensors)
        return () if weight is None else tuple(weight.shape[:2])
    if "scaled_dot_product" in node.op:
        query, value = _operand(place, "query", tensors), _operand(place, "value", tensors)
        return (
            () if query is None or value is None else tuple(dict.fromkeys((query.shape[-1], value.shape[-1])))
        )
    return ()


def _operand(place: Placed, name: str, tensors: Mapping[str, Tensor]) -> Any:
    argument = dict(place.node.arguments).get(name)
    if not isinstance(argument, Ref):
        return None
    found = tensors[argument.value]
    return (
        found if argument.shape is None else Tensor(found.value, argument.shape, found.dtype, found.storage)
    )
