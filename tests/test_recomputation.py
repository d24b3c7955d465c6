"""Attention cores recomputed in unmodified models, users' own checkpoints, and the first step; against
published forms, hand-written recomputation and real runs."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from test_memory import SIZES, Block, CoreRecomputed, real_peak
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import symacct
from symacct.errors import ModelFileError
from symacct.formula_reader import parse
from symacct.liveness import first_step
from symacct.oracles import measure
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.tracing.preparation import prepared
from symacct.tracing.run import trace_real

s, b, h, a = map(symbol, "sbha")


@cache
def derived(kind=Block, dropout=0.1, fused=False, device="cuda", how=None, early=True):
    """A pre-LN block in bf16 on (s, b, h), with recomputation as asked."""
    with set_checkpoint_early_stop(early):
        return symacct.derive(
            model=lambda h, a: kind(h, a, dropout, fused).to(torch.bfloat16),
            inputs=lambda s, b, h: torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True),
            dims=SIZES,
            device=device,
            checkpoint=how,
        )


def repeated(ledger):
    return (ledger.formulas["flops.hardware"] - ledger.formulas["flops.step"]).expand()


# Korthikanti et al. 2022, section 5: the attention core alone is recomputed; 34sbh stays (and the norm
# statistics that
# they leave out), and one more forward of the two products is at most 4bs²h. Torch stops before the second
# product,
# whose result no one needs.
def test_selective_recomputation_of_an_unmodified_block_is_korthikanti_s():
    ledger = derived(how="selective")
    assert ledger.formulas["bytes.saved"] == parse("34*s*b*h + 16*s*b")
    assert repeated(ledger) == 2 * b * s**2 * h
    whole = derived(how="selective", early=False)
    assert whole.formulas["bytes.saved"] == parse("34*s*b*h + 16*s*b")
    assert repeated(whole) == 4 * b * s**2 * h


def test_an_unmodified_block_costs_what_one_with_checkpoint_written_in_does():
    unmodified, written = derived(how="selective", device="cpu"), derived(CoreRecomputed, device="cpu")
    for key in ("bytes.saved", "bytes.peak", "flops.step", "flops.hardware"):
        assert unmodified.formulas[key] == written.formulas[key], key


def test_recomputed_ops_stand_at_their_own_lines():
    again = [p.node for p in derived(how="selective").graph.ops if p.node.phase == "recompute"]
    forward = {
        (p.node.op, p.node.module, p.node.source)
        for p in derived(how="selective").graph.ops
        if p.node.phase == "forward"
    }
    counted = [n for n in again if n.op in ("aten.bmm", "aten.mul", "aten._softmax", "aten.native_dropout")]
    assert len(counted) == 4  # no second product
    assert {(n.op, n.module, n.source) for n in counted} <= forward


def test_fused_attention_is_recomputed_alone():
    """Without dropout 32sbh + 16sb stay, not the log-sum-exp of 4 bytes a row and head; its kernel repeats
    2bs²h anyway, and runs forward once more."""
    fused = derived(dropout=0.0, fused=True, how="selective")
    assert fused.formulas["bytes.saved"] == parse("32*s*b*h + 16*s*b")
    assert repeated(fused) == 6 * b * s**2 * h


class Library(nn.Module):
    """torch's own attention module, with and without its weights asked for: products, or a fused kernel."""

    def __init__(self, h, a, weights):
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(h, a), weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.weights)[0]


def test_the_core_inside_torch_s_attention_module_is_found():
    plain, chosen = (
        symacct.derive(
            model=lambda h, a: Library(h, a, True),
            inputs=lambda s, b, h: torch.randn(s, b, h, requires_grad=True),
            dims=SIZES,
            checkpoint=how,
            device="cpu",
        )
        for how in (None, "selective")
    )
    assert (plain.formulas["bytes.saved"] - chosen.formulas["bytes.saved"]).expand() == 4 * a * b * s**2
    assert repeated(chosen) == 2 * b * s**2 * h


def test_a_real_run_keeps_and_multiplies_what_the_formulas_say():
    source = model_source(
        "m",
        dims=SIZES,
        model=lambda h, a: Block(h, a).to(torch.bfloat16),
        inputs=lambda s, b, h: torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True),
    )
    source, ledger = prepared(source, recompute="selective"), derived(how="selective", device="cpu")
    for sizes in ({"s": 5, "b": 3, "h": 12, "a": 3}, {"s": 11, "b": 2, "h": 8, "a": 4}):
        run = measure(source.model(sizes), source.inputs(sizes))
        now = {symbol(name): value for name, value in sizes.items()}
        assert ledger.formulas["bytes.saved"].xreplace(now) == run.saved_bytes
        assert (
            ledger.formulas["flops.hardware"].xreplace(now) == run.flops_forward + run.flops_hardware_backward
        )
        assert ledger.formulas["bytes.peak"].xreplace(now).doit() == real_peak(source, sizes)


