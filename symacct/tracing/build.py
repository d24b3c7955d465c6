"""From a model's source to its Graph: the symbolic run, the concrete runs beside it, folding and lifting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from symacct.domain import Domain, domain_of
from symacct.errors import ModelFileError, SymacctError, TraceError
from symacct.folding import Item, Leaf, fold, leaves, unfold
from symacct.graph import Graph
from symacct.located import Run, leaves_of
from symacct.lowering import Lowering
from symacct.outliers import ends_of
from symacct.records import Ends, Pin, Trace
from symacct.tracing.coincidence import of_one_residue, without_coincidence
from symacct.tracing.far import lifted_of, with_far_sizes
from symacct.tracing.fx import fx_graph
from symacct.tracing.inference import in_mode
from symacct.tracing.lifetimes import with_memory
from symacct.tracing.limits import bounded
from symacct.tracing.remarks import announced, kinds, of_all_experts, symbols_of
from symacct.tracing.run import trace_concrete, trace_symbolic
from symacct.tracing.shallow import deep_enough
from symacct.tracing.source import ModelSource
from symacct.tracing.special import Special, special
from symacct.tracing.structure import depth_of_growth, freed, numeric, orders, speaks_of, whole_counts
from symacct.tracing.user_code import NO_SIZE

_SEED = 20_011
_CHECKS = 2
_LIFTING_RUNS = 10
_TRIES, _FURTHER = 40, 12


@dataclass
class Builder:
    """One derivation: runs at many sizes of one model, in one mode, with one device's behaviour."""

    source: ModelSource
    mode: str
    device: str
    remarks: list[str] = field(default_factory=list)
    _runs: dict[tuple[tuple[str, int], ...], Trace] = field(default_factory=dict)
    _bases: dict[str, int] = field(default_factory=dict)
    _loose: bool = False
    _ends: Ends = field(default_factory=dict)
    _recorded: Trace | None = None
    _special: Special = field(default_factory=dict)  # sizes where torch takes a shortcut, which no run shall check
    _way: tuple[Trace | None, list[Pin], Domain] | None = None
    sampled_in: Domain | None = None  # no symbolic run then: every size is lifted from runs at points of this domain

    @property
    def fx(self) -> Any:
        """The run behind the last graph as a torch.fx.Graph: symbolic if the code took symbols, else at the example sizes."""
        trace = self._recorded or self.concrete(self.source.dims)
        return fx_graph(trace, self._recorded is not None)

    def graph(self, target: str) -> Graph:
        """The folded graph of the step. Raises TraceError or ModelFileError when no exact one can be had."""
        try:
            return self._graph(target)
        except TraceError:
            if self._ends or not self._set_apart():
                raise
            return self._graph(target)

    def _set_apart(self) -> bool:
        """Tell layers at the ends of lists by their place, where they are of other sizes than all between."""
        deepest = max(self._runs.values(), key=lambda run: len(run.records), default=None)
        self._ends = ends_of(deepest) if deepest is not None and self._bases else {}
        more = max(map(sum, self._ends.values()), default=0)
        self._bases = {name: least + more for name, least in self._bases.items()}
        for run in self._runs.values():
            run.ends = self._ends
        self.remarks.clear()
        return bool(self._ends)

    def _graph(self, target: str) -> Graph:
        symbolic, pins, domain = self.taken()
        self._special = special(symbolic.guards) if symbolic is not None else {}
        structural = self._structural(pins, symbolic)
        self._recorded = symbolic
        self.remarks += announced(pins, structural, self.concrete(self.source.dims) if symbolic is None else symbolic)
        items = self._fold(structural)
        located = self._locate_symbolic(symbolic, items, structural)
        runs = [Run(t, items, loose=self._loose) for t in self._grid(structural)]
        runs += self._sampled(domain, items, structural, _CHECKS, _SEED)
        lowering = Lowering(
            located, runs, domain, [pin.expression for pin in pins],
            lambda: self._sampled(domain, items, structural, _LIFTING_RUNS, _SEED + 1),
        )
        made = lowering.run()
        self.remarks += kinds(made, structural)
        graph = Graph(
            target=target, mode=self.mode, device=self.device, symbols=symbols_of(made, in_mode(self.source, self.mode)),
            assumptions=(*(a for a in domain.assumptions if not numeric(a)), *whole_counts(made)), items=made, values=dict(self.source.values),
            remarks=tuple(self.remarks), storages=lowering.storages,
        )
        graph = with_memory(deep_enough(graph, self.concrete, self.source.dims), lowering, structural)
        if self.sampled_in is None:
            graph = bounded(graph, self.source, symbolic.guards if symbolic is not None else [], self.concrete, depths := self._base(structural))
            graph = with_far_sizes(graph, self.source.dims, lifted_of(self.taken()[1], self.source.dims, structural), depths)
        graph = of_all_experts(graph)
        self.remarks = list(graph.remarks)
        return graph

    def taken(self) -> tuple[Trace | None, list[Pin], Domain]:
        """The symbolic run, what it pinned, and where its way through the code is the way."""
        if self._way is None:
            self._way = (*(run := self._symbolic()), self._domain(*run))
        return self._way

    # Runs

    def concrete(self, sizes: Mapping[str, int]) -> Trace:
        """The run at these sizes; each point once."""
        key = tuple(sorted(sizes.items()))
        if key not in self._runs:
            made = self._runs[key] = trace_concrete(self.source, self.mode, self.device, dict(sizes))
            made.ends = self._ends
        return self._runs[key]

    def _symbolic(self) -> tuple[Trace | None, list[Pin]]:
        """A run with as many symbols as the code takes; sizes that it refuses or consumes come back as pins."""
        if not self.source.dims:
            return None, []
        if self.sampled_in is not None:
            return None, [Pin(name, value, "") for name, value in self.source.dims.items()]
        known = {name: self.source.dims[name] for name in self.source.structural if name in self.source.dims}
        pins = [Pin(name, value, "") for name, value in known.items()]
        try:
            trace = trace_symbolic(self.source, self.mode, self.device, known)
            trace, self.source = without_coincidence(self.source, self.mode, self.device, trace, known)
        except SymacctError as error:
            first = error
        else:
            frozen = self._frozen(trace, known)
            if not frozen:
                return trace, pins + trace.pins
            fixed = {name: self.source.dims[name] for name in frozen}
            return self._pinned(known | fixed, pins + [Pin(name, fixed[name], line) for name, line in frozen.items()])
        self.concrete(self.source.dims)
        refused = [name for name in self.source.dims if name not in known and self._refuses(name)]
        if not refused:
            raise first
        fixed = {name: self.source.dims[name] for name in refused}
        return self._pinned(known | fixed, pins + [Pin(name, value, str(first)) for name, value in fixed.items()])

    def _pinned(self, fixed: dict[str, int], pins: list[Pin]) -> tuple[Trace | None, list[Pin]]:
        """A run with these sizes as numbers; none when the code takes no symbols at all."""
        try:
            trace = trace_symbolic(self.source, self.mode, self.device, fixed)
        except SymacctError as error:
            return None, [Pin(name, value, str(error)) for name, value in self.source.dims.items()]
        return trace, pins + [pin for pin in trace.pins if pin.expression not in fixed]

    def _frozen(self, trace: Trace, known: Mapping[str, int]) -> dict[str, str]:
        """Sizes that the code tied to others by a number it computed, such as d = 40·h from int(d / h): name to line."""
        found = {}
        for name, expr, line in trace.merged:
            if expr.is_number or expr.as_coeff_Mul()[0] == 1:
                continue
            found[name.name] = line
        for a in self._domain(trace, []).assumptions:
            if a.kind == "equal" and (a.right.is_number or a.left.is_number):
                found.update((s.name, a.source) for s in a.left.free_symbols | a.right.free_symbols if s.name not in known)
        return found

    def _refuses(self, name: str) -> bool:
        others = {other: value for other, value in self.source.dims.items() if other != name}
        try:
            trace_symbolic(self.source, self.mode, self.device, others)
        except SymacctError:
            return True
        return False

    def _domain(self, trace: Trace | None, pins: list[Pin]) -> Domain:
        names = list(self.source.dims)
        if trace is None:
            return self.sampled_in or Domain(tuple(names))
        domain = domain_of(trace.guards, trace.merged, names)
        for a in domain.assumptions:
            sides = [side for side in (a.left, a.right) if side is not None]
            if not {s.name for side in sides for s in side.free_symbols} <= set(names):
                raise TraceError(f"{self.source.name}: the forward pass {NO_SIZE}" + (f" ({a.source})" if a.source else ""))
        for pin in pins:
            if pin.expression in names and speaks_of(domain, pin):
                domain = self._freed(domain, pin, pins)
        return domain

    def _freed(self, domain: Domain, pin: Pin, pins: list[Pin]) -> Domain:
        """The domain as a run at another value of a pinned size tells it; as it stands where there is no such run."""
        value = pin.value + self.source.periods.get(pin.expression, 1)
        fixed = {other.expression: other.value for other in pins if other.expression in self.source.dims} | {pin.expression: value}
        try:
            other = trace_symbolic(self.source, self.mode, self.device, fixed)
        except SymacctError:
            return domain
        return freed(domain, pin, value, domain_of(other.guards, other.merged, domain.names))

    # Structural sizes

    def _structural(self, pins: list[Pin], symbolic: Trace | None) -> tuple[str, ...]:
        """The pinned sizes that change which ops run, outermost first."""
        found = []
        for pin in pins:
            name = pin.expression
            if name not in self.source.dims:
                continue
            base = dict(self.source.dims)
            step = self.source.periods.get(name, 1)
            try:
                short, long = self.concrete(base), self.concrete({**base, name: base[name] + step})
            except ModelFileError:
                continue
            if [r.key for r in short.records] != [r.key for r in long.records]:
                found.append((name, depth_of_growth(short, long)))
        return tuple(name for name, _ in sorted(found, key=lambda pair: (pair[1], list(self.source.dims).index(pair[0]))))

    def _base(self, structural: tuple[str, ...]) -> dict[str, int]:
        """The least values of the structural sizes at which every region repeats."""
        for name in structural:
            period, least = self.source.periods.get(name, 1), self.source.dims[name] if name in self.source.structural else 1
            least = max(3 * period, 3, least)
            self._bases.setdefault(name, least + (self.source.values.get(name, least) - least) % period)
        return {name: self._bases[name] for name in structural}

    def _fold(self, structural: tuple[str, ...]) -> tuple[Item, ...]:
        example = self.source.dims
        if not structural:
            return tuple(leaves_of(self.concrete(example)))

        def runs(point: Mapping[str, int]) -> list[Leaf]:
            return leaves_of(self.concrete({**example, **point}), self._loose)

        problem, given = None, self.source.periods
        for period in (None, *((2, 3, 4) if len(structural) == 1 and not self.source.periods else ())):
            if period is not None:  # layers that alternate repeat in groups
                self._alternate(structural[0], period)
            try:
                return self._folded(structural, runs)
            except TraceError as error:
                problem = problem or error
        assert problem is not None
        if self._loose:
            raise problem
        self.source, self._bases, self._loose = replace(self.source, periods=given), {}, True
        return self._fold(structural)

    def _alternate(self, name: str, period: int) -> None:
        """Take layers in groups of `period`, at depths that are what the model's own is, modulo the period."""
        self.source = replace(self.source, periods={name: period})
        least = 3 * period
        own = self.source.values.get(name, self.source.dims[name])
        self._bases = {name: least + (own - least) % period}

    def _folded(self, structural: tuple[str, ...], runs: Callable[[Mapping[str, int]], list[Leaf]]) -> tuple[Item, ...]:
        base = self._base(structural)
        steps = {name: self.source.periods.get(name, 1) for name in structural}
        problem: TraceError | None = None
        for _ in range(3):
            for order in orders(structural):
                try:
                    items = fold(runs, base, {name: steps[name] for name in order})
                except TraceError as error:
                    problem = problem or error
                    continue
                met = {position for position, _, _ in unfold(items, base)}
                if all(place in met for place, _ in leaves(items)):
                    return items
                problem = problem or TraceError(f"a region does not repeat at {base}")
            base = self._bases = {name: value + 2 * steps[name] for name, value in base.items()}
        assert problem is not None
        raise problem

    def _grid(self, structural: tuple[str, ...]) -> list[Trace]:
        """The runs that folding used, and one further in each structural size: they differ in those alone."""
        example = self.source.dims
        if not structural:
            return [self.concrete(example)]
        base = self._base(structural)
        points = [base, *({**base, n: base[n] + k * self.source.periods.get(n, 1)} for n in structural for k in (1, 2))]
        return [self.concrete({**example, **point}) for point in points]

    def _locate_symbolic(self, trace: Trace | None, items: tuple[Item, ...], structural: tuple[str, ...]) -> Run | None:
        if trace is None:
            return None
        trace.ends = self._ends
        try:
            shallow = Run(trace, items, loose=self._loose)
        except TraceError:
            shallow = None
        if shallow is not None and shallow.complete:
            return shallow
        base = self._base(structural)
        try:
            deeper = trace_symbolic(self.source, self.mode, self.device, base)
            deeper.ends = self._ends
            return Run(deeper, items, loose=self._loose)
        except SymacctError as error:
            self.remarks.append(f"the symbolic run takes another way than a concrete one ({error}); every size was lifted from concrete runs")
            return None

    def _sampled(self, domain: Domain, items: tuple[Item, ...], structural: tuple[str, ...], count: int, seed: int) -> list[Run]:
        """Runs at random sizes of the domain, none of which went into the symbolic run."""
        if not self.source.dims:
            return []
        domain = Domain(domain.names, tuple(a for a in domain.assumptions if not numeric(a)))
        base = self._base(structural)
        found, reasons = list[Run](), list[str]()
        points, coarse, example = domain.points(seed, fixed=None), 1, self.source.dims
        lifted = lifted_of(self.taken()[1], self.source.dims, structural)
        for attempt in range(_TRIES):
            point = dict(next(points))
            for k, name in enumerate(structural):
                point[name] = base[name] + self.source.periods.get(name, 1) * ((attempt + 2 * k) % 5)
            if attempt and attempt % 5 == 0 and len(found) < attempt // 4:
                coarse = 2
            if coarse > 1:
                point = {n: v if n in structural else self.source.dims[n] * (1 + v % 4) for n, v in point.items()}
            if not domain.holds(point) or len(set(point.values())) < (len(point) + 1) // 2:
                continue
            if any(point[name] in numbers for name, numbers in self._special.items()):
                continue
            try:
                trace = self.concrete(point)
            except SymacctError as error:  # a size that the model's own code refuses
                reasons.append(str(error))
                continue
            try:
                found.append(Run(trace, items, loose=self._loose))
            except TraceError as error:
                if domain.generic(point):
                    at = ", ".join(f"{name} = {value}" for name, value in point.items())
                    raise TraceError(f"{self.source.name}: other ops run at {at} than at the example sizes: {error}") from error
                reasons.append(str(error))
                continue
            if len(found) >= count and (attempt >= _FURTHER or not of_one_residue([example, *(run.trace.sizes for run in found)], lifted)):
                return found
        if len(found) >= max(1, count // 2):
            return found
        raise TraceError(
            f"{self.source.name}: the ops that run depend on sizes in a way that is not understood; at other sizes: {reasons[0] if reasons else 'none could be tried'}"
        )
