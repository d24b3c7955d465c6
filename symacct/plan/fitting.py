"""Whether a step fits: its bytes by kind, the places where its peak may lie, and the largest size within a
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import sympy as sp
from sympy import Expr

from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.graph import Assumption, Graph
from symacct.plan.direction import direction
from symacct.plan.solving import Ceiling, Inverse, Solved, inverse, largest
from symacct.symbols import symbol

Sizes = Mapping[str, int]
KINDS = {
    "weights": "bytes.params",
    "gradients": "bytes.grads",
    "optimizer state": "bytes.optimizer",
    "kept for backward": "bytes.saved",
    "KV cache": "bytes.kv_cache",
}
EXACT, BELOW, ABOVE = "exact", "at least", "at most"


@dataclass(frozen=True, slots=True)
class Form:
    """Live bytes at one place of a step: during an op of a module, in a phase; without an op, of all kinds
    together.
    """

    bytes: Expr
    op: str = ""
    module: str = ""
    phase: str = ""

    @property
    def place(self) -> str:
        """Where it lies, in words."""
        within = f" in {self.module}" if self.module else ""
        if not self.op:
            return self.phase
        return f"{self.op.removeprefix('aten.')}{within}, {self.phase}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs in a card's memory: bytes by kind, and the forms whose largest is the peak.

    `bound`: the largest form is the peak, or one below it (the peak follows no rule that is known), or one
    above it.
    """

    kinds: Mapping[str, Expr]
    forms: tuple[Form, ...]
    bound: str = EXACT

    @property
    def exact(self) -> bool:
        """Whether the largest form is the peak itself."""
        return self.bound == EXACT


def demand(
    graph: Graph, formulas: Mapping[str, Expr], under: Callable[[Expr], Expr] = lambda expr: expr
) -> Demand:
    """The demand of a traced step. `formulas` are those under the relations that `under` applies."""
    kinds = {kind: formulas[key] for kind, key in KINDS.items() if key in formulas}
    if not graph.peak:
        return Demand(kinds, least(kinds), BELOW)
    nodes = {place.node.name: place.node for place in graph.placed()}
    forms: dict[Expr, Form] = {}
    for name, live in graph.peak:
        node, expr = nodes[name], under(live)
        forms.setdefault(expr, Form(expr, node.op, node.module, node.phase))
    return Demand(kinds, tuple(forms.values()))


def least(kinds: Mapping[str, Expr], where: str = "") -> tuple[Form, ...]:
    """What is alive at the same time for sure: as backward begins, without gradients; as the optimizer steps,
    without what was kept."""
    always = sp.Add(*(kinds.get(kind, 0) for kind in ("weights", "optimizer state", "KV cache")))
    kept, grads = (kinds.get(kind, sp.Integer(0)) for kind in ("kept for backward", "gradients"))
    moments = [("as backward begins", kept)] * (kept != 0) + [("as the optimizer steps", grads)] * (
        grads != 0
    )
    said = f"{where}, " if where else ""
    forms = [Form(sp.expand(always + more), phase=f"{said}{when}") for when, more in moments]
    return tuple(forms) or (Form(sp.expand(always), phase=where or "all that lasts"),)


@dataclass(frozen=True, slots=True)
class Fit:
    """A demand at given sizes against a memory, in bytes. `form` is where the peak lies."""

    memory: int
    need: Number
    form: Form
    kinds: Mapping[str, Number]

    @property
    def fits(self) -> bool:
        return self.need <= self.memory

    @property
    def short(self) -> Number:
        """Bytes that are missing; 0 where it fits."""
        return max(0, self.need - self.memory)


def fit(wanted: Demand, memory: int, sizes: Sizes) -> Fit:
    """Compare a demand with a memory. Raises SizeError where sizes are missing."""
    numbers = [evaluate(form.bytes, sizes) for form in wanted.forms]
    at = max(range(len(numbers)), key=lambda k: numbers[k])
    kinds = {kind: evaluate(expr, sizes) for kind, expr in wanted.kinds.items()}
    return Fit(memory, numbers[at], wanted.forms[at], kinds)


