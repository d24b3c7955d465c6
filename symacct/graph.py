"""The record of one traced step: nodes in execution order, folded where a region repeats. No torch.

    Graph    := header, items
    item     := Node | Loop
    Loop     := index, size, count, items          a region that runs `count` times, index = 0, 1, …
    Node     := name, op, arguments, outputs, phase, module, source
    argument := Ref | tuple of arguments | expression | number | text | None
    Ref      := value, back                        a value; `back` iterations ago of the loop around its node
    Tensor   := value, shape, dtype, storage, times

A node whose op is in SOURCES brings in a tensor that exists before its phase: a parameter, a buffer, an input, a
gradient, an optimizer's state, a part of a cache. Its `label` is the tensor's name, its `notes` what is known of it:
"after" of a part of the cache as the step leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.dtypes import SYMBOLIC, width
from symacct.errors import GraphError
from symacct.symbols import symbol

SOURCES = ("parameter", "buffer", "input", "gradient", "state", "cache", "constant")
GIVEN = ("parameter", "buffer", "state", "input")  # what is there before the step
LASTING = ("parameter", "state", "input")  # and to its end, as the caller holds it; a buffer may be replaced by another
HELD = "held"  # the note of a constant that the model holds as a plain attribute
MASTER = "master"  # the note of a state that is a float32 copy of its parameter
# The repetitions of a loop that a peak may lie in: live bytes are affine between them. The very first and last may be
# exceptions, where what the one beside them hands on is not there yet.
REPETITIONS = (0, -1, 1, -2)
PHASES = ("forward", "loss", "backward", "recompute", "optimizer")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value: its name, shape (expressions), dtype (torch's name), and the value that first held its storage.

    `times` counts the alike tensors that one entry of a list stands for, such as one per layer.
    """

    value: str
    shape: tuple[Expr, ...]
    dtype: str
    storage: str
    times: Expr = sp.Integer(1)

    @property
    def width(self) -> int | Expr:
        """Bytes of one element."""
        return symbol(self.dtype) if self.dtype in SYMBOLIC else width(self.dtype)

    @property
    def numel(self) -> Expr:
        """Number of elements, of all alike tensors together."""
        return sp.Mul(self.times, *self.shape)

    @property
    def bytes(self) -> Expr:
        """Bytes of the elements shown."""
        return self.numel * self.width


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand: the named value, `back` iterations earlier in the innermost loop around its node.

    In a list, `times` counts the alike values of other iterations that this entry stands for. `shape` is given where
    the value's own shape speaks of another loop's index.
    """

    value: str
    back: int = 0
    times: Expr = sp.Integer(1)
    shape: tuple[Expr, ...] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One op call, or one tensor brought in. `source` is the user's line, "file:line"."""

    name: str
    op: str
    arguments: tuple[tuple[str, Any], ...]
    outputs: tuple[Tensor, ...]
    phase: str
    module: str
    source: str
    label: str = ""
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The op, module and source line, in words."""
        source = f" ({self.source})" if self.source else ""
        return f"{self.op} in {self.module or 'the model itself'}{source}"

    @property
    def refs(self) -> Iterator[Ref]:
        """Every operand that is a tensor."""
        for _, argument in self.arguments:
            yield from _refs(argument)


@dataclass(frozen=True, slots=True)
class Loop:
    """A region that runs `count` times because the size named `size` says so."""

    index: str
    size: str
    count: Expr
    items: tuple[Node | Loop, ...]


Item = Node | Loop


def loops_in(items: Iterable[Item]) -> Iterator[Loop]:
    """Every region that repeats, the outer ones before those within."""
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from loops_in(item.items)


@dataclass(frozen=True, slots=True)
class Placed:
    """A node with the loops around it, outermost first."""

    node: Node
    loops: tuple[Loop, ...]

    @property
    def times(self) -> Expr:
        """How often the node runs in all."""
        return sp.Mul(*(loop.count for loop in self.loops))


@dataclass(frozen=True, slots=True)
class Death:
    """Where a storage dies that was made in certain repetitions of its birth: it lives through one run of a node.

    `after` is that node, `at` its iteration of each loop around it, in the indices i1, i2, … of the loops around the
    birth: `i1`, `i1 + 1`, `L - 1 - i1` (what backward frees), `0`. An empty `after`: it lives to the end. `over` says
    in which repetitions of each loop around the birth, first and last; where rules overlap the earlier one counts.
    """

    after: str
    at: tuple[Expr, ...]
    over: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class SymbolInfo:
    """What is known of a size: its meaning and the example it was traced at."""

    meaning: str
    traced_at: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Sizes at which a formula is another: those that meet `where`, an equality such as `B = 1`; `more` is added there if known."""

    key: str
    where: Any
    more: Expr | None

    def met(self, numbers: Mapping[sp.Symbol, sp.Integer]) -> bool:
        """Whether the equality is true at these numbers."""
        return bool(self.where.lhs.xreplace(numbers) == self.where.rhs.xreplace(numbers))

    @property
    def text(self) -> str:
        """The equality: `B = 1`, or of several sizes `B = T = 1`."""
        return " = ".join(map(str, self.sides))

    @property
    def sides(self) -> list[Expr]:
        """What is equal: of sizes whose maximum is 1 each one."""
        left, right = self.where.args
        return [*(sorted(left.args, key=str) if isinstance(left, sp.Max) and right == 1 else [left]), right]


