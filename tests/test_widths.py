"""Symbolic widths: at numbers they are those of the dtype. Tensors of 8 bits count as they are."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from test_training_state import at, derived, mlp, parse, rows
from torch import nn

from symacct import cli
from symacct.account import Ledger
from symacct.errors import ModelFileError, SizeError
from symacct.expressions import to_text
from symacct.symbols import symbol
from symacct.tracing.model_file import model_source
from symacct.tracing.variation import graph_of
from symacct.variants import variant

BYTES = {2: "bf16", 4: "fp32"}


class Net(nn.Module):
    """A mask, a norm with float32 statistics, a table and its indices, dropout, in L blocks."""

    def __init__(self, V, L, d):
        super().__init__()
        self.table, self.head = nn.Embedding(V, d), nn.Linear(d, V)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.Dropout(0.1)) for _ in range(L)
        )
        self.register_buffer("scale", torch.ones(d))

    def forward(self, ids):
        x = self.table(ids) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@cache
def net(**options):
    return derived(
        Net,
        lambda B, T, V: torch.randint(V, (B, T)),
        {"B": 2, "T": 6, "V": 20, "L": 2, "d": 8},
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
        **options,
    )


@pytest.fixture(scope="module")
def symbolic():
    return net(widths="symbolic")


def widths(number):
    return {symbol(name): number for name in ("w_p", "w_g", "w_o", "w_a")}


@pytest.mark.parametrize("number", BYTES)
def test_at_a_width_they_are_those_of_the_dtype(symbolic, number):
    dtype = net(dtype=BYTES[number])
    sizes = {"B": 3, "T": 7, "V": 30, "L": 4, "d": 12}
    assert symbolic.graph.assumptions == ()
    for key, formula in dtype.formulas.items():
        mine = symbolic.formulas[key]
        if key != "bytes.peak":
            assert mine.xreplace(widths(number)).expand() == formula, key
    for sizes in (
        {"B": 3, "T": 7, "V": 30, "L": 4, "d": 12},
        {"B": 1, "T": 2, "V": 3, "L": 9, "d": 40},
        {"B": 50, "T": 9, "V": 11, "L": 2, "d": 5},
    ):
        mine = symbolic.at(**sizes, w_p=number, w_g=number, w_o=number, w_a=number)
        assert mine == dtype.at(**sizes)


def test_what_has_a_width_of_its_own_keeps_it(symbolic):
    """By hand: masks of one byte and statistics of 2·4 a row in each block, ids of 8."""
    found = symbolic.formulas
    params = "(2*V*d + V + L*(d**2 + 3*d))"
    assert found["bytes.params"] == parse(f"w_p*{params}") and found["bytes.grads"] == parse(f"w_g*{params}")
    assert found["bytes.optimizer"] == parse(f"2*w_o*{params} + 4*(4*L + 3)")
    fixed = found["bytes.saved"].coeff(symbol("w_a"), 0)
    assert fixed == parse("L*(B*T*d + 8*B*T) + 8*B*T")
    # the norm's input and output, the last block's output, the log-softmax, the sum of weights
    assert found["bytes.saved"].coeff(symbol("w_a")) == parse("2*L*B*T*d + B*T*d + B*T*V + 1")


def test_mixed_widths_are_those_of_each_kind(symbolic):
    sizes = {"B": 3, "T": 7, "V": 30, "L": 4, "d": 12}
    found = symbolic.at(**sizes, w_p=2, w_g=4, w_o=4, w_a=2)
    low, wide = net(dtype="bf16").at(**sizes), net(dtype="fp32").at(**sizes)
    assert (found["bytes.params"], found["bytes.saved"]) == (low["bytes.params"], low["bytes.saved"])
    assert (found["bytes.grads"], found["bytes.optimizer"]) == (wide["bytes.grads"], wide["bytes.optimizer"])


class Scales(nn.Module):
    """A table that the code itself makes in bfloat16, whatever the model is in."""

    def __init__(self, d):
        super().__init__()
        self.layer = nn.Linear(d, d, bias=False)

    def forward(self, x):
        return self.layer(x) * torch.ones(x.shape[-1], dtype=torch.bfloat16)


@pytest.mark.parametrize("number", BYTES)
def test_what_the_code_makes_in_two_bytes_stays_so(number):
    made = derived(Scales, dims={"B": 2, "d": 8}, widths="symbolic")
    assert made.graph.assumptions == ()
    assert made.formulas["bytes.saved"] == parse("w_a*B*d + 2*d")  # the input, and the table
    dtype = derived(Scales, dims={"B": 2, "d": 8}, dtype=BYTES[number]).at(B=5, d=12)
    assert made.at(B=5, d=12, w_p=number, w_g=number, w_o=number, w_a=number) == dtype


class Casts(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer = nn.Linear(d, d)

    def forward(self, x):
        return self.layer(x).float().softmax(-1).to(x.dtype)


def test_a_model_that_casts_has_widths_below_four():
    made = derived(Casts, dims={"B": 2, "d": 8}, widths="symbolic")
    numbers = {"B": 4, "d": 6, "w_g": 2, "w_o": 2}
    low = derived(Casts, dims={"B": 2, "d": 8}, dtype="bf16").at(B=4, d=6)
    assert made.at(**numbers, w_p=2, w_a=2) == low
    assert "without casts" in made.graph.remarks[-1]
    with pytest.raises(SizeError, match="w_a = 4 breaks w_a < 4"):
        made.at(**numbers, w_p=2, w_a=4)


def _empty():
    return {}


class Cached(nn.Linear):
    def forward(self, x, cache):
        cache["k"] = (
            torch.cat([cache["k"], self.weight.new_ones(x.shape) * x], 1) if cache else x * self.weight.sum()
        )
        return cache["k"]


def test_a_cache_has_the_width_of_activations():
    source = model_source(
        "m",
        dims={"B": 2, "T": 5, "d": 8},
        model=lambda d: Cached(d, d),
        inputs=lambda B, T, d: torch.ones(B, T, d),
        cache=_empty,
    )
    found = Ledger(graph_of(source, "m", "decode", "cuda", asked=variant(widths="symbolic")))
    assert found.formulas["bytes.kv_cache"] == parse("w_a*B*(T + 1)*d")


def test_they_are_written_by_width(capsys, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\ndims = {'B': 2, 'd': 8}\ndef model(d): return torch.nn.Linear(d, d)\ndef inputs(B, "
        "d): return torch.ones(B, d)\n"
    )
    assert (
        cli.main(["derive", str(path), "--widths", "symbolic", "--at", "B=3,d=10,w_p=2,w_g=2,w_o=4,w_a=2"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert "symbolic widths" in lines[0]
    found = {line[:22].strip(): " ".join(line[22:].split()) for line in lines}
    assert found["weights"] == "= w_p·N 220 B" and found["gradients"] == "= w_g·N 220 B"
    assert found["optimizer state"] == "= 2·w_o·N + 8 888 B"
    assert found["kept for backward"] == "= w_a·B·d 60 B"


def test_a_size_of_that_name_is_refused():
    with pytest.raises(ModelFileError, match="the size w_a has the name of a symbolic width"):
        derived(
            lambda w_a: nn.Linear(w_a, w_a),
            lambda B, w_a: torch.ones(B, w_a),
            {"B": 2, "w_a": 8},
            widths="symbolic",
        )
    with pytest.raises(ModelFileError, match="leave out --dtype fp32"):
        derived(widths="symbolic", dtype="fp32")


# Tensors of 8 bits in the model's own code

EIGHT = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}


class Stored(nn.Module):
    """A linear layer whose weights are kept in 8 bits, with a scale for each output."""

    def __init__(self, d, f, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(f, d).to(dtype), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(f))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


@pytest.mark.parametrize("name", EIGHT)
def test_weights_stored_in_8_bits_are_cast_to_be_used(name):
    """One byte a weight; its cast is a node that reads one and writes four, and dies with the product."""
    found = derived(lambda d, f: Stored(d, f, EIGHT[name]), rows)
    assert found.formulas["bytes.params"] == parse("d*f + 4*f")
    assert found.formulas["bytes.optimizer"] == parse("2*4*f + 4")
    assert found.formulas["bytes.saved"] == parse("4*B*f")
    casts = [entry for entry in found.entries if entry.op == "aten._to_copy"]
    assert [(to_text(c.read), to_text(c.written), c.dtype) for c in casts] == [("d*f", "4*d*f", "float32")]
    real = Stored(6, 10, EIGHT[name])
    assert at(found.formulas["bytes.params"], d=6, f=10) == sum(p.nbytes for p in real.parameters())


class Scaled(nn.Module):
    """A product of two 8-bit matrices, as torch's kernels take them."""

    def __init__(self, d, f, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(f, d).to(dtype), requires_grad=False)
        self.register_buffer("one", torch.ones(()))

    def forward(self, x):
        x = x.to(self.weight.dtype)
        if self.weight.dtype == torch.int8:
            return torch._int_mm(x, self.weight.t())
        return torch._scaled_mm(
            x, self.weight.t(), scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16
        )


