"""Bytes kept for backward and the peak: published forms, and real CPU runs at other sizes."""

from __future__ import annotations

import copy

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from alive_storages import most_alive
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger, saved_bytes
from symacct.formula_reader import parse
from symacct.graph import total_over
from symacct.oracles import measure
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file, model_source
from symacct.tracing.run import trace_real


class Block(nn.Module):
    """A pre-LN GPT block on (s, b, h), as in Korthikanti et al. 2022, figure 2."""

    def __init__(self, h, a, dropout=0.1, fused=False):
        super().__init__()
        self.a, self.fused = a, fused
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.drop = nn.Dropout(dropout)

    def attention(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v)
        weights = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return self.drop(weights.softmax(-1)) @ v

    def forward(self, x):
        s, b, h = x.shape
        q, k, v = (t.view(s, b, self.a, h // self.a).permute(1, 2, 0, 3) for t in self.qkv(self.ln1(x)).split(h, -1))
        x = x + self.drop(self.proj(self.attention(q, k, v).permute(2, 0, 1, 3).reshape(s, b, h)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)))))


SIZES = {"s": 16, "b": 2, "h": 32, "a": 4}


def saved(model, device="cuda", **sizes):
    ledger = symacct.derive(
        model=lambda h, a: model(h, a).to(torch.bfloat16),
        inputs=lambda s, b, h: torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True),
        dims={**SIZES, **sizes},
        device=device,
    )
    return ledger.formulas["bytes.saved"]


# Korthikanti et al. 2022, equation 1, plus the norm statistics they leave out; masks of one byte on CUDA,
# in the activations' dtype on the CPU.
@pytest.mark.parametrize(
    ("device", "dropout", "fused", "expected"),
    [
        ("cuda", 0.1, False, "34*s*b*h + 5*a*s**2*b + 16*s*b"),
        ("cpu", 0.1, False, "36*s*b*h + 6*a*s**2*b + 8*s*b"),
        ("cuda", 0.0, False, "32*s*b*h + 2*a*s**2*b + 16*s*b"),
        ("cuda", 0.0, True, "32*s*b*h + 4*a*b*s + 16*s*b"),
    ],
)
def test_a_gpt_block_keeps_what_korthikanti_count(device, dropout, fused, expected):
    assert saved(lambda h, a: Block(h, a, dropout, fused), device) == parse(expected)


