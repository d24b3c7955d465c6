"""One rank's share against torch's own parallelism, run in its fake process group: what holds passes,
mistakes are named.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from small_models import Projected
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from symacct.cli import main
from symacct.errors import Unsupported
from symacct.graph import Loop
from symacct.oracles_parallel import Listener, Shards, fake_ranks, rank_of
from symacct.oracles_pipeline import actions_of, idle_share, most_under_way
from symacct.parallel.degrees import Degrees, names_for
from symacct.parallel.holdings import depth_of
from symacct.parallel.pipeline import bubble, stages
from symacct.parallel.proposal import propose
from symacct.parallel.rank import rank
from symacct.symbols import symbol
from symacct.targets import graph_of, source_of
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify_findings import Findings
from symacct.verify_parallel import parallel_checks
from symacct.verify_sharded import pipeline_checks, sharded_checks
from symacct.verify_tensor import divided_as_torch_can, tensor_checks

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = {"gpt2": "gpt"}
SEED = 18  # gives every model two layers


def source(name):
    return source_of(str(EXAMPLES / f"{FILES.get(name, name)}.py"))


@cache
def compared(name, degrees):
    """What torch says of a stored model at these degrees."""
    return parallel_checks(source(name), graph_of(name), degrees, SEED)


def wrong(found):
    return [(c.quantity, c.observed, c.expected, c.where) for c in found.checks if not c.equal]


def observed(found):
    return {c.quantity: c.observed for c in found.checks}


# Tensor and sequence parallelism: what torch does, counted by hand, is what was derived


def test_llama_sums_twice_a_layer_each_way():
    """Megatron's figure: two all_reduces forward and two backward in a layer; table and head one each; the
    loss three.
    """
    found = compared("llama", Degrees(tensor=2))
    assert not wrong(found)
    (point,) = found.points
    assert observed(found)["collectives.all_reduce"] == 4 * point["L"] + 2 + 3
    assert observed(found)["traffic.all_reduce"] == 4 * point["B"] * point["T"] * (
        (4 * point["L"] + 2) * point["d"] + 3
    )
    assert set(observed(found)) >= {
        "params.total",
        "flops.forward",
        "flops.backward",
        "shapes",
        "collectives.gradients",
    }


def test_llama_gathers_and_scatters_along_the_sequence():
    """Each all_reduce of activations is a scatter and a gather; gains of the norms, 2L + 1, are left to be
    summed.
    """
    found = compared("llama", Degrees(tensor=2, sequence=True))
    assert not wrong(found)
    layers = found.points[0]["L"]
    seen = observed(found)
    assert seen["collectives.reduce_scatter"] == seen["collectives.all_gather"] == 4 * layers + 2
    assert seen["collectives.all_reduce"] == 3
    assert seen["collectives.gradients"] == 2 * layers + 1


def test_bert_sums_before_it_pools_and_in_every_layer():
    """A post-norm layer hands summands to the layer before it: they are summed in each; the pooler's are (B,
    d).
    """
    found = compared("bert", Degrees(tensor=2))
    assert not wrong(found)
    (point,) = found.points
    whole, pooled = 4 * point["B"] * point["T"] * point["d"], 4 * point["B"] * point["d"]
    assert (
        observed(found)["traffic.all_reduce"] == (4 * point["L"] + 1) * whole + pooled + 4
    )  # and the loss, one number


def test_a_fused_weight_is_left_whole_and_said_to_be():
    found = compared("gpt2", Degrees(tensor=3))
    assert not wrong(found)
    assert (
        observed(found)["collectives.all_reduce"] == 2 * found.points[0]["L"] + 2 + 3
    )  # the tied table is one weight
    assert any("blocks.*.attn.qkv.weight left whole" in note and "fused" in note for note in found.notes)


class Block(nn.Module):
    def __init__(self, d, h, f):
        super().__init__()
        self.attn = Projected(d, h)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class PostNorm(nn.Module):
    """Norms behind the sums, biases everywhere, learned positions."""

    def __init__(self, V, T, L, d, h, f):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList(Block(d, h, f) for _ in range(L))
        self.head = nn.Linear(d, V)

    def forward(self, idx):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@cache
def post_norm():
    made = model_source(
        "post-norm",
        dims={"B": 2, "T": 6, "V": 10, "L": 2, "d": 8, "h": 4, "f": 14},
        model=PostNorm,
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
    )
    return made, Builder(made, "train", "cuda").graph("post-norm")


def test_norms_behind_the_sums_with_biases_and_positions():
    """By hand: q, k, v and up each take one gathered input in and scatter one gradient back; table and head
    alike.
    """
    made, graph = post_norm()
    found = parallel_checks(made, graph, Degrees(tensor=2, sequence=True), SEED)
    assert not wrong(found)
    layers, seen = found.points[0]["L"], observed(found)
    assert seen["collectives.all_gather"] == seen["collectives.reduce_scatter"] == 4 * layers + 2
    assert seen["collectives.gradients"] == 4 * layers + 1  # two norms of two parameters each; positions
    assert any("blocks.*.attn.o.bias" in note and "Megatron" in note for note in found.notes)


class Gated(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, f), nn.Linear(d, f), nn.Linear(f, d)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Tower(nn.Module):
    """No attention, whose kernel on a CPU keeps other tensors than DTensor's."""

    def __init__(self, V, L, d, f):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, d), nn.Linear(d, V)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(L))
        self.mlps = nn.ModuleList(Gated(d, f) for _ in range(L))

    def forward(self, idx):
        x = self.embed(idx)
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return self.head(x)


