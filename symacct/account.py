"""Node × rule: the ledger of a graph, from which every total and every table is a group-by and a sum."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.comparisons import at_equality
from symacct.conventions import Convention
from symacct.counting import model_flops, repeated_flops
from symacct.domain import Domain
from symacct.errors import SizeError, UnknownOp, UnknownOps
from symacct.graph import MASTER, SOURCES, Graph, Placed, Ref, Tensor, total_over
from symacct.limits import LIMITED, formula_where, holds, told
from symacct.routing import active_parameters
from symacct.rules import RULES, Cost, price
from symacct.saved import gradient_bytes, saved_buffers, saved_bytes
from symacct.symbols import symbol

KINDS = ("product", "elementwise", "reduction", "transcendental")
_FORWARD = ("forward", "loss")
_CACHED = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Entry:
    """What one node costs over all its repetitions. FLOPs by kind, bytes read and written."""

    place: Placed
    product: Expr
    elementwise: Expr
    reduction: Expr
    transcendental: Expr
    recomputed: Expr
    causal: Expr | None
    read: Expr
    written: Expr
    unknown: str = ""

    @property
    def phase(self) -> str:
        return self.place.node.phase

    @property
    def module(self) -> str:
        return self.place.node.module

    @property
    def op(self) -> str:
        return self.place.node.op

    @property
    def dtype(self) -> str:
        outputs = self.place.node.outputs
        return outputs[0].dtype if outputs else ""


class Ledger:
    """The entries of a graph under one convention, and the formulas that follow."""

    def __init__(self, graph: Graph, convention: Convention | None = None, allow_unknown: bool = False) -> None:
        self.graph = graph
        self.convention = convention or Convention()
        self.allow_unknown = allow_unknown
        self.domain = Domain(tuple(graph.symbols), graph.assumptions)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """One entry per node that computes. Raises UnknownOps with every op that no rule prices."""
        missing = self._missing()
        if missing and not self.allow_unknown:
            raise UnknownOps(self.graph.target, missing)
        pricing = _Pricing(self.graph, self.domain)
        return tuple(pricing.entry(place) for place in self.graph.ops)

    def _missing(self) -> tuple[UnknownOp, ...]:
        found: dict[str, list[Placed]] = {}
        for place in self.graph.ops:
            if not has_rule(place.node.op):
                found.setdefault(place.node.op, []).append(place)
        return tuple(UnknownOp(op, len(p), p[0].node.module, p[0].node.source) for op, p in found.items())

    @property
    def unknown(self) -> tuple[UnknownOp, ...]:
        """The ops whose cost stands as a symbol in the totals."""
        return self._missing()

    def counted(self, entry: Entry, convention: Convention | None = None) -> Expr:
        """The model FLOPs of an entry under the convention: without what only the hardware repeats."""
        return model_flops(entry, convention or self.convention, self._tensors)

    def repeated(self, entry: Entry) -> Expr:
        """The products of an entry that only the hardware repeats, under the convention."""
        return repeated_flops(entry, self.convention)

    def under(self, convention: Convention) -> Ledger:
        """The same entries counted under another convention."""
        made = Ledger(self.graph, convention, self.allow_unknown)
        made.__dict__ |= {"entries": self.entries, "_uncounted": self._uncounted}
        return made

    def where(self, sizes: Mapping[str, int], keys: Container[str] = LIMITED) -> Ledger:
        """The general ledger, `keys` as they are at these values of some sizes (see `Graph.limits`); one of which
        only a run could tell is left out."""
        params, moved = self._uncounted
        known = {k: formula_where(self.graph, k, sizes, e) if k in keys else e for k, e in moved.items() if e is not None}
        made = self.under(self.convention)
        made.__dict__["_uncounted"] = (params, known)
        return made

    def check(
        self,
        claim: str,
        given: Iterable[str] = (),
        at: Mapping[str, int] | None = None,
        map: Mapping[str, str] | None = None,
    ) -> Any:
        """The verdict on a claim such as "flops.step = 6*N*D", under relations, its names mapped."""
        from importlib import import_module  # claims read formulas of a ledger, and stand above it

        return import_module("symacct.claims").check(self, claim, given, at, map)

    def flops(self, phases: Iterable[str]) -> Expr:
        """Model FLOPs of these phases."""
        wanted = set(phases)
        return add(self.counted(e) for e in self.entries if e.phase in wanted)

    def by(self, *keys: str, phases: Iterable[str] | None = None, quantity: str = "flops") -> dict[tuple[str, ...], Expr]:
        """A quantity ("flops", "read", "written" or a kind) grouped by module, op, phase, kind, dtype or source."""
        wanted = set(phases) if phases is not None else None
        grouped: dict[tuple[str, ...], list[Expr]] = {}
        for entry in self.entries:
            if wanted is not None and entry.phase not in wanted:
                continue
            for kind, value in self._parts(entry, quantity, "kind" in keys):
                key = tuple(kind if k == "kind" else getattr(entry, k) for k in keys)
                grouped.setdefault(key, []).append(value)
        totals = {key: add(values) for key, values in grouped.items()}
        return {key: value for key, value in totals.items() if value != 0}

    def _parts(self, entry: Entry, quantity: str, split: bool) -> list[tuple[str, Expr]]:
        if split:
            parts = {kind: getattr(entry, kind) for kind in KINDS}
            parts["product"] = parts["product"] - entry.recomputed
            return list(parts.items())
        if quantity == "flops":
            return [("", self.counted(entry))]
        return [("", getattr(entry, quantity))]

    @cached_property
    def formulas(self) -> dict[str, Expr]:
        """Every formula that applies, by the contract's key."""
        params, moved = self._uncounted
        found = {**params, **self.flops_formulas(), **moved}
        return {key: value for key, value in found.items() if value is not None}

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.graph.tensors()

    @cached_property
    def _uncounted(self) -> tuple[dict[str, Expr | None], dict[str, Expr | None]]:
        """The formulas that are the same under every convention: parameters, and bytes."""
        return self._params(), self._bytes()

    def _params(self) -> dict[str, Expr | None]:
        graph = self.graph
        parameters = graph.sources("parameter")
        tables = {ref.value for p in graph.ops if p.node.op.startswith("aten.embedding") for ref in p.node.refs}
        looked_up = [p for p in parameters if p.node.outputs[0].value in tables]
        active = active_parameters(graph)
        return {
            "params.total": _sum(parameters, lambda t: t.numel),
            "params.trainable": _sum([p for p in parameters if "trainable" in p.node.notes], lambda t: t.numel),
            "params.active": active,
            "params.embedding": _sum(looked_up, lambda t: t.numel) if looked_up else None,
        }

    def flops_formulas(self) -> dict[str, Expr | None]:
        """The formulas of FLOPs alone."""
        forward = self.flops(_FORWARD)
        found: dict[str, Expr | None] = {"flops.forward": forward}
        if self.graph.mode != "train":
            return found
        times = self.convention.forwards
        backward = self.flops(["backward"]) if times is None else sp.expand(times * forward)
        extra = self.flops(["recompute"]) + add(map(self.repeated, self.entries))
        return found | {
            "flops.backward": backward,
            "flops.step": sp.expand(forward + backward),
            "flops.hardware": sp.expand(forward + backward + extra),
            "flops.optimizer": self.flops(["optimizer"]),
        }

    def _bytes(self) -> dict[str, Expr | None]:
        graph = self.graph
        found: dict[str, Expr | None] = {"bytes.params": _sum(graph.sources("parameter"), lambda t: t.bytes)}
        if graph.mode == "train":
            found["bytes.grads"] = gradient_bytes(graph)
            found["bytes.optimizer"] = _sum(graph.sources("state"), lambda t: t.bytes)
            masters = [place for place in graph.sources("state") if MASTER in place.node.notes]
            found["bytes.master"] = _sum(masters, lambda t: t.bytes) if masters else None
        if graph.kept is not None:
            found["bytes.saved"] = add(saved_bytes(graph).values())
            found["bytes.saved_buffers"] = add(saved_buffers(graph).values()) or None
        if graph.peak is not None:
            found["bytes.peak"] = sp.Max(*(live for _, live in graph.peak), evaluate=False) if len(graph.peak) > 1 else graph.peak[0][1]
        if graph.mode in _CACHED:
            left = [place for place in graph.sources("cache") if "after" in place.node.notes]
            found["bytes.kv_cache"] = _sum(left, lambda t: t.bytes)
        found["bytes.read"] = add(e.read for e in self.entries)
        found["bytes.written"] = add(e.written for e in self.entries)
        return found

    def at(self, **sizes: int) -> dict[str, int]:
        """Every formula in exact integers at these sizes. Where one is another there (see `Graph.limits`) and no
        model is at hand to run, its key is left out. Raises SizeError where the sizes leave the domain."""
        numbers = self.checked(sizes)
        found = {key: told(self.graph, key, sizes, partial(_integer, key, value, numbers)) for key, value in self.formulas.items()}
        return {key: value for key, value in found.items() if value is not None}

    def peak_holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the forms of the peak hold at these sizes: not always at depth 1 or 2, or where a size is 1."""
        return holds(self.graph, "bytes.peak", sizes)

    def checked(self, sizes: Mapping[str, int]) -> dict[sp.Symbol, sp.Integer]:
        """The sizes as numbers for symbols. Raises SizeError for missing, unknown, impossible or excluded ones."""
        needed = set().union(*(value.free_symbols for value in self.formulas.values()), *map(_symbols, self.graph.assumptions))
        unknown = [name for name in sizes if name not in self.graph.symbols and symbol(name) not in needed]
        if unknown:
            raise SizeError(f"{', '.join(unknown)}: not a size of {self.graph.target}; it has {', '.join(self.graph.symbols)}")
        missing = sorted({s.name for s in needed} - set(sizes))
        if missing:
            raise SizeError(f"--at leaves out {', '.join(missing)}; give a number for each of {', '.join(self.graph.symbols)}")
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SizeError(f"{name} = {value!r}: a size is a positive integer")
        numbers = {symbol(name): sp.Integer(value) for name, value in sizes.items()}
        for a in self.graph.assumptions:
            if not a.holds(numbers):
                spelled = ", ".join(f"{s} = {numbers[s]}" for s in sorted(_symbols(a), key=str))
                where = f" (asked at {a.source})" if a.source else ""
                alike = at_equality(a.left, numbers)
                raise SizeError(f"{spelled} breaks {a.text}{where}; the formulas hold only where it is true{alike}")
        return numbers


def has_rule(op: str) -> bool:
    """Whether a rule prices this op, in place or not."""
    return op in RULES or op.removesuffix("_") in RULES


def add(values: Iterable[Expr]) -> Expr:
    """The sum in canonical form. Equal summands are counted first: a ledger holds many."""
    counts: dict[Expr, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return sp.expand(sp.Add(*(n * value for value, n in counts.items())))


@dataclass
class _Pricing:
    """Prices nodes; calls of one op on alike operands are priced once."""

    graph: Graph
    domain: Domain
    tensors: dict[str, Tensor] = field(default_factory=dict)
    known: dict[Any, Cost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = self.graph.tensors()

    def entry(self, place: Placed) -> Entry:
        node = place.node
        if not has_rule(node.op):
            mark = symbol(f"W_{node.op.replace('.', '_').replace('::', '_')}_{node.name.replace('.', '_')}")
            zero = sp.Integer(0)
            return Entry(place, mark * place.times, zero, zero, zero, zero, None, zero, zero, mark.name)
        cost = self._cost(place)
        over = lambda e: None if e is None else sp.expand(total_over(e, place.loops))  # noqa: E731
        return Entry(
            place, over(cost.product), over(cost.elementwise), over(cost.reduction), over(cost.transcendental),
            over(cost.recomputed), over(cost.causal), over(cost.read), over(cost.written),
        )

    def _cost(self, place: Placed) -> Cost:
        node = place.node
        values = {name: self._resolve(argument, place) for name, argument in node.arguments}
        out = node.outputs[0] if len(node.outputs) == 1 else node.outputs
        key = (node.op, tuple((n, _alike(v)) for n, v in values.items()), _alike(out))
        if key not in self.known:
            self.known[key] = price(node.op, values, out)
        return self.known[key]

    def _resolve(self, argument: Any, place: Placed) -> Any:
        if isinstance(argument, Ref):
            tensor = self.tensors[argument.value]
            shape = argument.shape if argument.shape is not None else tensor.shape
            return Tensor(tensor.value, shape, tensor.dtype, tensor.storage, argument.times)
        if isinstance(argument, tuple):
            return tuple(self._resolve(part, place) for part in argument)
        return argument


def _alike(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, value.times, value.value == value.storage)
    return tuple(map(_alike, value)) if isinstance(value, tuple) else value


def _sum(places: Iterable[Placed], read: Callable[[Tensor], Expr]) -> Expr:
    return add(sp.expand(total_over(read(out), p.loops)) for p in places for out in p.node.outputs)


def _symbols(a: Any) -> set[sp.Symbol]:
    return set(a.left.free_symbols) | (set(a.right.free_symbols) if a.right is not None else set())


def _integer(key: str, value: Expr, numbers: Mapping[sp.Symbol, sp.Integer]) -> int:
    got = value.xreplace(numbers)
    if not got.is_Integer:
        raise SizeError(f"{key} is {got} at these sizes, which is no integer: a divisibility is broken")
    return int(got)


__all__ = ["KINDS", "SOURCES", "Entry", "Ledger", "add", "has_rule", "saved_buffers", "saved_bytes"]
