"""Where a size of 1 makes a view of a copy, what is kept for backward is another: real runs tell whether it is told so."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_memory import real_peak
from torch import nn

import symacct
from symacct.account import Ledger
from symacct.claims.written import in_words
from symacct.formula_text import to_text
from symacct.limits import possible_limits
from symacct.oracles_memory import saved_bytes
from symacct.storage import dumps, loads
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file, model_source
from symacct.verify import verify

DIMS = {"B": 2, "T": 16, "V": 24, "d": 8}


class Tokens(nn.Module):
    def __init__(self, V, d):
        super().__init__()
        self.table, self.head = nn.Embedding(V, d), nn.Linear(d, V)

    def forward(self, x):
        return self.head(self.table(x))


def model(V, d):
    return Tokens(V, d)


def inputs(B, T, V):
    return torch.randint(0, V, (B, T))


def shifted(output, inputs, V):
    return F.cross_entropy(output[:, :-1].reshape(-1, V), inputs[:, 1:].reshape(-1))


def smoothed(output, inputs, V):
    return F.cross_entropy(output[:, :-1].reshape(-1, V), inputs[:, 1:].reshape(-1), label_smoothing=0.1)


def smoothed_sum(output, inputs, V):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), inputs[:, 1:].flatten(), label_smoothing=0.1, reduction="sum")


def weighted(output, inputs, V):
    weight = torch.ones(V)
    return F.cross_entropy(output[:, :-1].reshape(-1, V), inputs[:, 1:].reshape(-1), weight=weight, ignore_index=0)


def each(output, inputs, V):
    return F.cross_entropy(output[:, :-1].reshape(-1, V), inputs[:, 1:].reshape(-1), reduction="none").mean()


def transposed(output, inputs, V):
    return F.cross_entropy(output[:, :-1].transpose(1, 2), inputs[:, 1:], label_smoothing=0.1, ignore_index=0)


@cache
def ledger(loss):
    return symacct.derive(model=model, inputs=inputs, dims=DIMS, loss=loss, device="cpu")


def really_kept(loss, B, T, V, d):
    """What autograd's hooks and the storages that outlive a real forward pass say."""
    tokens, made = inputs(B, T, V), model(V, d)
    return saved_bytes(lambda x: made(x), lambda out: loss(out, tokens, V), made, tokens)[0]


AT = [{"B": 3, "T": 5}, {"B": 1, "T": 5}, {"B": 3, "T": 2}, {"B": 1, "T": 7}, {"B": 1, "T": 2}]


