"""Shards and pipeline stages as they are derived, against torch's fully_shard and its pipeline schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import sympy as sp
from sympy import Expr
from torch import nn

from symacct import oracles_parallel as torch_ranks
from symacct import oracles_pipeline as torch_stages
from symacct.certificate import Check
from symacct.errors import Unsupported
from symacct.formula_text import to_text
from symacct.graph import Assumption, Graph
from symacct.oracles_styles import Tensors
from symacct.parallel.collectives import Traffic
from symacct.parallel.degrees import Degrees
from symacct.parallel.rank import Rank, rank
from symacct.parallel.shared_inputs import Shared, beside
from symacct.parallel.torch_styles import given_in_parts
from symacct.parallel.units import Unit, units_of
from symacct.records import loosened, template
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, models_at, numbers_of, shape_text
from symacct.verify_sent import alone_in, notes_of
from symacct.verify_shapes import unfold
from symacct.verify_tensor import as_torch_divides, label_of, sequence_dim, styles_of, unsayable_in

# ZeRO 3


def sharded_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Rows and bytes on one rank and what it sends, where fully_shard divides each layer and the root.

    With tensor-parallel ranks too, parallelize_module divides the weights first. `share` is what the rank is
    said to hold and to send if another answer than the derived one is to be tested.
    """
    alone = Degrees(data=degrees.data * degrees.context, zero=3)  # those of cp share weights as those of dp do
    together = replace(alone, tensor=degrees.tensor, sequence=degrees.sequence, keep=True)
    for _, example in models_at(source, graph, source.dims, found, seed):
        plain = degrees.tensor == 1 or _unsayable(graph, together, example.model, found)
        share = share or rank(graph, alone if plain else together)
        for point, real in models_at(source, even(share), _degrees(share), found, seed):
            units = units_of(share.graph)
            shards = torch_ranks.Shards(modules_of(real.model, units), share.degrees.data, source.optimizer)
            tensors = None
            if share.plan:
                dim = sequence_dim(graph, share.graph, share.names.of["tp"]) if degrees.sequence else None
                cut = given_in_parts(graph, share.graph)
                tensors = Tensors(styles_of(real.model, share.plan), degrees.tensor, dim, cut=cut)
            foretold = _parameters(real.model, share.graph, point, units)
            seen = as_torch_divides(real, tensors, shards)
            found.points.append(point)
            sharing = alone_in(graph, share)
            found.notes.update(dict.fromkeys(notes_of(sharing)))
            found.checks += _Sharded(share, foretold, seen, point, sharing).checks(found)
            return


def _unsayable(graph: Graph, degrees: Degrees, model: nn.Module, found: Findings) -> bool:
    """Whether torch's styles cannot divide this model as rank() does; then the shards are compared alone."""
    plan = rank(graph, degrees).plan
    assert plan is not None
    unsayable = unsayable_in(plan, model)
    if unsayable:
        found.notes["zero=3 is compared without tp, which torch's styles cannot divide as derived"] = None
    return bool(unsayable)


def even(share: Rank) -> Graph:
    """The rank's graph with the further condition that every parameter has a multiple of the ranks' number of
    rows.
    """
    sizes = {p.node.outputs[0].shape[0] for p in share.graph.sources("parameter") if p.node.outputs[0].shape}
    even = (
        Assumption("divides", size, share.names.of["dp"], "")
        for size in sorted(sizes, key=str)
        if not size.is_number
    )
    return replace(share.graph, assumptions=(*share.conditions, *even))


def _degrees(share: Rank) -> dict[str, int]:
    """The degrees above 1 by their symbols' names."""
    return {
        share.names.of[key].name: share.degrees.number(key)
        for key in ("dp", "tp")
        if share.degrees.number(key) > 1
    }


def modules_of(model: nn.Module, units: Sequence[Unit]) -> list[tuple[str, ...]]:
    """The modules that torch is to gather as one, for each unit: those of the same number under its prefixes, or those
    that make up a block.
    """
    found: list[tuple[str, ...]] = []
    for unit in units:
        if unit.shared:
            found.append(tuple(_around(model, unit.labels)))
            continue
        numbered: dict[str, list[str]] = {}
        for path, _ in model.named_modules():
            if path and loosened(template(path)) in {loosened(prefix) for prefix in unit.prefixes}:
                numbered.setdefault(path[len(path.rstrip("0123456789")) :], []).append(path)
        if not numbered:
            raise Unsupported("its layers are no modules of their own, so fully_shard gathers them as one")
        found += [tuple(paths) for _, paths in sorted(numbered.items(), key=lambda item: int(item[0]))]
    return found


