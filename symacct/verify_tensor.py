"""One tensor-parallel rank as it is derived, against the rank that torch's parallelize_module makes of the
real model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy as sp
from sympy import Expr
from torch import nn

from symacct import oracles_parallel as torch_ranks
from symacct import verify_runs as runs
from symacct.account import Ledger
from symacct.certificate import Check
from symacct.errors import Unsupported
from symacct.formula_text import to_text
from symacct.graph import Graph
from symacct.oracles_styles import Tensors
from symacct.parallel.collectives import traffic_of
from symacct.parallel.degrees import Degrees, names_for
from symacct.parallel.layout import GRADIENT
from symacct.parallel.proposal import Plan, propose
from symacct.parallel.sharding import Division
from symacct.parallel.shared_inputs import Shared, beside
from symacct.parallel.tensor import sharded
from symacct.parallel.torch_styles import given_in_parts, needed_in_parts, sequence_dims, torch_plan
from symacct.records import loosened, template
from symacct.symbols import symbol
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, models_at, numbers_of, shape_text, torch_running
from symacct.verify_sent import added, differences, kind_of, notes_of, sent_in
from symacct.verify_shapes import Step, unfold

_SEQUENCES = ("T", "S")
_FUSED = "aten._scaled_dot_product_"
_LATER = "{} stays whole, and ranks take parts of what is computed of its product: DTensor sums gradients elsewhere there"
_SINGLE = (
    "{} whole on every rank: compared at B=1, where torch leaves out copies, so without bytes.saved; in a batch "
    "of more DTensor gathers the queries rather than take parts of such keys"
)


def tensor_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    local: Graph | None = None,
) -> None:
    """Local parameters, products and collectives of one rank. `local` is the rank's graph if another one is
    to be tested.
    """
    t = names_for(graph).of["tp"]
    for _, example in models_at(source, graph, source.dims, found, seed):
        divided, plan = divided_as_torch_can(graph, degrees, t, example.model, found)
        local = local or divided
        dim = sequence_dim(graph, local, t) if degrees.sequence else None
        told = torch_plan(graph, local, plan, t, degrees.sequence)
        if told.gathered:
            raise Unsupported(f"parts of the sequence are gathered before {', '.join(told.gathered)}, which no style says")
        alone = [group for group in told.shared if group.more]
        cut = needed_in_parts(local, t)
        if later := [label for label, plain in cut.items() if not plain]:
            raise Unsupported(_LATER.format(", ".join(later)))
        shapes = Counter(label for label, _ in {(p.node.label, p.node.outputs[0].shape) for p in graph.sources("parameter")})
        if unlike := [label for label in {**plan.whole, **plan.params} if shapes[label] > 1]:
            raise Unsupported(f"{', '.join(unlike)} names weights of layers of several kinds, which no style tells apart")
        single = {"B": 1} if cut and "B" in source.dims else {}
        if single:
            found.notes[_SINGLE.format(", ".join(sorted(cut)))] = None
        for point, real in models_at(source, local, {t.name: degrees.tensor} | single, found, seed):
            met = _modules_of(real.model, cut)
            styles, cut_in = styles_of(real.model, plan), given_in_parts(graph, local)
            seen = as_torch_divides(real, Tensors(styles, degrees.tensor, dim, met, cut_in))
            found.points.append(point)
            found.notes.update(dict.fromkeys([*seen.notes, *notes_of(alone)]))
            found.checks += _Tensor(
                local, plan, t, point, seen, f"parallelize_module, rank 0 of {degrees.tensor}", not single, alone
            ).checks(found)
            return


def divided_as_torch_can(
    graph: Graph, degrees: Degrees, t: Expr, model: nn.Module, found: Findings
) -> tuple[Graph, Plan]:
    """One rank's graph under the plan, without what torch's styles cannot say; `found` then notes what was
    left whole.
    """
    sequence = tuple(symbol(name) for name in _SEQUENCES if name in graph.symbols)
    if degrees.sequence and not sequence:
        raise Unsupported(f"{graph.target} has no size T (or S) of a sequence to divide; leave out sp")
    sequence = sequence if degrees.sequence else ()
    plan = propose(graph, t, None, sequence)
    unsayable = unsayable_in(plan, model)
    if unsayable and degrees.sequence:
        label, why = next(iter(unsayable.items()))
        raise Unsupported(f"{label} would stay whole, and no style divides the sequence there: {why}")
    for why in dict.fromkeys(unsayable.values()):
        labels = [label for label, reason in unsayable.items() if reason == why]
        found.notes[f"{', '.join(labels)} left whole for the comparison: {why}"] = None
    if unsayable:
        plan = propose(graph, t, None, sequence, unsayable)
    if not plan.params:
        why = next(iter(unsayable.values()), "nothing divides")
        raise Unsupported(f"{graph.target}: torch's styles can divide none of its weights; {why}")
    return sharded(graph, Division(t, plan.params, sequence, again=False)), plan


def unsayable_in(plan: Plan, model: nn.Module) -> dict[str, str]:
    """The divisions of a plan that no style of torch means, and why."""
    found = {}
    for label, name in _named(model, plan.params).items():
        part, (path, _, attribute) = plan.params[label], name.rpartition(".")
        if part.pieces or part.outer != 1:
            found[label] = "torch's ColwiseParallel divides a fused weight as one, not part by part"
        elif attribute not in ("weight", "bias") or not isinstance(
            model.get_submodule(path), nn.Linear | nn.Embedding
        ):
            found[label] = "torch's styles divide nn.Linear and nn.Embedding"
    return found


def _named(model: nn.Module, labels: Mapping[str, Any]) -> dict[str, str]:
    """Of each label that the model has, one parameter's own name."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return {label: name for name in reversed(names) if (label := label_of(name, labels)) in labels}


