"""What pipeline stages hold and hand on, as derived, against the stages that torch cuts out of the real model."""

from __future__ import annotations

from dataclasses import replace

from symacct import oracles_pipeline as torch_stages
from symacct.errors import Unsupported
from symacct.graph import Graph
from symacct.parallel.degrees import Degrees
from symacct.parallel.holdings import AFTER, BEFORE, boundary, holdings
from symacct.parallel.rank import Rank, rank
from symacct.parallel.units import units_of
from symacct.tracing.source import ModelSource
from symacct.verify_findings import Findings, check_of, models_at, numbers_of


def stage_checks(
    source: ModelSource,
    graph: Graph,
    degrees: Degrees,
    found: Findings,
    seed: int = 0,
    share: Rank | None = None,
) -> None:
    """Bytes of parameters on each kind of stage, and of what the first one hands on. `share` is what stages
    are said to hold if another answer than the derived one is to be tested.
    """
    alone = Degrees(stages=degrees.stages, micro_batches=degrees.micro_batches)
    share = share or rank(graph, alone)
    (unit,) = units_of(graph)
    if len(unit.prefixes) != 1:
        raise Unsupported("the parts of its layers stand in several lists, and torch cuts before a module")
    p = share.names.of["pp"]
    bounded = replace(graph, assumptions=share.conditions)
    for point, real in models_at(source, bounded, {p.name: degrees.stages}, found, seed):
        numbers = numbers_of(point)
        each = int(unit.count.xreplace(numbers)) // degrees.stages
        begins = [unit.prefixes[0].replace("*", str(k * each)) for k in range(1, degrees.stages)]
        real.model.train()
        parts = torch_stages.parts_of(real.model, real.inputs, begins)
        at = {"first stage": 0, "second stage": 1, "last stage": degrees.stages - 1}

        found.points.append(point)
        tied = any({BEFORE, AFTER} <= set(held.where) for held in holdings(graph))
        if tied:
            found.notes[
                "torch's pipelining keeps a table that both ends share on the last stage alone; what the first "
                "one holds is not compared"
            ] = None
        oracle = f"torch's pipelining, {degrees.stages} stages cut"
        rows = [
            (f"bytes.params, {held.stage.name}", held.states.params, parts[at[held.stage.name]].params)
            for held in share.shares[int(tied) :]
        ]
        rows.append(("bytes handed to the next stage", boundary(graph), parts[0].handed))
        found.checks += [check_of(what, formula, seen, oracle, point) for what, formula, seen in rows]
        return