def test_numbers_are_the_same_with_and_without():
    """The recomputation is right, not only its cost: gradients equal those of the plain model."""
    source = model_source(
        "m", dims=SIZES, model=lambda h, a: Block(h, a, 0.0), inputs=lambda s, b, h: torch.randn(s, b, h)
    )
    torch.manual_seed(0)
    plain, x = source.model(SIZES), source.inputs(SIZES)
    chosen = prepared(source, recompute="selective").model(SIZES)
    chosen.load_state_dict(plain.state_dict())
    for model in (plain, chosen):
        model(x).square().sum().backward()
    for one, other in zip(plain.parameters(), chosen.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


class NoAttention(nn.Sequential):
    """Products and a softmax, but of parameters."""

    def __init__(self, h):
        super().__init__(nn.Linear(h, h), nn.Softmax(-1), nn.Linear(h, h))


def test_a_model_without_a_core_is_refused_in_a_sentence():
    with pytest.raises(ModelFileError, match=r"no attention core to recompute.*pattern"):
        symacct.derive(
            model=NoAttention,
            inputs=lambda b, h: torch.randn(b, h),
            dims={"b": 2, "h": 8},
            checkpoint="selective",
        )


# Checkpoints in the user's own code, both kinds


class Layers(nn.Module):
    def __init__(self, d, reentrant):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


# A layer's forward is 16Bd²: all of it again, or, as the last product's result is needed by no one, half of
# it.
@pytest.mark.parametrize(
    ("reentrant", "early", "again"), [(True, True, 16), (False, False, 16), (False, True, 8)]
)
def test_both_kinds_of_checkpoint_keep_inputs_alone_and_run_forward_again(reentrant, early, again):
    with set_checkpoint_early_stop(early):
        ledger = symacct.derive(
            model=lambda d: Layers(d, reentrant),
            inputs=lambda B, d: torch.randn(B, d, requires_grad=True),
            dims={"B": 3, "d": 8},
            device="cpu",
        )
    B, d = map(symbol, "Bd")
    assert ledger.formulas["bytes.saved"] == 2 * 4 * B * d
    assert repeated(ledger) == 2 * again * B * d**2


# The first step, which has no optimizer state until its end


def deep(d):
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(d, d), nn.ReLU())))


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,  # makes its state when it is built
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_peaks_as_a_real_one(name):
    source = model_source(
        "deep",
        dims={"B": 4, "d": 6},
        model=deep,
        inputs=lambda B, d: torch.randn(B, d),
        optimizer=OPTIMIZERS[name],
    )
    graph = Builder(source, "train", "cpu").graph("deep")
    for sizes in ({"B": 200, "d": 5}, {"B": 2, "d": 30}):
        now = {symbol(n): v for n, v in sizes.items()}
        trace = trace_real(source, "train", sizes, first=True)
        assert max(live.xreplace(now) for _, live in first_step(graph)) == real_peak(source, sizes, trace)
        assert max(live.xreplace(now) for _, live in graph.peak) == real_peak(source, sizes)
    wide = {symbol(n): v for n, v in {"B": 200, "d": 5}.items()}
    first, steady = (
        max(live.xreplace(wide) for _, live in places) for places in (first_step(graph), graph.peak)
    )
    assert bool(first < steady) == (name != "adagrad")


class Shared(nn.Module):
    """One wide block between the norms of a list."""

    def __init__(self, d, L):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(d, 4 * d), nn.Tanh(), nn.Linear(4 * d, d))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(L))

    def forward(self, x):
        for norm in self.norms:
            x = x + self.block(norm(x))
        return x


def test_what_is_recomputed_is_named():
    """A list of norms is taken for the blocks: said, and the block that is meant can be named instead."""

    def remarks(how):
        made = symacct.derive(model=Shared, inputs=lambda B, d: torch.ones(B, d), dims={"B": 3, "d": 5, "L": 3}, checkpoint=how)
        return [remark for remark in made.graph.remarks if remark.startswith("recomputed")]

    assert remarks("full") == ["recomputed in backward: norms.*"]
    assert remarks("block") == ["recomputed in backward: block"]
    assert remarks("block*") == ["recomputed in backward: block"]  # not its parts once more within it
    assert remarks(None) == []


def test_a_pattern_that_fits_parts_of_blocks_too_recomputes_each_block_once():
    """By hand: a block of two layers is run again but for its last product: 2·B·4d·d of it, L times."""
    found = symacct.derive(
        model=lambda d, L: nn.ModuleDict({"blocks": nn.Sequential(*(nn.Sequential(nn.Linear(d, 4 * d), nn.Tanh(), nn.Linear(4 * d, d)) for _ in range(L)))})["blocks"],
        inputs=lambda B, d: torch.ones(B, d), dims={"B": 3, "d": 5, "L": 3}, checkpoint="[0-9]*",
    )
    assert repeated(found) == parse("8*B*L*d**2")


def test_a_list_is_never_called_and_one_block_is_named_alone():
    found = {
        how: symacct.derive(
            model=lambda d, L: Stack(d, L), inputs=lambda B, d: torch.ones(B, d), dims={"B": 3, "d": 5, "L": 3}, checkpoint=how,
        )
        for how in ("blocks*", "full")
    }
    assert found["blocks*"].formulas["bytes.saved"] == found["full"].formulas["bytes.saved"]
    assert "recomputed in backward: blocks.*" in found["blocks*"].graph.remarks
    one = symacct.derive(model=lambda d: Stack(d, 3), inputs=lambda B, d: torch.ones(B, d), dims={"B": 3, "d": 5}, checkpoint="blocks.1")
    assert "recomputed in backward: blocks.1" in one.graph.remarks


class Stack(nn.Module):
    def __init__(self, d, L):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.Tanh(), nn.Linear(4 * d, d)) for _ in range(L))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x