@dataclass(frozen=True)
class Graph:
    """A traced step with everything that later answers need.

    `storages`: bytes of each storage, by the value that it was made for. `kept`: how often that storage is kept for
    backward over all repetitions; None where this follows no rule, or outside training. `peak`: the places that may
    hold the peak, each a node's name and the live bytes there; None where they follow no rule. `deaths`: where each
    storage dies, by the value that it was made for; one that is left out lives to the end; None where some follow no rule.
    `variant`: what was asked beside the code, in a few words for a head line. `limits`: where kept bytes or the peak
    are others, in some graphs found when asked for. `measured` runs the model at sizes and gives both in numbers; None where no model is at hand.
    """

    target: str
    mode: str
    device: str
    symbols: Mapping[str, SymbolInfo]
    assumptions: tuple[Assumption, ...]
    items: tuple[Item, ...]
    values: Mapping[str, int]
    remarks: tuple[str, ...] = ()
    storages: Mapping[str, Expr] = field(default_factory=dict)
    kept: Mapping[str, Expr] | None = None
    peak: tuple[tuple[str, Expr], ...] | None = None
    deaths: Mapping[str, tuple[Death, ...]] | None = None
    variant: str = ""
    limits: Sequence[Limit] = ()
    measured: Callable[[Mapping[str, int]], Mapping[str, int]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        validate(self)

    def placed(self) -> Iterator[Placed]:
        """Every node once, in execution order, with its loops."""
        yield from _placed(self.items, ())

    @property
    def ops(self) -> tuple[Placed, ...]:
        """The nodes that compute."""
        return tuple(p for p in self.placed() if p.node.op not in SOURCES)

    def sources(self, kind: str) -> tuple[Placed, ...]:
        """The nodes that bring in tensors of this kind."""
        return tuple(p for p in self.placed() if p.node.op == kind)

    def tensors(self) -> dict[str, Tensor]:
        """Every value by name."""
        return {out.value: out for p in self.placed() for out in p.node.outputs}

    def to_networkx(self) -> Any:
        """A networkx.MultiDiGraph view: node names with their `Placed`, an edge per operand with value and back."""
        import networkx as nx

        view = nx.MultiDiGraph()
        maker: dict[str, str] = {}
        for place in self.placed():
            view.add_node(place.node.name, placed=place)
            for out in place.node.outputs:
                maker[out.value] = place.node.name
        for place in self.placed():
            for ref in place.node.refs:
                if ref.value in maker:
                    view.add_edge(maker[ref.value], place.node.name, value=ref.value, back=ref.back)
        return view


@dataclass(frozen=True, slots=True)
class Assumption:
    """A condition under which the formulas hold, and the user's line that asked for it.

    `kind` is "divides" (left is a multiple of right), "equal" (left = right) or "branch" (left is a relation that
    code took as true).
    """

    kind: str
    left: Any
    right: Any
    source: str

    def holds(self, numbers: Mapping[sp.Symbol, sp.Integer]) -> bool:
        """Whether the condition is true at these numbers."""
        try:
            left = self.left.xreplace(numbers)
            if self.kind == "branch":
                return bool(left)
            right = self.right.xreplace(numbers)
            return left % right == 0 if self.kind == "divides" else left == right
        except ZeroDivisionError:
            return False

    @property
    def text(self) -> str:
        """The condition as the JSON contract writes it."""
        if self.kind == "divides":
            return f"Mod({self.left}, {self.right}) = 0"
        return f"{self.left} = {self.right}" if self.kind == "equal" else str(self.left)

    @property
    def short(self) -> str:
        """The condition as a mathematician writes it: `h | d`."""
        return f"{self.right} | {self.left}" if self.kind == "divides" else self.text


def _placed(items: tuple[Item, ...], loops: tuple[Loop, ...]) -> Iterator[Placed]:
    for item in items:
        if isinstance(item, Loop):
            yield from _placed(item.items, (*loops, item))
        else:
            yield Placed(item, loops)


def _refs(argument: Any) -> Iterator[Ref]:
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _refs(part)


def validate(graph: Graph) -> None:
    """The laws of a graph: names are unique, operands are defined, every symbol is declared."""
    names: set[str] = set()
    values: set[str] = set()
    declared = set(graph.symbols)
    for place in graph.placed():
        if place.node.name in names:
            raise GraphError(f"{graph.target}: two nodes are named {place.node.name}")
        names.add(place.node.name)
        values.update(out.value for out in place.node.outputs)
    for place in graph.placed():
        unknown = next((ref.value for ref in place.node.refs if ref.value not in values), None)
        if unknown is not None:
            raise GraphError(f"{graph.target}: {place.node.name} uses {unknown}, which no node makes")
        allowed = declared | {loop.index for loop in place.loops}
        for out in place.node.outputs:
            for size in out.shape:
                stray = {s.name for s in size.free_symbols} - allowed
                if stray:
                    raise GraphError(f"{graph.target}: {place.node.name} speaks of {', '.join(sorted(stray))}, not a symbol of it")


def total_over(expr: Expr, loops: tuple[Loop, ...]) -> Expr:
    """The sum of `expr` over all iterations of these loops; exact, for expressions polynomial in the indices."""
    for loop in reversed(loops):
        expr = sum_over(expr, symbol(loop.index), loop.count)
    return expr


def sum_over(expr: Expr, i: sp.Symbol, count: Expr) -> Expr:
    """The sum of `expr` for i = 0 … count-1, by Faulhaber's formulas."""
    if i not in expr.free_symbols:
        return count * expr
    poly = sp.Poly(sp.expand(expr), i)
    return sp.Add(*(coeff * _power_sum(power, count) for (power,), coeff in poly.terms()))


def _power_sum(power: int, n: Expr) -> Expr:
    """0^p + 1^p + … + (n-1)^p."""
    if power > 3:
        raise GraphError(f"a cost grows with power {power} of a loop index; only powers up to 3 are summed")
    half = n * (n - 1) / 2
    return (n, half, half * (2 * n - 1) / 3, half**2)[power]