class Recomputed(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_full_recomputation_keeps_the_block_input_alone():
    assert saved(Recomputed) == parse("2*s*b*h")


class CoreRecomputed(Block):
    def attention(self, q, k, v):
        return checkpoint(super().attention, q, k, v, use_reentrant=False)


def test_selective_recomputation_drops_the_quadratic_term():
    assert saved(CoreRecomputed) == parse("34*s*b*h + 16*s*b")


# Against real executions


def built(model, inputs, dims, device="cpu", loss=None):
    source = model_source("m", dims=dims, model=model, inputs=inputs, loss=loss)
    return source, Ledger(Builder(source, "train", device).graph("m"))


class Minus(nn.Module):
    """Backward of a change of sign reads nothing."""

    def forward(self, x):
        return -x


def mlp(activation):
    return lambda d, f: nn.Sequential(nn.Linear(d, f), activation(), nn.Linear(f, d))


class Views(nn.Module):
    """Views into one storage, an in-place op, a module called twice, and a part without gradients."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        y = self.a(x)
        y = F.relu(y, inplace=True)
        left, right = y.transpose(0, 1), y.flatten()
        with torch.no_grad():
            scale = self.b(x).mean()
        return self.a(y).sum() + (left * scale).sum() + right.sin().sum()


class Words(nn.Module):
    """Lookups in a table that also judges (tied), and cross-entropy: what a language model begins and ends with."""

    def __init__(self, V, d):
        super().__init__()
        self.table, self.drop = nn.Embedding(V, d), nn.Dropout(0.2)

    def forward(self, ids):
        x = self.drop(self.table(ids))
        return {"loss": F.cross_entropy((x @ self.table.weight.T).flatten(0, 1), ids.flatten())}


class InPlace(nn.Module):
    """Ops that write over their operand, some of which autograd has to keep; and pieces of one storage joined again."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(d, 2 * d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, x):
        left, right = self.a(x).chunk(2, -1)
        left = self.norm(left).mul_(2).sigmoid_()
        joined = torch.cat([left, right], -1).add_(1)
        return F.dropout(self.b(joined[:, : x.shape[1]]), 0.5, inplace=True).exp_().sum()


CASES = {
    "embedding and cross-entropy": (
        Words, lambda B, T, V: (torch.arange(B * T).view(B, T) * 7) % V, {"B": 2, "T": 5, "V": 11, "d": 8},
    ),
    "in place": (lambda d: InPlace(d), lambda B, d: torch.randn(B, d), {"B": 4, "d": 6}),
    "relu": (mlp(nn.ReLU), lambda B, d: torch.randn(B, d), {"B": 4, "d": 16, "f": 32}),
    "leaky relu": (mlp(nn.LeakyReLU), lambda B, d: torch.randn(B, d), {"B": 4, "d": 16, "f": 32}),
    "gelu": (mlp(nn.GELU), lambda B, d: torch.randn(B, d), {"B": 4, "d": 16, "f": 32}),
    "layer norm": (lambda d: nn.LayerNorm(d), lambda B, d: torch.randn(B, d, requires_grad=True), {"B": 4, "d": 16}),
    "dropout": (lambda d: nn.Sequential(nn.Linear(d, d), nn.Dropout(0.3), nn.Linear(d, d)), lambda B, d: torch.randn(B, d), {"B": 4, "d": 16}),
    "batch norm": (
        lambda c: nn.Sequential(nn.Conv2d(3, c, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3)),
        lambda B, n: torch.randn(B, 3, n, n), {"B": 2, "c": 6, "n": 9},
    ),
    "an input with a gradient that nothing reads": (
        lambda: Minus(), lambda B, d: torch.randn(B, d, requires_grad=True), {"B": 4, "d": 6},
    ),
    "views": (lambda d: Views(d), lambda B, d: torch.randn(B, d), {"B": 6, "d": 10}),
    "frozen": (
        lambda d, f: nn.Sequential(nn.Linear(d, f).requires_grad_(False), nn.ReLU(), nn.Linear(f, d)),
        lambda B, d: torch.randn(B, d), {"B": 4, "d": 16, "f": 24},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_saved_bytes_and_peak_equal_a_real_run_at_other_sizes(name):
    model, inputs, dims = CASES[name]
    source, ledger = built(model, inputs, dims)
    for step in (1, 3):
        sizes = {size: value + step for size, value in dims.items()}
        torch.manual_seed(0)
        run = measure(source.model(sizes), source.inputs(sizes))
        now = {symbol(size): value for size, value in sizes.items()}
        assert int(ledger.formulas["bytes.saved"].xreplace(now)) == run.saved_bytes
        assert int(ledger.formulas["bytes.peak"].xreplace(now).doit()) == real_peak(source, sizes)


# BP-67 and BP-65 of the project's collection of reported cases: figures counted by hand there
def test_what_an_activation_keeps():
    _, relu = built(*CASES["relu"])
    _, leaky = built(*CASES["leaky relu"])
    _, norm = built(*CASES["layer norm"])
    at = {symbol("B"): 4, symbol("d"): 16, symbol("f"): 32}
    reads = [int(ledger.formulas["bytes.saved"].xreplace({**at, symbol("f"): 32})) for ledger in (relu, leaky)]
    assert reads == [4 * 16 * 4 + 4 * 32 * 4, 4 * 16 * 4 + 4 * 32 * 4 + 4 * 32 * 4]
    assert int(norm.formulas["bytes.saved"].xreplace(at)) == 4 * 16 * 4 + 2 * 4 * 4


def real_peak(source, sizes, trace=None):
    """The largest sum of live storages during a real step, from their births and deaths."""
    trace = trace or trace_real(source, "train", sizes)
    given = {out.storage for r in trace.records if r.op in ("parameter", "buffer", "state", "input") for out in r.outputs}
    storages = {out.id: out.storage for r in trace.records for out in r.outputs}
    replaceable = {out.storage for r in trace.records if r.op == "buffer" for out in r.outputs}
    held = given - replaceable | {storages[value] for value in trace.outputs}  # the caller keeps its inputs and the output
    ends = {storage: at for at, storage in trace.deaths if storage not in held}
    born = dict.fromkeys(given, 0)
    for number, record in enumerate(trace.records):
        for out in record.outputs:
            born.setdefault(out.storage, number)
    last = len(trace.records)
    return max(sum(trace.storages[s] for s in born if born[s] <= e < ends.get(s, last)) for e in range(last))


@pytest.mark.parametrize("example", ["gpt", "llama"])
def test_an_example_keeps_and_peaks_as_it_really_does(example):
    source = load_model_file(f"examples/{example}.py")
    ledger = Ledger(Builder(source, "train", "cpu").graph(example))
    for depth in (2, 4):
        sizes = {**source.dims, "L": depth, "B": 3, "T": 6}
        inputs = source.inputs(sizes)
        run = measure(source.model(sizes), inputs, lambda output, s=sizes, i=inputs: source.loss(output, s, i))
        now = {symbol(size): value for size, value in sizes.items()}
        assert int(ledger.formulas["bytes.saved"].xreplace(now)) == run.saved_bytes
        assert int(ledger.formulas["bytes.peak"].xreplace(now).doit()) == real_peak(source, sizes)


class Residual(nn.Module):
    def __init__(self, L, d, f):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(d, f, bias=False), nn.Tanh(), nn.Linear(f, d, bias=False)) for _ in range(L))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture(scope="module")
def residual():
    source = model_source(
        "residual",
        dims={"B": 3, "L": 2, "d": 6, "f": 5},
        model=Residual,
        inputs=lambda B, d: torch.randn(B, d),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    )
    return source, Ledger(Builder(source, "train", "cpu").graph("residual"))


@pytest.mark.parametrize(("B", "L", "d", "f"), [(7, 4, 5, 6), (9, 6, 8, 9), (7, 3, 5, 6), (7, 2, 5, 6), (40, 5, 3, 2), (2, 5, 7, 9)])
def test_a_peak_in_the_repetition_beside_an_end(residual, B, L, d, f):
    """The last block's backward has no gradient of a residual yet, so that of the one before may need more."""
    source, ledger = residual
    sizes = {"B": B, "L": L, "d": d, "f": f}
    assert ledger.at(**sizes)["bytes.peak"] == real_peak(source, sizes)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "resnet50", "lstm"])