@pytest.mark.parametrize("loss", [shifted, smoothed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", AT, ids=str)
def test_bytes_kept_of_a_shifted_loss_are_those_of_a_real_run(loss, sizes):
    found = ledger(loss).at(**sizes, V=11, d=4)["bytes.saved"]
    assert found == really_kept(loss, **sizes, V=11, d=4)


def test_a_stored_graph_says_where_a_batch_of_one_keeps_less_and_leaves_out_what_only_a_run_tells():
    graph = loads(dumps(ledger(shifted).graph))
    told = {(limit.key, limit.text): str(limit.more) for limit in graph.limits}
    # labels[:, 1:] of one sequence is a view of the labels, which are kept anyway: 8·(T - 1) bytes less
    assert told["bytes.saved", "B = 1"] == "8 - 8*T"
    assert told["bytes.saved", "T = 2"] == "-8*B"
    stored = Ledger(graph)
    assert stored.at(B=1, T=7, V=11, d=4)["bytes.saved"] == really_kept(shifted, 1, 7, 11, 4)
    both = stored.at(B=1, T=2, V=11, d=4)
    assert "bytes.saved" not in both and "bytes.peak" in both


@pytest.mark.parametrize(("sizes", "texts"), [
    ({}, ["B = 1", "T = 2"]), ({"B": 1}, ["B = 1", "T = 2"]), ({"B": 3, "T": 7}, []), ({"T": 2}, ["B = 1", "T = 2"]), ({"B": 1, "T": 7}, ["B = 1"]),
], ids=str)
def test_only_limits_that_sizes_leave_open_are_looked_for(sizes, texts):
    """`labels[:, 1:]` is a view or has one element a row at these sizes alone."""
    found = possible_limits(ledger(shifted).graph, sizes)
    assert {limit.text for limit in found if limit.key == "bytes.saved" and limit.more is not None} == set(texts)


def test_a_loss_that_does_not_shift_has_no_such_sizes():
    plain = lambda output, inputs, V: F.cross_entropy(output.reshape(-1, V), inputs.reshape(-1))  # noqa: E731
    assert not symacct.derive(model=model, inputs=inputs, dims=DIMS, loss=plain, device="cpu").graph.limits


@pytest.mark.parametrize("loss", [smoothed_sum, weighted, each, transposed], ids=lambda f: f.__name__)
def test_spellings_of_cross_entropy_are_verified_by_real_runs(loss):
    source = model_source("the model", dims=DIMS, model=model, inputs=inputs, loss=loss)
    found = verify(source, device="cpu", points=2, lifting=False)
    assert found.verified, found.failures
    kept = [check.point for check in found.checks if check.quantity == "bytes.saved"]
    assert {1} <= {point["B"] for point in kept} and {1} <= {point["T"] for point in kept}


def test_a_peak_that_lies_elsewhere_in_a_batch_of_one_is_that_of_a_run_or_left_out():
    made = symacct.derive(
        model=lambda d: nn.LSTM(d, d, batch_first=True),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        dims={"B": 2, "T": 5, "d": 6},
        loss=lambda output: output[0].sum(),
    )
    assert ("bytes.peak", "B = 1") in {(limit.key, limit.text) for limit in made.graph.limits}
    sizes = {"B": 1, "T": 4, "d": 2}
    alone = symacct.derive(
        model=nn.LSTM(2, 2, batch_first=True), inputs=torch.randn(1, 4, 2), dims={}, loss=lambda output: output[0].sum()
    )
    assert made.at(**sizes)["bytes.peak"] == alone.at()["bytes.peak"]
    assert "bytes.peak" not in Ledger(loads(dumps(made.graph))).at(**sizes)


def test_a_verdict_says_where_the_derived_formula_itself_is_another():
    formula = ledger(shifted).formulas["bytes.saved"]
    found = ledger(shifted).check(f"bytes.saved = {to_text(formula)}")
    assert found.verdict == "equal" and "where B = 1, bytes.saved is the derived formula plus (-8*T + 8)" in found.exceptions
    sizes = {"B": 1, "T": 7, "V": 11, "d": 4}
    at_one = int(formula.subs({symbol(name): value for name, value in sizes.items()}))
    assert at_one + 8 - 8 * 7 == really_kept(shifted, **sizes)
    assert "for all sizes at which" in in_words(found)
    assert found.as_json()["exceptions"] == list(found.exceptions)
    fixed = ledger(shifted).check(f"bytes.saved = {to_text(formula)}", given=["B = 4"])
    assert not [text for text in fixed.exceptions if "B = 1" in text]
    assert not ledger(shifted).check("params.total = 2*V*d + V").exceptions


class Read(nn.Module):
    """Reads each of T positions after each of L layers: `x[:, t].reshape(-1)` copies, but not of one sequence."""

    def __init__(self, L, d):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(L))

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x = layer(x)
            for t in range(x.shape[1]):
                row = x[:, t].reshape(-1)
                total = total + (row * row).sum()
        return total


def test_what_a_batch_of_one_keeps_is_told_in_two_depths():
    made = symacct.derive(
        model=Read,
        inputs=lambda B, T, d: torch.randn(B, T, d),
        dims={"B": 2, "T": 3, "L": 2, "d": 4},
        loss=lambda total: total,
        device="cpu",
    )
    for T, L in [(3, 2), (9, 2), (4, 7)]:
        module, x = Read(L, 5), torch.randn(1, T, 5)
        kept = saved_bytes(module, lambda total: total, module, x)[0]
        assert made.at(B=1, T=T, L=L, d=5)["bytes.saved"] == kept
    told = {limit.text: limit.more for limit in made.graph.limits if limit.key == "bytes.saved"}
    assert str(told["B = 1"]) == "-4*L*T*d + 4*T*d"  # all but the last layer's output is kept anyway


@pytest.mark.parametrize(("T", "L"), [(5, 1), (10, 2)])
def test_the_stored_mamba_keeps_of_one_sequence_what_a_real_run_does(T, L):
    sizes = {"B": 1, "T": T, "V": 100, "L": L, "d": 8, "N": 4, "R": 2}
    source = load_model_file(Path(__file__).parents[1] / "examples" / "mamba.py")
    module, tokens = source.model(sizes), source.inputs(sizes)
    kept = saved_bytes(module, lambda out: source.loss(out, sizes, tokens), module, tokens)[0]
    assert symacct.derive("mamba").at(**sizes)["bytes.saved"] == kept


class Classed(nn.Module):
    """A learned token in front of the others; of a batch of one its gradient is a part of the whole's."""

    def __init__(self, d):
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.ones(1, 1, d)), nn.Linear(d, d)

    def forward(self, x):
        return self.layer(torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)).square()


