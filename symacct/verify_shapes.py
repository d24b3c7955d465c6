"""The graph at a point, unfolded call by call, against the calls of a run at that point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import sympy as sp

from symacct.graph import SOURCES, Expr, Graph, Item, Loop, Node
from symacct.records import Trace, template
from symacct.symbols import symbol

Shape = tuple[int, ...]

# Ops that a CPU and a CUDA build run differently, fused attention and dropout, and a histogram, whose number of bins
# cannot be symbolic (tracing/patches.py has the sources).
_SWAPPED = ("aten._scaled_dot_product_", "aten.native_dropout", "aten._softmax_backward", "aten.bernoulli", "aten.histc")
# Ways to lay out the same elements: which of them run depends on strides, and those on the kernel that made the tensor.
_LAYOUT = frozenset(
    f"aten.{name}"
    for name in ("view", "_unsafe_view", "_reshape_alias", "clone", "alias", "detach", "slice", "transpose", "t", "permute",
                 "expand", "unsqueeze", "squeeze", "as_strided", "slice_backward", "select")
)
# Reading a tensor's value: a library's check of real data, which fake tensors do not have.
_READING = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.equal", "aten.item")
# Assertions, which a trace leaves out.
_SILENT = ("aten._assert", "aten.sym_constrain", "aten.size")
_WINDOW = 8
_LONGEST_SWAP = 80


@dataclass(frozen=True, slots=True)
class Step:
    """One call that the graph foretells at a point: its node and the shape of each output, alike ones counted."""

    node: Node
    outputs: tuple[tuple[Shape, int], ...]

    def matches(self, shapes: Sequence[Shape]) -> bool:
        """Whether these are the outputs. Of outputs that the graph holds as one total, the total."""
        if sum(times for _, times in self.outputs) == len(shapes):
            foretold = Counter[Shape]()
            for shape, times in self.outputs:
                foretold[shape] += times
            if foretold == Counter(shapes):
                return True
        summed = any(times != 1 for _, times in self.outputs) or len(self.outputs) < len(shapes)
        return summed and sum(prod(s) * n for s, n in self.outputs) == sum(map(prod, shapes))

    @property
    def place(self) -> str:
        """The op, module and line, in words."""
        return self.node.place


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a real run made: op, phase, output shapes, and the products that torch's counter saw in it."""

    op: str
    phase: str
    shapes: tuple[Shape, ...]
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Swap:
    """Calls of the graph and calls of the run that stand in each other's place."""

    steps: range
    calls: range


@dataclass
class Alignment:
    """Which call of a run is which step of the graph. `broken` is the first place where they part, in words."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    broken: str = ""


def unfold(graph: Graph, sizes: Mapping[str, int]) -> list[Step]:
    """Every call of the step in execution order, tensors that are brought in included."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
    return list(_Unfolding(numbers).steps(graph.items, {}))


@dataclass
class _Unfolding:
    numbers: Mapping[sp.Symbol, sp.Integer]
    known: dict[tuple[Expr, tuple[tuple[sp.Symbol, int], ...]], int] = field(default_factory=dict)

    def steps(self, items: tuple[Item, ...], at: Mapping[sp.Symbol, int]) -> Iterator[Step]:
        for item in items:
            if isinstance(item, Loop):
                for iteration in range(self.value(item.count, at)):
                    yield from self.steps(item.items, {**at, symbol(item.index): iteration})
                continue
            outputs = (
                (tuple(self.value(size, at) for size in out.shape), self.value(out.times, at)) for out in item.outputs
            )
            yield Step(item, tuple((shape, times) for shape, times in outputs if times))

    def value(self, expr: Expr, at: Mapping[sp.Symbol, int]) -> int:
        if expr.is_Integer:
            return int(expr)
        indices = tuple((s, at[s]) for s in sorted(expr.free_symbols & set(at), key=str))
        key = (expr, indices)
        if key not in self.known:
            number = expr.xreplace({**self.numbers, **{s: sp.Integer(i) for s, i in indices}})
            # a count that depends on the data has no number: no run has this size
            self.known[key] = int(number) if number.is_Integer else -1
        return self.known[key]