def _around(model: nn.Module, labels: Collection[str]) -> Iterator[str]:
    """The fewest modules that hold these parameters and no other."""
    inside: list[str] = []
    for path, module in model.named_modules():
        mine = [f"{path}.{name}" for name, _ in module.named_parameters()]
        if path and mine and set(mine) <= set(labels) and not any(path.startswith(f"{outer}.") for outer in inside):
            inside.append(path)
            yield path


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter before it is spread: its shape by the graph, and how often a pass calls the unit that it is of, 0 for
    the root.
    """

    shape: tuple[int, ...]
    width: int
    calls: int

    def local(self, ranks: int) -> tuple[int, ...]:
        """The shape on the first rank: all but the last ranks hold ceil(rows / ranks) rows."""
        return (-(-self.shape[0] // ranks), *self.shape[1:])

    def padding(self, ranks: int) -> int:
        """The bytes of rows that are added so that ranks hold alike."""
        return (self.local(ranks)[0] * ranks - self.shape[0]) * prod(self.shape[1:]) * self.width


def _parameters(
    model: nn.Module, graph: Graph, point: Mapping[str, int], units: Sequence[Unit]
) -> dict[str, _Parameter]:
    shapes: dict[str, list[tuple[int, ...]]] = {}  # several where layers of some kinds alternate
    for step in unfold(graph, point):
        if step.node.op == "parameter" and step.outputs:
            shapes.setdefault(step.node.label, []).append(step.outputs[0][0])
    numbers = numbers_of(point)
    calls = {label: int((unit.calls / unit.count).xreplace(numbers)) for unit in units for label in unit.labels}
    labels = {name: label_of(name, shapes) for name, _ in model.named_parameters()}
    return {
        name: _Parameter(_nearest(shapes[labels[name]], p), p.element_size(), calls.get(labels[name], 0))
        for name, p in model.named_parameters()
    }


def _nearest(shapes: Sequence[tuple[int, ...]], p: nn.Parameter) -> tuple[int, ...]:
    """The shape that is foretold for a parameter, of those of its label."""
    return tuple(p.shape) if tuple(p.shape) in shapes else shapes[0]


@dataclass
class _Sharded:
    """One point: what a rank is said to hold and to send there, against what torch's rank did."""

    share: Rank
    parameters: Mapping[str, _Parameter]
    seen: torch_ranks.Rank
    point: Mapping[str, int]
    alone: Collection[Shared] = ()

    def checks(self, found: Findings) -> Iterator[Check]:
        """Every comparison."""
        local = {name: whole.local(self._ranks) for name, whole in self.parameters.items()}
        wrong = [
            f"{name}: {shape_text(local[name])} foretold, {shape_text(shape)} seen"
            for name, shape in self.seen.shapes.items()
            if local[name] != shape
        ]
        right = len(local) - len(wrong)
        yield Check(
            "shapes",
            self._oracle,
            self.point,
            "ceil(rows/dp) rows of each parameter",
            right,
            len(local),
            not wrong,
            "; ".join(wrong[:3]),
        )
        padding = sum(parameter.padding(self._ranks) for parameter in self.parameters.values())
        if padding:
            found.notes[
                f"fully_shard pads rows that {self._ranks} ranks do not divide: {padding:,} bytes of "
                "what was sent are left out, and bytes held are not compared"
            ] = None
        else:
            held = self.share.shares[0].states
            pairs = (
                ("params", held.params, self.seen.params_bytes),
                ("grads", held.grads, self.seen.grads_bytes),
                ("optimizer", held.optimizer, self.seen.state_bytes),
            )
            for name, formula, observed in pairs:
                yield self._check(f"bytes.{name}", formula, observed, f"{name} on one rank")
        for kind, phase in (
            ("all_gather", "forward"),
            ("all_gather", "backward"),
            ("reduce_scatter", "backward"),
        ):
            yield from self._sent("dp", kind, phase)
        if self.share.plan:
            yield from self._between()

    def _between(self) -> Iterator[Check]:
        """What tensor-parallel ranks send each other beside that. fully_shard sums summands of gradients
        before it scatters.
        """
        for kind, phase in sorted(
            {(s.kind, s.phase) for s in self.seen.sent if s.by == "DTensor"}
            | {(x.kind, _pass(x.phase)) for x in self.share.traffic if x.axis == "tp"}
        ):
            yield from self._sent("tp", kind, phase)

    def _sent(self, axis: str, kind: str, phase: str) -> Iterator[Check]:
        """The root stays gathered after its forward pass, so backward gathers the layers alone."""
        rows = [
            x
            for x in self.share.traffic
            if (x.axis, x.kind, _pass(x.phase)) == (axis, kind, phase) and not self._behind_scatter(x)
        ]
        by = "fully_shard" if axis == "dp" else "DTensor"
        sent = [s.payload for s in self.seen.sent if (s.kind, s.phase, s.by) == (kind, phase, by)]
        padding = 0
        if axis == "dp":
            padding = self._padding(kind, phase)
        more = beside(self.alone if axis == "tp" else (), kind, phase)
        count, payload = (
            sp.expand(sp.Add(*(getattr(x, what) for x in (*rows, more)))) for what in ("count", "payload")
        )
        where = f"{kind} in {phase} over {axis}" + (
            f": {', '.join(dict.fromkeys(x.what for x in rows))}" if rows else ""
        )
        yield self._check(f"collectives.{phase}.{axis}.{kind}", count, len(sent), where)
        yield self._check(f"traffic.{phase}.{axis}.{kind}", payload, sum(sent) - padding, where)

    def _behind_scatter(self, x: Traffic) -> bool:
        """Gradients of biases of row-parallel products: torch adds these before it scatters, and has nothing
        to sum.
        """
        return (
            x.once
            and x.axis == "tp"
            and self.share.plan is not None
            and self.share.plan.styles.get(f"{x.what}.weight") == "rowwise"
        )

    def _check(self, quantity: str, formula: Expr, observed: int, where: str) -> Check:
        expected = formula.xreplace(numbers_of(self.point))
        equal = expected == observed
        shown = int(expected) if expected.is_Integer else to_text(expected)
        return Check(
            quantity,
            self._oracle,
            self.point,
            to_text(formula),
            observed,
            shown,
            equal,
            "" if equal else where,
        )

    def _padding(self, kind: str, phase: str) -> int:
        """What of the bytes sent is padding: units are gathered in each call, the root in forward alone."""
        times = {"reduce_scatter": lambda calls: 1, "all_gather": lambda calls: calls or int(phase == "forward")}[kind]
        return sum(p.padding(self._ranks) * times(p.calls) for p in self.parameters.values())

    @property
    def _ranks(self) -> int:
        return self.share.degrees.data

    @property
    def _oracle(self) -> str:
        if not self.share.plan:
            return f"fully_shard, rank 0 of {self._ranks}"
        return f"fully_shard over parallelize_module, rank 0 of {self._ranks} × {self.share.degrees.tensor}"