@pytest.mark.parametrize("sizes", [{"B": 1, "T": 5, "d": 3}, {"B": 3, "T": 5, "d": 3}, {"B": 1, "T": 7, "d": 4}], ids=str)
def test_a_gradient_that_is_a_view_in_a_batch_of_one_holds_the_whole(sizes):
    made = symacct.derive(model=Classed, inputs=lambda B, T, d: torch.ones(B, T, d), dims={"B": 2, "T": 4, "d": 5})
    model = Classed(sizes["d"])
    model(torch.ones(sizes["B"], sizes["T"], sizes["d"])).sum().backward()
    held = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in model.parameters()}
    assert made.at(**sizes)["bytes.grads"] == sum(held.values())
    stored = Ledger(loads(dumps(made.graph)))
    assert stored.at(**sizes)["bytes.grads"] == sum(held.values())


class Summed(nn.Module):
    """Heads of one projection, put together by einsum, with a bias and a learned sink of each."""

    def __init__(self, d, h, L):
        super().__init__()
        self.h, self.layers = h, nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(L))
        self.sink = nn.Parameter(torch.zeros(h))
        self.register_buffer("slopes", torch.arange(1, h + 1) / 8.0)

    def forward(self, x):
        B, T, d = x.shape
        at = torch.arange(T)
        bias = -(at[:, None] - at).abs() * self.slopes[:, None, None]
        for layer in self.layers:
            q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in layer(x).chunk(3, -1))
            a = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
            a = torch.where(at[:, None] >= at, a, -1e9)
            a = torch.cat([a, self.sink.view(1, -1, 1, 1).expand(B, -1, T, 1)], -1).softmax(-1)[..., :-1]
            a = F.dropout(a, 0.1, self.training)
            x = x + torch.einsum("bhij,bhjd->bihd", a, v).reshape(B, T, d)
        return x


def test_a_size_of_one_that_others_of_one_hide_is_run_when_it_is_asked_about():
    """With all sizes at 1 the peak lies in the optimizer's step; with one head alone, elsewhere than the formula says."""
    source = model_source(model=Summed, inputs=lambda B, T, d: torch.ones(B, T, d), dims={"B": 2, "T": 6, "d": 8, "h": 2, "L": 2}, name="summed")
    made = Ledger(Builder(source, "train", "cpu").graph("summed"))
    for sizes in ({"B": 2, "T": 30, "d": 6, "h": 1, "L": 4}, {"B": 3, "T": 20, "d": 4, "h": 2, "L": 3}):
        assert made.at(**sizes)["bytes.peak"] == real_peak(source, sizes)
    stored = loads(dumps(made.graph))
    assert "h = 1" in {limit.text for limit in stored.limits if limit.key == "bytes.peak"}
    assert "bytes.peak" not in Ledger(stored).at(B=3, T=20, d=4, h=1, L=3)


