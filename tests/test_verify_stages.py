"""Stages that torch cuts out of real models, and axes together: what torch can say, and what it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from symacct.errors import Unsupported
from symacct.oracles_pipeline import parts_of
from symacct.parallel import rank, read_degrees
from symacct.symbols import symbol
from symacct.targets import graph_of, source_of
from symacct.verify_findings import Findings
from symacct.verify_parallel import parallel_checks
from symacct.verify_stages import stage_checks

EXAMPLES = Path(__file__).parents[1] / "examples"
SEED = 18


def source(name):
    return source_of(str(EXAMPLES / f"{name}.py"))


def test_torch_cuts_a_chain_as_by_hand():
    """Two of four 3 by 3 weights with bias, in float32, and 5 rows of 3 numbers between the stages."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    first, last = parts_of(model, torch.randn(5, 3), ["2"])
    assert (first.params, first.handed) == (4 * 2 * 12, 4 * 5 * 3) and last.params == 4 * 2 * 12


def test_stages_of_llama_hold_and_hand_on_what_torch_cuts():
    """The table on the first stage, the last norm and the head on the last, a third of the layers on each."""
    found = Findings()
    stage_checks(source("llama"), graph_of("llama"), read_degrees("pp=3,m=3"), found, SEED)
    assert len(found.checks) == 4 and all(c.equal for c in found.checks)
    seen, (at,) = {c.quantity: c.observed for c in found.checks}, found.points
    second = seen["bytes.params, second stage"]
    assert seen["bytes.params, first stage"] - second == 4 * at["V"] * at["d"]
    assert seen["bytes.params, last stage"] - second == 4 * (at["V"] + 1) * at["d"]
    assert seen["bytes handed to the next stage"] == 4 * at["B"] * at["T"] * at["d"]


def test_a_head_on_the_wrong_stage_is_caught():
    graph, wanted, found = graph_of("bert"), read_degrees("pp=2,m=2"), Findings()
    share = rank(graph, wanted)
    first, last = share.shares
    moved = replace(first.states, params=first.states.params + 4 * symbol("d"))
    stage_checks(
        source("bert"),
        graph,
        wanted,
        found,
        SEED,
        replace(share, shares=(replace(first, states=moved), last)),
    )
    assert [c.quantity for c in found.checks if not c.equal] == ["bytes.params, first stage"]


def test_context_ranks_share_weights_as_data_ranks_do():
    found = parallel_checks(source("mlp"), graph_of("mlp"), read_degrees("dp=2,cp=2,zero=3"), SEED)
    assert found.checks and all(c.equal for c in found.checks)
    assert {c.oracle for c in found.checks} == {"fully_shard, rank 0 of 4"}
    assert any(note.startswith("cp is not compared: mlp has no size T") for note in found.notes)


def test_what_nothing_was_compared_with_is_named():
    with pytest.raises(Unsupported, match="ep is not compared: mlp has no weights of E experts") as caught:
        parallel_checks(source("mlp"), graph_of("mlp"), read_degrees("dp=2,ep=2"), SEED)
    assert "dp is compared at zero=3 only" in str(caught.value)
