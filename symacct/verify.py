"""Formulas put to the test: at random points of their domain against real executions, and against a second derivation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import sympy as sp

from symacct import verify_blame as blame
from symacct import verify_memory as memory
from symacct import verify_runs as runs
from symacct.account import Ledger
from symacct.certificate import Certificate, Check
from symacct.errors import ModelFileError, SymacctError, Unsupported
from symacct.formula_text import to_text
from symacct.graph import Graph
from symacct.limits import derived, limits_at
from symacct.liveness import first_step_at
from symacct.oracles import Run
from symacct.parallel.degrees import Degrees, read_degrees
from symacct.records import Trace
from symacct.regions import compared, fitting
from symacct.smallest import holds_at
from symacct.symbols import symbol
from symacct.targets import graph_of, model_behind
from symacct.tracing.autocast import emulating
from symacct.tracing.inference import CACHED
from symacct.tracing.run import trace_concrete
from symacct.tracing.source import ModelSource
from symacct.tracing.variation import graph_of as traced
from symacct.tracing.variation import varied
from symacct.variants import Variant
from symacct.verify_findings import Findings
from symacct.verify_lifting import lifted
from symacct.verify_points import Point, degenerate_points, generic_points, scaled_points
from symacct.verify_shapes import Step, against_trace, align, comparable, is_swapped, seen, unfold

__all__ = ["Certificate", "Check", "verify"]

_PARAMETERS = "the module's parameters, each once"
_COUNTER = "torch.utils.flop_counter in a real run"
_TENSORS = "real tensors after a real step"
_REFUSALS = 15
_FUSED_BACKWARD = "aten._scaled_dot_product_"


def verify(
    target: str | ModelSource, mode: str = "train", device: str = "cuda", points: int = 5, seed: int = 0,
    graph: Graph | None = None, lifting: bool = True, dtype: str | None = None, checkpoint: str | None = None,
    parallel: str | None = None, asked: Variant | None = None, given: tuple[str, ...] = (),
) -> Certificate:
    """The certificate of a target's formulas, from at least `points` random points.

    `lifting` also derives the formulas a second time, from runs at plain numbers.
    `parallel` also compares one rank's share at these degrees, such as "tp=2,sp", with torch's own parallelism.
    `asked` is what is asked of the step beside its code: another optimizer, recomputation without early stop.
    `given` tells by comparisons ("T >= W") which way the code takes where sizes decide it.
    `graph` is the graph to test when it is at hand; else it is derived, or read when the target is a stored one.
    Raises Unsupported when no model is at hand to run, and what deriving raises.
    """
    asked = asked or Variant()
    if asked.beyond_runs:
        raise Unsupported(
            f"{target if isinstance(target, str) else target.name}: verify runs plain steps of one precision, none with "
            f"{asked.beyond_runs}; verify it without, the rest of the formulas is the same"
        )
    if isinstance(target, ModelSource):
        source, name = varied(target, asked, dtype, checkpoint), target.name
    else:
        source, name = None, target
    where = compared(given)
    if graph is None:
        options = (mode, device, dtype, checkpoint, asked, where)
        graph = traced(target, name, *options) if isinstance(target, ModelSource) else graph_of(name, *options)
    where.agree(graph.assumptions)
    source = source or varied(model_behind(name, graph), asked, dtype, checkpoint)
    source = replace(source, dims=fitting(source.dims, graph.assumptions))
    degrees = None if parallel is None else read_degrees(parallel)
    ranks = None if degrees is None else _ranks(source, graph, degrees, seed)
    verification = _Verification(source, Ledger(graph, allow_unknown=True), name, points, seed, lifting)
    with emulating() if graph.device == "cuda" else contextlib.nullcontext():
        certificate = verification.certificate()
    if ranks is None:
        return certificate
    return replace(
        certificate, points=(*certificate.points, *ranks.points), checks=(*certificate.checks, *ranks.checks),
        notes=(*certificate.notes, *ranks.notes),
    )


def _ranks(source: ModelSource, graph: Graph, degrees: Degrees, seed: int) -> Findings:
    """What torch's own parallelism says of one rank."""
    from symacct.verify_parallel import parallel_checks  # torch.distributed takes a while to import

    return parallel_checks(source, graph, degrees, seed)