def test_no_more_is_kept_than_was_made(name):
    """Each storage at most as often as it is made; all of them no more than what forward and the loss make, and inputs."""
    graph = symacct.derive(name).graph
    sizes = {symbol(n): sp.Integer(info.traced_at) for n, info in graph.symbols.items()}
    made = {
        out.value: total_over(out.times * graph.storages[out.value], p.loops).xreplace(sizes)
        for p in graph.placed() for out in p.node.outputs
        if out.value == out.storage and (p.node.phase in ("forward", "loss") or p.node.op in ("input", "constant"))
    }
    kept = {value: size.xreplace(sizes) for value, size in saved_bytes(graph).items()}
    assert kept and set(kept) <= set(made)
    assert all(0 <= kept[value] <= made[value] for value in kept)
    assert sum(kept.values()) <= sum(made.values())


class Deep(nn.Module):
    """Layers whose first input needs no gradient: their backward repetitions are not all alike."""

    def __init__(self, L, d, f, copied=False):
        super().__init__()
        first = nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))
        made = (copy.deepcopy(first) if copied else nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d)) for _ in range(L))
        self.layers, self.norms = nn.ModuleList(made), nn.ModuleList(nn.RMSNorm(d) for _ in range(L))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return x


@pytest.mark.parametrize("copied", [False, True])
def test_a_peak_is_told_only_at_depths_where_its_forms_hold(copied):
    source, ledger = built(lambda L, d, f: Deep(L, d, f, copied), lambda B, d: torch.randn(B, d), {"B": 2, "d": 24, "f": 8, "L": 2})
    for sizes in ({"B": 40, "d": 24, "f": 8, "L": 1}, {"B": 90, "d": 24, "f": 80, "L": 2}, {"B": 40, "d": 24, "f": 8, "L": 4}):
        values, run = ledger.at(**sizes), measure(source.model(sizes), source.inputs(sizes))
        assert values["bytes.saved"] == run.saved_bytes
        if "bytes.peak" in values:
            assert values["bytes.peak"] == real_peak(source, sizes)
    assert "bytes.peak" in values  # four layers repeat often enough


class Unused(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.used, self.unused = nn.Linear(d, f), nn.Linear(f, f)

    def forward(self, x):
        return self.used(x).abs()


def test_a_parameter_without_a_gradient_has_no_state():
    """AdamW on one used layer: two moments and two step counts of 4 bytes."""
    _, ledger = built(Unused, lambda B, d: torch.randn(B, d), {"B": 3, "d": 5, "f": 7})
    assert sp.expand(ledger.formulas["bytes.optimizer"] - parse("8*(d*f + f) + 8")) == 0
    assert sp.expand(ledger.formulas["bytes.grads"] - parse("4*(d*f + f)")) == 0


class Prompt(nn.Module):
    """A learned row in front of the others: its gradient is a part of the gradient of all rows."""

    def __init__(self, d):
        super().__init__()
        self.row, self.layer = nn.Parameter(torch.ones(1, d)), nn.Linear(d, d)

    def forward(self, x):
        return torch.cat([self.row, self.layer(x)]).square()


class Biased(nn.Module):
    """In each layer a bias with zeros behind it; the last weights of all layers are put together."""

    def __init__(self, L, d, f):
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(d, d + f, bias=False) for _ in range(L))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in range(L))
        self.outer = nn.ModuleList(nn.Linear(d + f, d) for _ in range(L))
        self.last = nn.ParameterList(nn.Parameter(torch.ones(1, d)) for _ in range(L))

    def forward(self, x):
        for inner, bias, outer in zip(self.inner, self.biases, self.outer, strict=True):
            hidden = inner(x) + torch.cat([bias, x.new_zeros(inner.out_features - len(bias))])
            x = x + outer(hidden.relu())
        return x @ torch.cat(list(self.last)).T