@cache
def tower():
    made = model_source(
        "tower",
        dims={"B": 2, "T": 6, "V": 10, "L": 2, "d": 8, "f": 14},
        model=Tower,
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
    )
    return made, Builder(made, "train", "cuda").graph("tower")


@pytest.mark.parametrize("sequence", [False, True])
def test_a_rank_keeps_what_torch_keeps(sequence):
    """By hand, float32: in a layer the norm's input and statistics, its output, four times f/t; at the end
    the head's input and the log-probabilities; indices and targets of 8 bytes are one tensor; the loss keeps
    its weight, one number.
    """
    found = parallel_checks(*tower(), Degrees(tensor=2, sequence=sequence), SEED)
    assert not wrong(found)
    B, T, V, L, d, f, t = (found.points[0][name] for name in "BTVLdft")
    part = t if sequence else 1
    layer = B * (T // part) * (d + 2) + B * T * d + 4 * B * T * f // t
    assert observed(found)["bytes.saved"] == 4 * (L * layer + B * T * d + B * T * V // t + 1) + 8 * B * T


def test_time_steps_share_one_sum_and_are_no_layers():
    """The LSTM's gates stay whole; the head's input gradient is summed once, before the steps that take it apart."""
    found = compared("lstm", Degrees(tensor=2))
    assert not wrong(found)
    assert observed(found)["collectives.all_reduce"] == 2 + 3  # table and head; the loss
    assert propose(graph_of("lstm"), symbol("t")).styles["head.bias"] == "colwise"
    assert depth_of(graph_of("lstm")) == "L"


def test_what_torch_cannot_run_is_said():
    with pytest.raises(Unsupported, match=r"tp is not compared: .* gathered before aten.select .*, which no style says"):
        compared(
            "bert", Degrees(tensor=2, sequence=True)
        )  # it pools the first token of what is a part of the sequence
    with pytest.raises(Unsupported, match="no size T"):
        compared("vit", Degrees(tensor=2, sequence=True))
    with pytest.raises(Unsupported, match="no style divides the sequence there"):
        compared("gpt2", Degrees(tensor=2, sequence=True))
    with pytest.raises(Unsupported, match="fully_shard gathers them as one"):
        compared("lstm", Degrees(data=2, zero=3))
    with pytest.raises(Unsupported, match="nothing here that torch can be asked"):
        compared("llama", Degrees(data=2))


def test_a_second_process_group_is_refused():
    with fake_ranks(2), pytest.raises(Unsupported, match="a process group is there already"), fake_ranks(2):
        pass


def test_the_listener_hears_what_comm_debug_mode_counts():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    listener = Listener()
    with fake_ranks(1, 2) as mesh:
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        with CommDebugMode() as mode, listener:
            model(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert mode.get_total_counts() == len(listener.sent) == 2
    assert {(s.kind, s.payload) for s in listener.sent} == {("all_reduce", 4 * 3 * 4)}


# Mistakes are caught and named


def planted(name, change, **degrees):
    """The checks of a rank's graph in which every node went through `change`."""
    graph, wanted, found = graph_of(name), Degrees(tensor=2, **degrees), Findings()
    whole = source(name).model(source(name).dims)
    local, _ = divided_as_torch_can(graph, wanted, names_for(graph).of["tp"], whole, found)
    tensor_checks(
        source(name), graph, wanted, found, local=replace(local, items=changed(local.items, change))
    )
    return found


def changed(items, change):
    return tuple(
        replace(x, items=changed(x.items, change)) if isinstance(x, Loop) else change(x) for x in items
    )


def test_a_norm_that_is_divided_is_named():
    def divide(node):
        if (node.op, node.label) != ("parameter", "blocks.*.norm1.weight"):
            return node
        return replace(
            node, outputs=tuple(replace(o, shape=(o.shape[0] / symbol("t"),)) for o in node.outputs)
        )

    places = {quantity: where for quantity, _, _, where in wrong(planted("llama", divide))}
    assert set(places) == {"params.total", "shapes"}
    assert "blocks.*.norm1.weight is foretold as" in places["shapes"] and "norm2" not in places["shapes"]


def test_a_missing_sum_is_named_with_its_place():
    def forget(node):
        missing = (
            node.op == "c10d.all_reduce" and node.phase == "backward" and node.module == "blocks.*.norm2"
        )
        return replace(node, op="aten.alias") if missing else node

    found = wrong(planted("llama", forget))
    assert {quantity for quantity, *_ in found} == {"collectives.all_reduce", "traffic.all_reduce"}
    assert all(seen > foretold for _, seen, foretold, _ in found)
    assert all("bytes in backward" in where and "foretold" in where for *_, where in found)


# ZeRO 3


def test_fsdp_gathers_layers_twice_and_the_root_once():
    found = compared("llama", Degrees(data=2, zero=3))
    assert not wrong(found)
    layers, seen = found.points[0]["L"], observed(found)
    assert (
        seen["collectives.forward.dp.all_gather"]
        == seen["collectives.backward.dp.reduce_scatter"]
        == layers + 1
    )
    assert seen["collectives.backward.dp.all_gather"] == layers
    assert {"bytes.params", "bytes.grads", "bytes.optimizer"} <= set(seen)


def test_shards_of_tensor_parallel_ranks():
    """fully_shard sums what tensor-parallel ranks hold as summands of a norm's gradient, once for each of 2L
    + 1.
    """
    found = compared("llama", Degrees(data=2, zero=3, tensor=2, sequence=True))
    assert not wrong(found)
    layers, seen = found.points[-1]["L"], observed(found)
    assert (
        seen["collectives.backward.tp.all_reduce"]
        == seen["collectives.backward.tp.all_gather"]
        == 2 * layers + 1
    )
    assert seen["collectives.backward.dp.all_gather"] == layers


def test_fsdp_counts_the_layers_of_both_towers():
    found = compared("t5", Degrees(data=2, zero=3))
    assert not wrong(found)
    assert observed(found)["collectives.backward.dp.all_gather"] == 2 * found.points[0]["L"]


def test_rows_that_ranks_do_not_divide_are_said():
    found = compared("bert", Degrees(data=3, zero=3))  # BERT's segment table has two rows
    assert not wrong(found)
    assert any("pads rows that 3 ranks do not divide" in note for note in found.notes)


@pytest.mark.parametrize(("again", "gathers"), [(True, 4 + 4), (False, 4), (None, 4 + 3)])
def test_resharding_decides_what_backward_gathers(again, gathers):
    """Three layers and the root; five rows on two ranks are three and two, so the first holds three."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 5))
    seen = rank_of(model, torch.randn(2, 6), None, shards=Shards(["0", "1", "2"], 2, again=again))
    assert [s.kind for s in seen.sent].count("all_gather") == gathers
    assert [s.kind for s in seen.sent].count("reduce_scatter") == 4
    assert seen.shapes["3.weight"] == (3, 6) and seen.shapes["0.weight"] == (3, 6)
    assert seen.sent[0].payload == 4 * (6 * 6 + 6)  # five rows are padded to six


def test_a_gather_too_many_is_named():
    graph = graph_of("llama")
    share = rank(graph, Degrees(data=2, zero=3))
    rows = [
        replace(x, count=x.count + 1) if (x.kind, x.phase) == ("all_gather", "backward") else x
        for x in share.traffic
    ]
    found = Findings()
    sharded_checks(
        source("llama"), graph, Degrees(data=2, zero=3), found, share=replace(share, traffic=tuple(rows))
    )
    ((quantity, seen, foretold, where),) = wrong(found)
    assert (quantity, foretold - seen) == ("collectives.backward.dp.all_gather", 1)
    assert where == "all_gather in backward over dp: parameters"


# Pipelines


@pytest.mark.parametrize(
    ("p", "m", "v"),
    [(2, 2, 1), (3, 5, 1), (4, 4, 1), (4, 9, 1), (2, 2, 2), (3, 6, 2), (2, 8, 3), (4, 4, 2), (4, 8, 2)],
)
def test_torch_s_schedules_keep_and_wait_as_foretold(p, m, v):
    actions = actions_of("1f1b" if v == 1 else "interleaved", p, m, v)
    numbers = (sp.Integer(p), sp.Integer(m), sp.Integer(v))
    kinds = {stage.name: stage for stage in stages(*numbers, p, m, v)}
    for name, at in ("first stage", 0), ("second stage", 1), ("last stage", p - 1):
        if name in kinds:
            assert most_under_way(actions[at]) == kinds[name].under_way * v
    assert most_under_way(actions[0], part=0) == kinds["first stage"].entered
    assert {sp.Rational(x.numerator, x.denominator) for x in idle_share(actions)} == {bubble(*numbers)}


def test_gpipe_keeps_every_micro_batch():
    """Huang et al. 2019: all m go forward before any goes back; the wait is that of 1F1B."""
    actions = actions_of("gpipe", 3, 6)
    assert [most_under_way(mine) for mine in actions] == [6, 6, 6]
    assert set(map(str, idle_share(actions))) == {"1/3"}


def test_a_pipeline_that_torch_refuses_is_said():
    with pytest.raises(Unsupported, match="Schedule1F1B refuses"):
        pipeline_checks(graph_of("llama"), Degrees(stages=4, micro_batches=2), Findings())


def test_a_pass_too_many_is_caught():
    graph, wanted = graph_of("llama"), Degrees(stages=3, micro_batches=6)
    share = rank(graph, wanted)
    first = replace(share.shares[0], stage=replace(share.shares[0].stage, under_way=symbol("p") + 1))
    found = Findings()
    pipeline_checks(graph, wanted, found, replace(share, shares=(first, *share.shares[1:])))
    assert [row[:3] for row in wrong(found)] == [("passes under way, first stage", 3, 4)]


# The command


def test_the_command_adds_ranks_to_the_certificate(capsys):
    assert main(["verify", str(EXAMPLES / "mlp.py"), "--points", "1", "--parallel", "tp=2,dp=2,zero=3"]) == 0
    out = capsys.readouterr().out
    assert (
        "parallelize_module, rank 0 of 2" in out
        and "fully_shard over parallelize_module, rank 0 of 2 × 2" in out
    )
    assert "all agree exactly" in out


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ("zro=3", "is no kind of parallelism; did you mean zero?"),
        ("tp=0", "a degree is a positive integer"),
        ("dp=2", "zero=3"),
    ],
)
def test_the_command_refuses_degrees_that_mean_nothing(capsys, degrees, said):
    assert main(["verify", str(EXAMPLES / "mlp.py"), "--points", "1", "--parallel", degrees]) == 2
    assert said in capsys.readouterr().err