@dataclass
class _Verification:
    source: ModelSource
    ledger: Ledger
    target: str
    wanted: int
    seed: int
    lifting: bool
    notes: dict[str, None] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    points: list[Mapping[str, int]] = field(default_factory=list)

    def certificate(self) -> Certificate:
        graph, names = self.ledger.graph, tuple(self.source.dims)
        if set(names) - set(graph.symbols):
            raise ModelFileError(f"{self.source.name} has other sizes than {self.target}: {', '.join(names)}; build the graph again")
        self._skipped_symbols(names)
        wanted = self.wanted if names else 1
        self._visit(generic_points(graph, names, self.seed), wanted)
        if len(self.points) < wanted:
            self._visit(scaled_points(graph, names, self.seed), wanted - len(self.points))
        for candidates in degenerate_points(graph, names, self.seed):
            self._visit(candidates, 1, tries=4)
        if not self.points:
            raise Unsupported(f"{self.target}: the model ran at none of the sizes tried; {next(iter(self.notes), '')}")
        if names and self.lifting:
            self.checks += lifted(self.ledger, self.source, self.notes)
        return Certificate(
            self.target, graph.mode, graph.device, tuple(self.points), tuple(self.checks), tuple(self.notes)
        )

    def _visit(self, candidates: Iterator[Point], count: int, tries: int = _REFUSALS) -> None:
        """Check at `count` of the candidates, passing over those that the model itself refuses."""
        refused = 0
        for point in candidates:
            if count == 0 or refused == tries:
                return
            if point.sizes in self.points:
                refused += 1
                continue
            try:
                real = runs.build(self.source, point.sizes, self.ledger.graph.mode)
                run = runs.run(self.source, real, self.ledger.graph.mode)
            except Exception as error:  # the model's own code says no to these sizes
                refused += 1
                if refused == 1:
                    reason = " ".join(str(error).split())[:160]
                    self.notes[f"passed over {_sizes(point.sizes)}, which the model refuses: {type(error).__name__}: {reason}"] = None
                continue
            count -= 1
            self.points.append(dict(point.sizes))
            self.notes.update(dict.fromkeys(run.notes))
            self._at(_Here(self, point, real, run))

    def _at(self, here: _Here) -> None:
        self.checks += here.totals()
        if here.point.generic:
            self.checks += here.shapes()
        else:
            self.notes["where a size is 1 or two coincide, torch leaves out ops: there totals are compared, not each node"] = None

    def _skipped_symbols(self, names: tuple[str, ...]) -> None:
        for key, formula in self.ledger.formulas.items():
            stray = sorted({s.name for s in formula.free_symbols} - set(names))
            if stray and key.startswith(("params.", "flops.")):
                self.notes[f"{key} is not compared: {', '.join(stray)} is no size of the model file"] = None