@dataclass(frozen=True, slots=True)
class Solution:
    """The largest size that fits.

    `form` is the one that stops the next size, or None where a condition of the model, `condition`, does;
    `closed` its inverse where there is one; `kind` the kind of bytes that is largest there.
    """

    solved: Solved
    form: Form | None
    closed: Inverse | None
    kind: str
    condition: str = ""


def solve(
    wanted: Demand,
    memory: int,
    size: str,
    sizes: Sizes,
    conditions: Iterable[Assumption] = (),
    names: Iterable[str] = (),
) -> Solution:
    """The largest `size` with which the demand fits into the memory, the other sizes as given.

    Raises SizeError for a size that the model does not have or that moves no byte, and for missing sizes.
    """
    wished = symbol(size)
    moving = set().union(*(form.bytes.free_symbols for form in wanted.forms))
    if wished not in moving:
        known = ", ".join(names) or ", ".join(sorted(s.name for s in moving))
        why = "changes no byte of the peak" if size in set(names) else "is no size of the model"
        raise SizeError(f"--solve {size}: {size} {why}; sizes are {known}")
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != size}
    speaking = _speaking(conditions, wished, numbers)
    forms = [Ceiling(form.bytes.xreplace(numbers), memory) for form in wanted.forms]
    extra = [(ceiling, a) for a in speaking for ceiling in _ceilings(a, wished)]
    found = largest([*forms, *(ceiling for ceiling, _ in extra)], wished, allowed(conditions, size, sizes))
    at = found.binding
    form = wanted.forms[at] if at is not None and at < len(forms) else None
    condition = extra[at - len(forms)][1].short if at is not None and at >= len(forms) else ""
    stop = {**sizes, size: found.next or found.number or found.smallest}
    return Solution(
        found,
        form,
        inverse(form.bytes, wished) if form else None,
        largest_kind(wanted, stop),
        condition,
    )


def largest_kind(wanted: Demand, sizes: Sizes) -> str:
    """The kind of which there is most; what the peak has beyond all kinds lives only for the moment."""
    numbers = {kind: evaluate(expr, sizes) for kind, expr in wanted.kinds.items()}
    peak = max(evaluate(form.bytes, sizes) for form in wanted.forms)
    numbers["what lives only for the moment"] = peak - sum(numbers.values())
    return max(numbers, key=lambda kind: numbers[kind])


def _symbols(a: Assumption) -> set[sp.Symbol]:
    return set(a.left.free_symbols) | (set(a.right.free_symbols) if a.right is not None else set())


def _at(a: Assumption, numbers: Mapping[sp.Symbol, sp.Integer]) -> Assumption:
    right = a.right.xreplace(numbers) if a.right is not None else None
    return Assumption(a.kind, a.left.xreplace(numbers), right, a.source)


def _speaking(conditions: Iterable[Assumption], size: sp.Symbol, numbers: Mapping[sp.Symbol, sp.Integer]) -> list[Assumption]:
    return [c for c in (_at(a, numbers) for a in conditions) if size in _symbols(c)]


def allowed(conditions: Iterable[Assumption], size: str, sizes: Sizes) -> Callable[[int], bool]:
    """Whether the conditions allow a number for this size, with the others as given."""
    numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items() if name != size}
    speaking = _speaking(conditions, symbol(size), numbers)
    return lambda x: all(a.holds({symbol(size): sp.Integer(x)}) for a in speaking)


def _ceilings(a: Assumption, size: sp.Symbol) -> list[Ceiling]:
    """The upper ends that a condition sets, as expressions that rise with the size: a divisor is no more than
    its multiple.
    """
    if a.kind == "divides":
        pairs = [(a.right - a.left, 0)]
    elif a.kind == "equal":
        pairs = [(a.left - a.right, 0), (a.right - a.left, 0)]
    elif isinstance(a.left, sp.Le | sp.Lt | sp.Ge | sp.Gt):
        pairs = [(a.left.lts - a.left.gts, -1 if isinstance(a.left, sp.Lt | sp.Gt) else 0)]
    else:
        pairs = []
    return [Ceiling(sp.expand(expr), limit) for expr, limit in pairs if direction(sp.expand(expr), size) == 1]