@pytest.mark.parametrize(
    ("model", "example", "sizes"),
    [
        *((Prompt, {"T": 4, "d": 6}, sizes) for sizes in ({"T": 5, "d": 2}, {"T": 3, "d": 7}, {"T": 8, "d": 8})),
        (Biased, {"T": 4, "L": 3, "d": 6, "f": 5}, {"T": 3, "L": 5, "d": 7, "f": 2}),
    ],
)
def test_a_gradient_that_is_a_part_of_another_holds_all_of_it(model, example, sizes):
    source, ledger = built(model, lambda T, d: torch.randn(T, d), example)
    made = source.model(sizes)
    made(source.inputs(sizes)).sum().backward()
    held = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in made.parameters()}
    assert ledger.at(**sizes)["bytes.grads"] == sum(held.values())


def test_layers_whose_gradients_are_made_unlike_have_one_gradient_each():
    """In T5's backward the first repetition stands alone: 4 bytes a parameter, whatever makes its gradient."""
    found = symacct.derive("t5").formulas
    assert sp.expand(found["bytes.grads"] - 4 * found["params.total"]) == 0


def test_a_loss_that_is_shrunk_to_one_number_keeps_its_room_to_the_end():
    """4·B·d bytes of mean squared error, which a real run holds as long as its loss."""
    source, ledger = built(
        lambda d, f: nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d)), lambda B, d: torch.randn(B, d), {"B": 2, "d": 5, "f": 7},
        loss=lambda output, inputs: F.mse_loss(output, inputs),
    )
    held = F.mse_loss(torch.ones(40, 16), torch.ones(40, 16)).untyped_storage().nbytes()
    assert held == 4 * 40 * 16
    for sizes in ({"B": 400, "d": 16, "f": 48}, {"B": 64, "d": 100, "f": 300}):
        assert ledger.at(**sizes)["bytes.peak"] == real_peak(source, sizes)


class Averaging(nn.Module):
    """A buffer that each forward replaces by a new tensor: the old one is freed there."""

    def __init__(self, d, f):
        super().__init__()
        self.up, self.down = nn.Linear(d, f), nn.Linear(f, d)
        self.register_buffer("mean", torch.zeros(f))

    def forward(self, x):
        y = self.up(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return self.down(y - self.mean)


@pytest.mark.parametrize("sizes", [{"B": 2, "d": 30, "f": 41}, {"B": 60, "d": 3, "f": 41}], ids=str)
def test_a_buffer_that_is_replaced_dies_there(sizes):
    """Truth: the storages alive in a real step, watched by weak references, of one buffer 4·f bytes."""
    made = symacct.derive(model=Averaging, inputs=lambda B, d: torch.ones(B, d), dims={"B": 4, "d": 6, "f": 10}, device="cpu")
    assert made.at(**sizes)["bytes.peak"] == most_alive(Averaging(sizes["d"], sizes["f"]), torch.ones(sizes["B"], sizes["d"]))


@pytest.mark.parametrize("sizes", [{"B": 4, "T": 6, "d": 16}, {"B": 20, "T": 30, "d": 3}], ids=str)
def test_an_input_that_is_a_part_or_an_expansion_keeps_its_whole_storage(sizes):
    """A third of a batch holds the batch; a mask shown to each of the batch is one: truth by a real run's storages."""

    class Masked(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.a = nn.Linear(d, d)

        def forward(self, x, mask):
            y = torch.tanh(self.a(x))
            return (y @ y.transpose(1, 2) * mask) @ y

    def inputs(B, T, d):
        return torch.ones(3 * B, T, d)[:B], torch.ones(1, T, T).expand(B, T, T)

    made = symacct.derive(model=Masked, inputs=inputs, dims={"B": 2, "T": 5, "d": 8}, device="cpu")
    run = measure(Masked(sizes["d"]), inputs(**sizes))
    assert made.at(**sizes)["bytes.saved"] == run.saved_bytes