class Repeated(nn.Module):
    """Heads share keys by expanding them: at g = 1 a view, and at B = 1 the product's clone is one, but only both together."""

    def __init__(self, d, g, n):
        super().__init__()
        self.g, self.n, self.d = g, n, d
        self.q, self.k = nn.Linear(8, g * n * d), nn.Linear(8, g * d)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, -1, self.d).transpose(1, 2)
        k = self.k(x).view(B, T, -1, self.d).transpose(1, 2)
        k = k[:, :, None].expand(B, self.g, self.n, T, self.d).reshape(B, self.g * self.n, T, self.d)
        return torch.matmul(q, k.transpose(2, 3)).softmax(-1)


@cache
def repeated():
    made = model_source(
        "repeated", dims={"B": 2, "T": 6, "d": 4, "g": 2, "n": 3}, model=Repeated, inputs=lambda B, T: torch.randn(B, T, 8)
    )
    return Ledger(Builder(made, "train", "cpu").graph("repeated"))


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("g", [1, 3])
@pytest.mark.parametrize("T", [1, 5])
def test_two_sizes_of_1_that_leave_out_a_copy_together_are_met(B, g, T):
    sizes = {"B": B, "T": T, "d": 4, "g": g, "n": 6}
    made = Repeated(4, g, 6)
    real = saved_bytes(made, lambda out: out.sum(), made, torch.randn(B, T, 8))[0]
    assert repeated().at(**sizes)["bytes.saved"] == real
    stored = Ledger(loads(dumps(repeated().graph))).at(**sizes).get("bytes.saved")
    assert stored == real or (stored is None and [B, g, T].count(1) > 1)


class Grouped(nn.Module):
    """Keys and values of one projection, expanded over heads: at h = g they are not, and at B = 1 a product needs no copy."""

    def __init__(self, h, g, c):
        super().__init__()
        self.h, self.g, self.c = h, g, c
        self.q, self.kv, self.o = (nn.Linear(h * c, n * c, bias=False) for n in (h, 2 * g, h))

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.h, self.c).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, self.g, self.c).permute(2, 0, 3, 1, 4)
        k, v = (t[:, :, None].expand(B, self.g, self.h // self.g, T, self.c).reshape(B, self.h, T, self.c) for t in (k, v))
        a = (q @ k.transpose(-1, -2) * self.c**-0.5).softmax(-1)
        return self.o((a @ v).transpose(1, 2).reshape(B, T, self.h * self.c))


@cache
def grouped():
    made = model_source(
        "grouped", dims={"B": 2, "T": 5, "h": 4, "g": 2, "c": 6}, model=Grouped, inputs=lambda B, T, h, c: torch.randn(B, T, h * c)
    )
    return made, Ledger(Builder(made, "train", "cpu").graph("grouped"))


@pytest.mark.parametrize("sizes", [
    {"B": 1, "T": 28, "h": 20, "g": 20, "c": 3}, {"B": 1, "T": 24, "h": 6, "g": 6, "c": 1},
    {"B": 3, "T": 24, "h": 6, "g": 6, "c": 2}, {"B": 1, "T": 24, "h": 6, "g": 3, "c": 2},
], ids=str)  # fmt: skip
def test_a_peak_that_is_another_where_sizes_are_equal_and_one_is_1_is_told(sizes):
    made, ledger = grouped()
    real = real_peak(made, sizes)
    assert ledger.at(**sizes)["bytes.peak"] == real
    assert Ledger(loads(dumps(ledger.graph))).at(**sizes).get("bytes.peak") in (real, None)


def test_a_stored_graph_tells_nothing_of_three_sizes_of_1_where_two_were_found_to_matter():
    """Pairs were tried: of B and g a limit is stored. Three of the others were not, so none of their numbers is known."""
    stored = Ledger(loads(dumps(repeated().graph)))
    assert "bytes.saved" in stored.at(B=3, T=1, d=1, g=2, n=3)
    assert "bytes.saved" not in stored.at(B=3, T=1, d=1, g=2, n=1)
    assert "bytes.saved" in repeated().at(B=3, T=1, d=1, g=2, n=1)  # a run tells