def _pass(phase: str) -> str:
    return "forward" if phase == "loss" else phase


# Pipelines


def pipeline_checks(graph: Graph, degrees: Degrees, found: Findings, share: Rank | None = None) -> None:
    """Micro-batches under way on each kind of stage, and the time that stages wait. `share` as in
    `sharded_checks`.
    """
    p, m, v = degrees.stages, degrees.micro_batches, degrees.interleave
    share = share or rank(graph, Degrees(stages=p, micro_batches=m, interleave=v))
    kind = "1f1b" if v == 1 else "interleaved"
    actions = torch_stages.actions_of(kind, p, m, v)
    oracle = f"torch's {torch_stages.SCHEDULES[kind].__name__}, each rank run"
    numbers = {
        symbol.name: degrees.number(key) for key, symbol in share.names.of.items() if key in ("pp", "m", "v")
    }
    parts = share.names.of["v"] if v > 1 else sp.Integer(1)
    stage_at = {"first stage": 0, "second stage": 1, "last stage": p - 1}

    def check(quantity: str, formula: Expr, observed: int | Fraction) -> None:
        value = formula.xreplace(numbers_of(numbers))
        expected = Fraction(int(value.p), int(value.q))
        seen, foretold = ((int(x) if x.denominator == 1 else str(x)) for x in (Fraction(observed), expected))
        found.checks.append(
            Check(quantity, oracle, numbers, to_text(formula), seen, foretold, observed == expected)
        )

    for stage in (held.stage for held in share.shares):
        mine = actions[stage_at[stage.name]]
        check(
            f"passes under way, {stage.name}",
            sp.expand(stage.under_way * parts),
            torch_stages.most_under_way(mine),
        )
        if stage.before:
            check(
                "passes of what stands before the layers",
                stage.entered,
                torch_stages.most_under_way(mine, part=0),
            )
    for idle in sorted(set(torch_stages.idle_share(actions))):
        check("bubble", share.idle, idle)