def label_of(name: str, labels: Mapping[str, Any]) -> str:
    """What a parameter is called in a graph: by its name, or by that of its repetitions."""
    return next((label for label in (name, template(name)) if label in labels), loosened(template(name)))


def _modules_of(model: nn.Module, labels: Collection[str]) -> tuple[str, ...]:
    """The linear modules of the real model that have these weights."""
    named = dict.fromkeys(labels)
    linear = (path for path, module in model.named_modules() if isinstance(module, nn.Linear))
    return tuple(path for path in linear if label_of(f"{path}.weight", named) in named)


def as_torch_divides(
    real: runs.Real, tensors: Tensors | None, shards: torch_ranks.Shards | None = None
) -> torch_ranks.Rank:
    """The first rank of torch's. Raises Unsupported where the model's own code does not go through
    DTensor.
    """
    with torch_running("this model"):
        return torch_ranks.rank_of(real.model, real.inputs, real.loss, tensors, shards)


def sequence_dim(graph: Graph, local: Graph, ranks: Expr) -> int:
    """Where the sequence lies in what these ranks scatter."""
    dims = sequence_dims(graph, local, ranks)
    if len(dims) != 1:
        raise Unsupported(
            f"{graph.target}: the sequence lies in {len(dims)} dimensions of what is scattered; "
            "torch's styles take one"
        )
    return dims.pop()


def styles_of(model: nn.Module, plan: Plan) -> dict[str, str]:
    """The plan's styles by module path of the real model."""
    found, shared = {}, set()
    parameters = [
        (name, param)
        for name, param in model.named_parameters(remove_duplicate=False)
        if name.endswith(".weight")
    ]
    for name, param in parameters:
        style = plan.styles.get(label_of(name, plan.styles))
        if style:
            found[name.removesuffix(".weight")] = style
            shared.add(id(param))
    for name, param in parameters:  # the other end of a tied table
        if id(param) in shared:
            found.setdefault(name.removesuffix(".weight"), "colwise")
    return found


