"""What the replicas of a pipeline's stage gather and scatter, against torch's own stages with FSDP2 in them."""

from __future__ import annotations

from collections import Counter

import pytest
import sympy as sp

from symacct.formula_reader import parse
from symacct.oracles_pipeline import sharded_stage
from symacct.parallel import rank, read_degrees
from symacct.parallel.holdings import holdings
from symacct.parallel.rank import _summed
from symacct.symbols import symbol
from symacct.targets import graph_of

LAYERS = 2  # of each part of a stage


def foretold(stages, micro_batches, parts=1):
    """By kind of stage of llama: its counts over the replicas, by collective and phase. One root each."""
    words = f"pp={stages},m={micro_batches},dp=2,zero=3" + (f",v={parts}" if parts > 1 else "")
    found = rank(graph_of("llama"), read_degrees(words))
    numbers = {symbol("L"): sp.Integer(LAYERS * stages * parts)}
    numbers |= {symbol(name): sp.Integer(value) for name, value in found.numbers.items()}
    held, m = holdings(found.graph), found.names.of["m"]
    counts = {}
    for share in found.shares:
        rows = _summed(found.graph, held, found.degrees, found.names, m, share)
        counts[share.stage.name] = {(x.kind, x.phase): x.count.xreplace(numbers) for x in rows}
    return counts


def seen(schedule, stages, micro_batches, at, parts=1):
    sent = sharded_stage(schedule, stages, micro_batches, at, parts, LAYERS)[0]
    return Counter((x.kind, "backward" if x.phase == "outside" else x.phase) for x in sent)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (2, 2), (4, 6)])
def test_a_stage_gathers_what_its_passes_let_go(stages, micro_batches):
    """min(m, p - i) passes forward before the first backward pass; 9 gathers and 3 scatters where p = 2 and m = 3."""
    counts = foretold(stages, micro_batches)
    for name, at in (("first stage", 0), ("last stage", stages - 1)):
        assert counts[name] == seen("1f1b", stages, micro_batches, at)
    gathers = [n for (kind, _), n in counts["first stage"].items() if kind == "all_gather"]
    assert (stages, micro_batches) != (2, 3) or sum(gathers) == 9


@pytest.mark.parametrize(("stages", "micro_batches", "at"), [(2, 4, 0), (2, 6, 1)])
def test_parts_in_turn_gather_as_often_all_together(stages, micro_batches, at):
    """m + 1 gathers of each layer. torch has each part's outside gathered apart; llama's table is on one part alone."""
    mine = foretold(stages, micro_batches, 2)["last stage" if at else "first stage"]
    theirs = seen("interleaved", stages, micro_batches, at, 2)
    for kind in ("all_gather", "reduce_scatter"):
        ours, torchs = (sum(n for (k, _), n in counts.items() if k == kind) for counts in (mine, theirs))
        assert ours == torchs - 1


def test_a_stage_holds_all_its_weights_and_gradients_whole_for_a_while():
    """Three matrices of 4 by 4 in float32 and their gradients under torch; of llama's half with its table, twice 4 bytes."""
    assert [sharded_stage("1f1b", 2, 3, at)[1] for at in (0, 1)] == [2 * 3 * 64] * 2
    first, last = rank(graph_of("llama"), read_degrees("pp=2,m=3,dp=2,zero=3")).shares
    layer = parse("2*d*h*d_h + 2*d*h_kv*d_h + 3*d*f + 2*d")
    layers = layer * symbol("L") / 2
    halves = {symbol("p"): sp.Integer(2)}
    assert sp.expand(first.gathered.xreplace(halves) - 8 * (layers + parse("V*d"))) == 0
    assert sp.expand(last.gathered.xreplace(halves) - 8 * (layers + parse("V*d + d"))) == 0