@dataclass
class _Here:
    """One point: the real run there, the graph unfolded there, and a run on fake tensors when one is needed."""

    of: _Verification
    point: Point
    real: runs.Real
    run: Run
    _steps: list[Step] | None = None
    _trace: Trace | None = None

    def totals(self) -> Iterator[Check]:
        run, train = self.run, self.of.ledger.graph.mode == "train"
        yield from self._check("params.total", _PARAMETERS, run.params_total)
        yield from self._check("params.trainable", _PARAMETERS, run.params_trainable)
        yield from self._check("params.embedding", "the parameters that lookups read in a real run", run.params_embedding)
        yield from self._check("bytes.params", _TENSORS, run.params_bytes)
        yield from self._check("flops.forward", _COUNTER, run.flops_forward)
        if train:
            yield from self._check("flops.backward", _COUNTER, run.flops_backward)
            if self._same_kernels():
                yield from self._check("flops.hardware", _COUNTER, run.flops_forward + run.flops_hardware_backward)
            yield from self._check("bytes.grads", _TENSORS, run.grads_bytes)
            yield from self._check("bytes.optimizer", _TENSORS, run.optimizer_bytes)
        if self.of.ledger.graph.mode in CACHED:
            yield from self._check("bytes.kv_cache", "the cache after a real step", self.real.cached_bytes())
        yield from self._memory()

    def _memory(self) -> Iterator[Check]:
        """Bytes kept for backward, and the peak; on a GPU, where there is one, too."""
        graph, sizes = self.of.ledger.graph, dict(self.point.sizes)
        saved = self.run.saved_bytes, self.run.saved_buffer_bytes
        for key, oracle, seen_bytes in memory.observed(self.of.source, graph, sizes, saved, self.trace):
            yield from self._check(key, oracle, seen_bytes)
        if not self.point.generic:
            return
        told = graph.device == "cpu" and not limits_at(graph, "bytes.peak", sizes)
        expected = first_step_at(graph, sizes) if told else None
        if expected is not None:
            observed = memory.first_peak(self.of.source, sizes)
            yield Check("bytes.peak, first step", memory.FIRST, self.point.sizes, "the largest of its forms", observed, expected, observed == expected, "")
        if graph.device == "cuda" and not memory.gpu():
            self.of.notes[memory.UNSEEN] = None
        elif graph.device == "cuda" and graph.mode == "train":
            yield from self._on_gpu(sizes)

    def _on_gpu(self, sizes: dict[str, int]) -> Iterator[Check]:
        try:
            asked, allocated = memory.on_gpu(self.of.source, sizes)
        except RuntimeError as error:
            self.of.notes[f"no run on the GPU at {_sizes(sizes)}: {' '.join(str(error).split())[:160]}"] = None
            return
        yield from self._check("bytes.peak", memory.ON_GPU, asked)
        self.of.notes[f"the GPU's allocator rounds {asked:,} bytes asked for at {_sizes(sizes)} up to {allocated:,}, in blocks of 512 (max_memory_allocated, workspaces left out)"] = None

    def _check(self, key: str, oracle: str, observed: int) -> Iterator[Check]:
        formula = self.of.ledger.formulas.get(key)
        if key == "bytes.saved_buffers" and "bytes.saved" in self.of.ledger.formulas and observed:
            formula = formula if formula is not None else sp.Integer(0)  # absent where there are none
        shallow = key == "bytes.peak" and not holds_at(self.of.ledger.graph, self.point.sizes)
        if formula is None or {s.name for s in formula.free_symbols} - set(self.point.sizes):
            return
        value = formula.xreplace(self._numbers).doit()
        limits = limits_at(self.of.ledger.graph, key, self.point.sizes)
        if limits or shallow:
            number = derived(self.of.ledger.graph, key, self.point.sizes, lambda: int(value))
            if number is None:
                where = " and ".join(limit.text for limit in limits) or "regions hardly repeat"
                self.of.notes[f"{key} follows no formula where {where}: it is not compared there"] = None
                return
            if shallow:
                self.of.notes["where a region repeats three times or less the peak may be no form's: it is that of the step unfolded"] = None
            value = sp.Integer(number)
        expected = int(value) if value.is_Integer else to_text(value)
        equal = expected == observed
        if not equal and self._multiplied(key, expected, observed):
            return
        where = "" if equal else self._blame(key)
        yield Check(key, oracle, self.point.sizes, to_text(formula), observed, expected, equal, where)

    def _multiplied(self, key: str, expected: int | str, observed: int) -> bool:
        """Whether the counter lacks no more than products that torch multiplies elementwise where a size is 1; said in a note."""
        if self.point.generic or not key.startswith("flops.") or isinstance(expected, str):
            return False
        flops, lines = blame.multiplied(self.of.ledger, self.steps, self.trace, self.point.sizes, _phases(key))
        if flops != expected - observed:
            return False
        self.of.notes[f"{key}: at {_sizes(self.point.sizes)} torch multiplies elementwise what is a product at other sizes ({lines}), and its counter sees {flops:,} FLOPs less"] = None
        return True

    @property
    def _numbers(self) -> dict[sp.Symbol, sp.Integer]:
        return {symbol(name): sp.Integer(value) for name, value in self.point.sizes.items()}

    def _same_kernels(self) -> bool:
        """Whether the real run's attention repeats in backward what the graph's kernels repeat."""
        foretold = sum(_is_fused_backward(s.node.op) for s in self.steps)
        met = sum(_is_fused_backward(op) for op, _, _ in self.run.op_sequence)
        if foretold != met:
            self.of.notes[
                "flops.hardware is not compared where a CPU runs attention as separate products: "
                "it repeats no scores in backward, as the fused kernels of the graph do"
            ] = None
        return foretold == met

    @property
    def steps(self) -> list[Step]:
        """The graph, unfolded here."""
        if self._steps is None:
            self._steps = unfold(self.of.ledger.graph, self.point.sizes)
        return self._steps

    @property
    def trace(self) -> Trace:
        """A run on fake tensors with the graph's device behaviour."""
        if self._trace is None:
            graph = self.of.ledger.graph
            self._trace = trace_concrete(self.of.source, graph.mode, graph.device, dict(self.point.sizes))
        return self._trace

    def shapes(self) -> Iterator[Check]:
        """The output shapes of every node, twice: on fake tensors of the same device, and in the real run."""
        graph = self.of.ledger.graph
        try:
            right, where = against_trace(self.steps, self.trace)
        except SymacctError as error:
            right, where = 0, str(error)
        oracle = f"a run on fake tensors, {graph.device} behaviour"
        yield self._shape_check(oracle, right, len(self.steps), where)
        steps = comparable(self.steps)
        calls = seen([runs.Call(*op) for op in self.run.op_sequence])
        paired = align(steps, calls)
        self._note_swaps({steps[i].node.op for w in paired.swaps for i in w.steps}, {calls[j].op for w in paired.swaps for j in w.calls})
        if graph.mode == "train":
            self.of.notes["the optimizer's ops are compared on fake tensors only: a real first step also makes the state"] = None
        expected = len(steps) - sum(len(swap.steps) for swap in paired.swaps)
        yield self._shape_check("a real execution on the CPU", len(paired.pairs), expected, paired.broken)

    def _note_swaps(self, derived: set[str], met: set[str]) -> None:
        """Say which ops of the graph the CPU ran otherwise."""
        if derived | met:
            chief = sorted(op for op in derived if is_swapped(op)) or ["views and copies"]
            self.of.notes[
                f"a CPU runs {', '.join(chief)} otherwise ({', '.join(sorted(met - derived)) or 'fewer ops'}): "
                "those shapes are compared on fake tensors only"
            ] = None

    def _shape_check(self, oracle: str, right: int, expected: int, where: str) -> Check:
        return Check(
            "shapes", oracle, self.point.sizes, "op, phase and output shapes of every node", right, expected, not where, where
        )

    def _blame(self, key: str) -> str:
        """The ops, or the tensors, behind a total that is wrong here."""
        of, mode = self.of, self.of.ledger.graph.mode
        try:
            if key.startswith("flops."):
                return blame.products(of.ledger, comparable(self.steps), seen(runs.calls(self.real, mode)), self.point.sizes, _phases(key))
            kind = {"bytes.grads": "gradient", "bytes.optimizer": "state"}.get(key, "parameter")
            return blame.tensors(of.ledger.graph, kind, self.trace, self.point.sizes, key.startswith("bytes."))
        except SymacctError as error:
            return f"no place found: {error}"


def _phases(key: str) -> tuple[str, ...]:
    """The phases that a total of FLOPs is over."""
    phases = {"flops.forward": ("forward", "loss"), "flops.backward": ("backward", "recompute")}
    return phases.get(key, ("forward", "loss", "backward", "recompute"))


def _is_fused_backward(op: str) -> bool:
    return op.startswith(_FUSED_BACKWARD) and op.endswith("_backward")


def _sizes(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())