def against_trace(steps: Sequence[Step], trace: Trace) -> tuple[int, str]:
    """How many records of a run on fake tensors, of the same device, are the graph's; and the first that is not."""
    for number, step in enumerate(steps):
        if number >= len(trace.records):
            return number, f"{step.place}: the run ends before it"
        record = trace.records[number]
        here = (step.node.op, step.node.phase, template(step.node.module))
        if (record.op, record.phase, template(record.module)) != here:
            return number, f"{step.place}: the run has {record.op} in {record.module or 'the model itself'} there"
        shapes = [tuple(value.shape) for value in record.outputs]
        if not step.matches(shapes):
            return number, f"{step.place}: {_text(step)} foretold, {_shapes(shapes)} seen"
        foretold, found = {out.dtype for out in step.node.outputs}, {value.dtype for value in record.outputs}
        if not found <= foretold:
            return number, f"{step.place}: {', '.join(sorted(foretold))} foretold, {', '.join(sorted(found - foretold))} seen"
    if len(steps) < len(trace.records):
        extra = trace.records[len(steps)]
        return len(steps), f"{extra.op} in {extra.module or 'the model itself'} ({extra.source}): not in the graph"
    return len(steps), ""


def comparable(steps: Sequence[Step]) -> list[Step]:
    """The calls that a real first step on a CPU also makes: not the optimizer's, whose state is new there."""
    return [s for s in steps if s.node.op not in SOURCES and s.node.phase != "optimizer" and not s.node.op.startswith(_SILENT)]


def seen(calls: Sequence[Call]) -> list[Call]:
    """The calls of a run that a trace also records, the optimizer's left out."""
    return [c for c in calls if c.phase != "optimizer" and not c.op.startswith(_SILENT)]


def align(steps: Sequence[Step], calls: Sequence[Call]) -> Alignment:
    """Pair steps and calls in order.

    Where ops differ, the stretch must hold a swapped op or a reading of data, or nothing but changes of layout; and both
    must go on alike after it.
    """
    made = Alignment()
    i = j = 0
    while i < len(steps) or j < len(calls):
        if i < len(steps) and j < len(calls) and _same_op(steps[i], calls[j]):
            if not steps[i].matches(calls[j].shapes):
                swap = _swap(steps, calls, i, j)
                if swap is None:
                    made.broken = f"{steps[i].place}: {_text(steps[i])} foretold, {_shapes(calls[j].shapes)} seen"
                    return made
            else:
                made.pairs.append((i, j))
                i, j = i + 1, j + 1
                continue
        else:
            swap = _swap(steps, calls, i, j)
        if swap is None:
            now = steps[i].place if i < len(steps) else "the end of the graph"
            made.broken = f"{now}: the run has {calls[j].op if j < len(calls) else 'ended'} there"
            return made
        made.swaps.append(swap)
        i, j = swap.steps.stop, swap.calls.stop
    return made


def _same_op(step: Step, call: Call) -> bool:
    return step.node.op == call.op and step.node.phase == call.phase


def _swap(steps: Sequence[Step], calls: Sequence[Call], i: int, j: int) -> Swap | None:
    """The shortest stretch on both sides, a swapped op in it, after which both go on alike."""
    for total in range(1, 2 * _LONGEST_SWAP):
        for left in range(max(0, total - _LONGEST_SWAP), min(total, _LONGEST_SWAP) + 1):
            right = total - left
            if i + left > len(steps) or j + right > len(calls):
                continue
            if _go_on_alike(steps, calls, i + left, j + right) and _has_swapped(steps, calls, i, j, left, right):
                return Swap(range(i, i + left), range(j, j + right))
    return None


def _go_on_alike(steps: Sequence[Step], calls: Sequence[Call], i: int, j: int) -> bool:
    window = min(_WINDOW, max(len(steps) - i, len(calls) - j))
    if i + window > len(steps) or j + window > len(calls):
        return False
    for k, (step, call) in enumerate(zip(steps[i : i + window], calls[j : j + window], strict=True)):
        if not (_same_op(step, call) and step.matches(call.shapes)):
            ops = (step.node.op, call.op)
            return k > 0 and (_may_swap(*ops) or any(op in _LAYOUT for op in ops))
    return True


def is_swapped(op: str) -> bool:
    """Whether a CPU and a CUDA build run other ops in place of this one."""
    return op.startswith(_SWAPPED)


def _may_swap(*ops: str) -> bool:
    return any(map(is_swapped, ops))


def _has_swapped(steps: Sequence[Step], calls: Sequence[Call], i: int, j: int, left: int, right: int) -> bool:
    ops = [s.node.op for s in steps[i : i + left]] + [c.op for c in calls[j : j + right]]
    return _may_swap(*ops) or any(op in _READING for op in ops) or all(op in _LAYOUT for op in ops)


def _text(step: Step) -> str:
    return ", ".join(f"{_shape(shape)}" + (f" × {times}" if times != 1 else "") for shape, times in step.outputs) or "nothing"


def _shapes(shapes: Sequence[Shape]) -> str:
    shown = ", ".join(map(_shape, shapes[:4])) or "nothing"
    return f"{shown}, … ({len(shapes)} in all)" if len(shapes) > 4 else shown


def _shape(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