@dataclass
class _Tensor:
    """One point: the rank's graph there against what torch's rank did."""

    graph: Graph
    plan: Plan
    ranks: Expr
    point: Mapping[str, int]
    seen: torch_ranks.Rank
    oracle: str
    saved: bool = True
    alone: Collection[Shared] = ()  # modules that share an input, which torch brings in for each

    def checks(self, found: Findings) -> Iterator[Check]:
        """Every comparison."""
        ledger = Ledger(self.graph, allow_unknown=True)
        numbers = numbers_of(self.point)
        values = {
            "params.total": sum(prod(s) for s in self.seen.shapes.values()),
            "flops.forward": self.seen.flops_forward,
            "flops.backward": self.seen.flops_backward,
        }
        for key, observed in values.items():
            formula = ledger.formulas[key]
            yield self._check(key, to_text(formula), observed, int(formula.xreplace(numbers)))
        if any(place.node.op.startswith(_FUSED) for place in self.graph.ops):
            found.notes[
                "bytes.saved of a rank is not compared: DTensor runs attention as separate "
                "products, which keep their scores"
            ] = None
        elif self.saved and (saved := ledger.formulas.get("bytes.saved")) is not None:
            saved = sp.expand(saved + beside(self.alone, "all_gather").payload)  # each keeps what it gathers
            yield self._check(
                "bytes.saved", to_text(saved), self.seen.saved_bytes, int(saved.xreplace(numbers))
            )
        steps = unfold(self.graph, self.point)
        yield self._shapes(steps)
        yield from self._collectives(steps)
        yield self._gradients(steps, found)

    def _check(self, quantity: str, formula: str, observed: int, expected: int, where: str = "") -> Check:
        return Check(
            quantity,
            self.oracle,
            self.point,
            formula,
            observed,
            expected,
            observed == expected and not where,
            where,
        )

    def _shapes(self, steps: list[Step]) -> Check:
        expected, observed = Counter[tuple[str, tuple[int, ...]]](), Counter[tuple[str, tuple[int, ...]]]()
        for step in steps:
            if step.node.op == "parameter":
                for shape, times in step.outputs:
                    expected[step.node.label, shape] += times
        labels = {label: None for label, _ in expected}
        observed.update((label_of(name, labels), shape) for name, shape in self.seen.shapes.items())
        wrong = [f"{label} is {shape_text(shape)}, not foretold" for label, shape in observed - expected]
        wrong += [f"{label} is foretold as {shape_text(shape)}" for label, shape in expected - observed]
        right = sum((expected & observed).values())
        return self._check(
            "shapes",
            "the shape of each parameter on one rank",
            right,
            sum(expected.values()),
            "; ".join(wrong[:4]),
        )

    def _collectives(self, steps: list[Step]) -> Iterator[Check]:
        """Per kind: how many, and how many bytes, each pair of phase and payload as often as foretold."""
        expected, places = Counter[tuple[str, str, int]](), dict[tuple[str, str, int], list[str]]()
        for step, payload in sent_in(self.graph, steps, self.ranks, self.point):
            if GRADIENT not in step.node.notes:
                phase = "forward" if step.node.phase in ("forward", "loss") else "backward"
                key = (kind_of(step.node.op), phase, payload)
                expected[key] += 1
                places.setdefault(key, []).append(step.place)
        numbers = numbers_of(self.point)
        expected += added(self.alone, numbers)
        observed = Counter((s.kind, s.phase, s.payload) for s in self.seen.sent)
        rows = [x for x in traffic_of(self.graph, "tp", self.ranks) if not x.once]
        for kind in sorted({key[0] for key in expected | observed}):
            wrong = "; ".join(differences(expected, observed, places, kind))
            here, more = [x for x in rows if x.kind == kind], beside(self.alone, kind)
            count = sp.expand(sp.Add(*(x.count for x in here)) + more.count)
            payload = sp.expand(sp.Add(*(x.payload for x in here)) + more.payload)
            seen = [key for key in observed.elements() if key[0] == kind]
            calls, sent = (int(formula.xreplace(numbers)) for formula in (count, payload))
            total = sum(key[2] for key in seen)
            yield self._check(f"collectives.{kind}", to_text(count), len(seen), calls, wrong)
            yield self._check(
                f"traffic.{kind}", to_text(payload), total, sent, wrong if total != sent else ""
            )

    def _gradients(self, steps: list[Step], found: Findings) -> Check:
        """Gradients of whole parameters whose summands ranks hold: torch leaves them so until the optimizer
        reads them.
        """
        owners = {p.node.outputs[0].storage: p.node.label for p in self.graph.sources("gradient")}
        expected, ours = Counter[str](), Counter[str]()
        for step in steps:
            if GRADIENT in step.node.notes:
                label = owners.get(next(step.node.refs).value, "")
                (ours if self._behind_scatter(label) else expected)[label] += 1
        if ours:
            found.notes[
                f"{', '.join(ours)}: torch adds these before it scatters, so that each rank has the whole "
                "gradient; symacct adds them behind it, as Megatron does, and sums the gradient once more"
            ] = None
        if self.seen.owed:
            found.notes[
                "gradients of whole parameters stay summands under torch, and each read of one by its "
                "optimizer sums it anew (three times in AdamW); symacct sums each once"
            ] = None
        labels = dict.fromkeys(owners.values())
        observed = Counter(label_of(name, labels) for name, _ in self.seen.owed)
        wrong = [
            f"{label}: {expected[label]} foretold, {observed[label]} seen"
            for label in expected | observed
            if expected[label] != observed[label]
        ]
        formula = "gradients that ranks still have to sum"
        return self._check(
            "collectives.gradients", formula, observed.total(), expected.total(), "; ".join(wrong[:3])
        )

    def _behind_scatter(self, label: str) -> bool:
        """Whether a parameter is the bias of a row-parallel product."""
        return (
            label.endswith(".bias")
            and self.plan.styles.get(f"{label.removesuffix('.bias')}.weight") == "rowwise"
        )