@pytest.mark.parametrize(("name", "result"), [("e4m3", 2), ("int8", 4)])
def test_products_of_8_bits(name, result):
    found = derived(
        lambda d, f: Scaled(d, f, EIGHT[name]),
        lambda B, d: torch.zeros(B, d, dtype=torch.bfloat16),
        {"B": 32, "d": 48, "f": 64},
        mode="forward",
    )
    assert found.formulas["flops.forward"] == parse("2*B*d*f")
    assert found.formulas["bytes.params"] == parse("d*f")
    scale = 4 if name == "e4m3" else 0  # a float32
    assert found.formulas["bytes.written"] == parse(f"B*d + {result}*B*f")
    assert found.formulas["bytes.read"] == parse(f"2*B*d + B*d + d*f + {scale}")


@pytest.mark.parametrize("dtype", ["fp8", "int8", "float8_e4m3fn", "E5M2"])
def test_a_whole_model_in_8_bits_is_refused_in_words(dtype):
    with pytest.raises(ModelFileError, match="a model converted to 8 bits does not run"):
        derived(dtype=dtype)
    with pytest.raises((RuntimeError, NotImplementedError)):  # as indeed it does not
        mlp(4, 6).to(torch.float8_e4m3fn)(torch.ones(2, 4).to(torch.float8_e4m3fn))
