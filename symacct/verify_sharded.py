"""Shards and pipeline stages as they are derived, against torch's fully_shard and its pipeline schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import sympy as sp
from torch import nn

from symacct import oracles_parallel as torch_ranks
from symacct import oracles_pipeline as torch_stages
from symacct.certificate import Check
from symacct.formula_text import to_text
from symacct.graph import Assumption, Graph
from symacct.parallel.degrees import Degrees
from symacct.parallel.rank import Rank, rank
from symacct.records import template
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, models_at, numbers_of, shape_text

Expr = sp.Expr

# ZeRO 3


def sharded_checks(source: ModelSource, graph: Graph, degrees: Degrees, found: Findings, seed: int = 0, share: Rank | None = None) -> None:
    """Rows and bytes on one rank and what it sends, where fully_shard divides each layer and the root.

    `share` is what the rank is said to hold and to send if another answer than the derived one is to be tested.
    """
    share = share or rank(graph, Degrees(data=degrees.data, zero=3))
    n = share.names.of["dp"]
    sizes = {p.node.outputs[0].shape[0] for p in graph.sources("parameter") if p.node.outputs[0].shape}
    even = tuple(Assumption("divides", size, n, "") for size in sorted(sizes, key=str) if not size.is_number)
    for point, real in models_at(source, replace(share.graph, assumptions=(*share.conditions, *even)), {n.name: degrees.data}, found, seed):
        units = _layers(real.model, graph)
        whole = {name: _Whole(tuple(p.shape), p.element_size(), any(name.startswith(f"{unit}.") for unit in units)) for name, p in real.model.named_parameters()}
        seen = torch_ranks.sharded_rank(real.model, real.inputs, real.loss, units, degrees.data, source.optimizer)
        found.points.append(point)
        found.checks += _Sharded(share, whole, seen, degrees.data, point).checks(found)
        return


def _layers(model: nn.Module, graph: Graph) -> list[str]:
    """The modules that the graph's layers are: the outermost numbered ones whose parameters it holds as repeated."""
    repeated = [p.node.label for p in graph.sources("parameter") if "*" in p.node.label]
    found: list[str] = []
    for path, _ in model.named_modules():
        numbered = path.rpartition(".")[2].isdigit() and any(label.startswith(f"{template(path)}.") for label in repeated)
        if numbered and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class _Whole:
    """An undivided parameter, and whether it is one of a layer's."""

    shape: tuple[int, ...]
    width: int
    layered: bool

    def local(self, ranks: int) -> tuple[int, ...]:
        """The shape on the first rank: all but the last ranks hold ceil(rows / ranks) rows."""
        return (-(-self.shape[0] // ranks), *self.shape[1:])

    def padding(self, ranks: int) -> int:
        """The bytes of rows that are added so that ranks hold alike."""
        return (self.local(ranks)[0] * ranks - self.shape[0]) * prod(self.shape[1:]) * self.width


@dataclass
class _Sharded:
    """One point: what a rank is said to hold and to send there, against what torch's rank did."""

    share: Rank
    whole: Mapping[str, _Whole]
    seen: torch_ranks.Rank
    ranks: int
    point: Mapping[str, int]

    def checks(self, found: Findings) -> Iterator[Check]:
        """Every comparison."""
        local = {name: whole.local(self.ranks) for name, whole in self.whole.items()}
        wrong = [f"{name}: {shape_text(local[name])} foretold, {shape_text(shape)} seen" for name, shape in self.seen.shapes.items() if local[name] != shape]
        right = len(local) - len(wrong)
        yield Check("shapes", self._oracle, self.point, "ceil(rows/dp) rows of each parameter", right, len(local), not wrong, "; ".join(wrong[:3]))
        padding = self._padding(layered=True) + self._padding(layered=False)
        if padding:
            found.notes[f"fully_shard pads rows that {self.ranks} ranks do not divide: {padding:,} bytes of what was sent are left out, and bytes held are not compared"] = None
        else:
            held = self.share.shares[0].states
            pairs = ("params", held.params, self.seen.params_bytes), ("grads", held.grads, self.seen.grads_bytes), ("optimizer", held.optimizer, self.seen.state_bytes)
            for name, formula, observed in pairs:
                yield self._check(f"bytes.{name}", formula, observed, f"{name} on one rank")
        for kind, phase in ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward"):
            yield from self._sent(kind, phase)

    def _sent(self, kind: str, phase: str) -> Iterator[Check]:
        """The root stays gathered after its forward pass, so backward gathers the layers alone."""
        rows = [x for x in self.share.traffic if (x.axis, x.kind, x.phase) == ("dp", kind, phase)]
        sent = [s.payload for s in self.seen.sent if (s.kind, s.phase) == (kind, phase)]
        again = (kind, phase) == ("all_gather", "backward")
        padding = self._padding(layered=True) + (0 if again else self._padding(layered=False))
        count, payload = (sp.expand(sp.Add(*(getattr(x, what) for x in rows))) for what in ("count", "payload"))
        where = f"{kind} of parameters in {phase}" if kind == "all_gather" else f"{kind} of gradients in {phase}"
        yield self._check(f"collectives.{phase}.{kind}", count, len(sent), where)
        yield self._check(f"traffic.{phase}.{kind}", payload, sum(sent) - padding, where)

    def _check(self, quantity: str, formula: Expr, observed: int, where: str) -> Check:
        expected = formula.xreplace(numbers_of(self.point))
        equal = expected == observed
        shown = int(expected) if expected.is_Integer else to_text(expected)
        return Check(quantity, self._oracle, self.point, to_text(formula), observed, shown, equal, "" if equal else where)

    def _padding(self, layered: bool) -> int:
        return sum(whole.padding(self.ranks) for whole in self.whole.values() if whole.layered == layered)

    @property
    def _oracle(self) -> str:
        return f"fully_shard on each layer and the root, rank 0 of {self.ranks}"


# Pipelines


def pipeline_checks(graph: Graph, degrees: Degrees, found: Findings, share: Rank | None = None) -> None:
    """Micro-batches under way on each kind of stage, and the time that stages wait. `share` as in `sharded_checks`."""
    p, m, v = degrees.stages, degrees.micro_batches, degrees.interleave
    share = share or rank(graph, Degrees(stages=p, micro_batches=m, interleave=v))
    kind = "1f1b" if v == 1 else "interleaved"
    actions = torch_stages.actions_of(kind, p, m, v)
    oracle = f"torch's {torch_stages.SCHEDULES[kind].__name__}, each rank run"
    numbers = {symbol.name: degrees.number(key) for key, symbol in share.names.of.items() if key in ("pp", "m", "v")}
    parts = share.names.of["v"] if v > 1 else sp.Integer(1)
    stage_at = {"first stage": 0, "second stage": 1, "last stage": p - 1}

    def check(quantity: str, formula: Expr, observed: int | Fraction) -> None:
        value = formula.xreplace(numbers_of(numbers))
        expected = Fraction(int(value.p), int(value.q))
        seen, foretold = ((int(x) if x.denominator == 1 else str(x)) for x in (Fraction(observed), expected))
        found.checks.append(Check(quantity, oracle, numbers, to_text(formula), seen, foretold, observed == expected))

    for stage in (held.stage for held in share.shares):
        mine = actions[stage_at[stage.name]]
        check(f"passes under way, {stage.name}", sp.expand(stage.under_way * parts), torch_stages.most_under_way(mine))
        if stage.before:
            check("passes of what stands before the layers", stage.entered, torch_stages.most_under_way(mine, part=0))
    for idle in sorted(set(torch_stages.idle_share(actions))):
        check("bubble", share.idle, idle)
