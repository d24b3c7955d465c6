"""Published counts of products, recurrent layers, scans, a U-Net and a table of sinusoids."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import symacct
from symacct.expressions import evaluate, parse
from symacct.symbols import symbol
from symacct.testing import assert_formula


def expanded(text):
    return parse(text).expand()


# Stanford CS336 (2025), lecture 2


def test_a_product_costs_two_for_each_multiply_add():
    """`tensor_operations_flops`: 2BDK."""
    ledger = symacct.derive(
        model=lambda D, K: nn.Linear(D, K, bias=False),
        inputs=lambda B, D: torch.randn(B, D),
        dims={"B": 3, "D": 4, "K": 5},
    )
    assert ledger.formulas["flops.forward"] == parse("2*B*D*K")
    assert ledger.at(B=1024, D=256, K=64)["flops.forward"] == 33_554_432
    assert ledger.at(B=16384, D=32768, K=8192)["flops.forward"] == 8_796_093_022_208


class TwoLayers(nn.Module):
    def __init__(self, D, K):
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, D, bias=False), nn.Linear(D, K, bias=False)

    def forward(self, x):
        return self.w2(self.w1(x)).pow(2).mean()


def test_a_gradient_of_the_input_is_counted_where_the_input_wants_one():
    """`gradients_flops` counts 4BDK + 4BDD, 2BDD of it for the gradient of x, which nothing computes."""

    def ledger(grad):
        inputs = lambda B, D: torch.randn(B, D, requires_grad=grad)  # noqa: E731
        return symacct.derive(model=TwoLayers, inputs=inputs, dims={"B": 3, "D": 4, "K": 5})

    lecture = "flops.backward = (2+2)*B*D*K + (2+2)*B*D*D"
    plain, wanting = ledger(False), ledger(True)
    sizes = {"B": 1024, "D": 256, "K": 64}
    assert plain.at(**sizes)["flops.forward"] == 167_772_160
    assert plain.at(**sizes)["flops.backward"] == 201_326_592
    assert wanting.at(**sizes)["flops.backward"] == 335_544_320
    assert assert_formula(wanting, lecture).verdict == "equal"
    found = assert_formula(plain, lecture, verdict="equal-under")
    assert found.conditions == ("backward = twice",)
    assert {term.module for term in found.terms} == {"w1"}


# Recurrent layers, by PyTorch's definition of them


def recurrent(kind, layers=1, both=False, **dims):
    model = lambda i, h: kind(i, h, layers, bidirectional=both, batch_first=True)  # noqa: E731
    sizes = {"B": 2, "T": 4, "i": 6, "h": 5} | dims
    return symacct.derive(
        model=model, inputs=lambda B, T, i: torch.randn(B, T, i), dims=sizes, mode="forward"
    )


@pytest.mark.parametrize(
    ("kind", "gates", "parameters"), [(nn.LSTM, 4, 395_264), (nn.GRU, 3, 296_448), (nn.RNN, 1, 98_816)]
)
def test_a_recurrent_layer_has_g_gates_with_two_biases(kind, gates, parameters):
    ledger = recurrent(kind)
    assert ledger.formulas["params.total"] == expanded(f"{gates}*(h*(i + h) + 2*h)")
    assert ledger.formulas["flops.forward"] == expanded(f"2*B*T*{gates}*h*(i + h)")
    assert ledger.at(B=1, T=1, i=128, h=256)["params.total"] == parameters


@pytest.mark.parametrize(("kind", "products"), [(nn.LSTM, 73_400_320), (nn.GRU, 55_050_240)])
def test_the_second_layer_reads_the_first(kind, products):
    """(128, 256), 4 sequences of 10; FlopCounterMode has 55,050,240 for the GRU, 0 for the LSTM."""
    assert recurrent(kind, 2).at(B=4, T=10, i=128, h=256)["flops.forward"] == products


def test_two_layers_both_ways_read_both_directions():
    ledger = recurrent(nn.LSTM, 2, both=True)
    each = "4*(h*({} + h) + 2*h)"
    assert ledger.formulas["params.total"] == expanded(f"2*{each.format('i')} + 2*{each.format('2*h')}")
    assert ledger.at(B=1, T=1, i=128, h=256)["params.total"] == 2_367_488


# Selective scans


class SlowScan(nn.Module):
    """The scan as transformers writes it without kernels (MambaMixer, slow path), and its skip by D.

    x and dt are (B, L, D); the input and output maps (B, L, N).
    """

    def __init__(self, D, N, skip=False):
        super().__init__()
        self.A = nn.Parameter(-torch.ones(D, N))
        self.D = nn.Parameter(torch.ones(D)) if skip else None

    def forward(self, x, dt, b, c):
        decay = torch.exp(self.A * dt[..., None])
        added = (dt[..., None] * b[:, :, None]) * x[..., None]
        state, outputs = x.new_zeros(decay[:, 0].shape), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + added[:, t]
            outputs.append((state @ c[:, t, :, None])[..., 0])
        y = torch.stack(outputs, 1)
        return y if self.D is None else y + x * self.D


def scan(skip):
    def inputs(B, L, D, N):
        return torch.randn(B, L, D), torch.rand(B, L, D), torch.randn(B, L, N), torch.randn(B, L, N)

    return symacct.derive(
        model=lambda D, N: SlowScan(D, N, skip),
        inputs=inputs,
        dims={"B": 2, "L": 4, "D": 6, "N": 3},
        mode="forward",
        count="all",
    )


def test_a_scan_as_run_costs_eight_not_nine():
    """state-spaces/mamba, issue 110: 9BLDN, for a parallel scan. The loop over time does 8."""
    ledger = scan(skip=False)
    assert ledger.formulas["flops.forward"] == expanded("8*B*L*D*N")
    assert assert_formula(ledger, "flops.forward = 8*B*L*D*N").verdict == "equal"
    found = assert_formula(ledger, "flops.forward = 9*B*L*D*N", verdict="refuted")
    assert found.difference == -parse("B*D*L*N")
    kinds = {kind: value for (kind,), value in ledger.by("kind").items()}
    assert kinds == {
        "product": parse("2*B*D*L*N"), "elementwise": parse("5*B*D*L*N"), "transcendental": parse("B*D*L*N")
    }  # fmt: skip


def test_the_skip_of_a_scan_costs_two_not_one():
    """28,508,160 = 9BLDN + BLD at B = 1, L = 256, D = 768, N = 16; as run, 8BLDN + 2BLD."""
    ledger = scan(skip=True)
    assert ledger.formulas["flops.forward"] == expanded("8*B*L*D*N + 2*B*L*D")
    sizes = {"B": 1, "L": 256, "D": 768, "N": 16}
    found = assert_formula(ledger, "flops.forward = 9*B*L*D*N + B*L*D", verdict="refuted")
    assert evaluate(found.read_as, sizes) == 28_508_160
    assert ledger.at(**sizes)["flops.forward"] == 25_559_040


# RWKV-5


class Eagle(nn.Module):
    """One layer: time mixing with gate and norm by heads of 64, channel mixing 3.5 times as wide."""

    def __init__(self, d):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.mix = nn.Parameter(torch.zeros(6, d))  # of receptance, key, value, gate; of the channels' two
        self.decay, self.bonus = (nn.Parameter(torch.zeros(d)) for _ in range(2))
        self.r, self.k, self.v, self.g, self.o, self.channel_r = (
            nn.Linear(d, d, bias=False) for _ in range(6)
        )
        self.group = nn.GroupNorm(d // 64, d)
        self.up, self.down = nn.Linear(d, 7 * d // 2, bias=False), nn.Linear(7 * d // 2, d, bias=False)

    def forward(self, x):
        x = x + self.time(self.norms[0](x))
        return x + self.channels(self.norms[1](x))

    def shifted(self, x, *which):
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        return (torch.lerp(before, x, self.mix[i]) for i in which)

    def time(self, x):
        b, t, d = x.shape
        r, k, v, g = self.shifted(x, 0, 1, 2, 3)
        r, k, v = (m(y).view(b, t, -1, 64) for m, y in ((self.r, r), (self.k, k), (self.v, v)))
        decay, bonus = (p.view(-1, 64, 1) for p in (torch.exp(-torch.exp(self.decay)), self.bonus))
        state, outputs = x.new_zeros(b, d // 64, 64, 64), []
        for i in range(t):
            pair = k[:, i, :, :, None] @ v[:, i, :, None]
            outputs.append(r[:, i, :, None] @ (bonus * pair + state))
            state = decay * state + pair
        y = self.group(torch.stack(outputs, 1).reshape(b * t, d)).view(b, t, d)
        return self.o(y * F.silu(self.g(g)))

    def channels(self, x):
        k, r = self.shifted(x, 4, 5)
        return torch.sigmoid(self.channel_r(r)) * self.down(F.relu(self.up(k)) ** 2)


def eagle(V, d, L):
    return nn.Sequential(
        nn.Embedding(V, d), nn.LayerNorm(d), *(Eagle(d) for _ in range(L)), nn.LayerNorm(d),
        nn.Linear(d, V, bias=False),
    )  # fmt: skip


def test_eagles_parameters_and_products():
    """Peng et al. 2024, appendix E, equations 23 to 25: 13D²L + 14DL + 4D + 2DV parameters."""
    ledger = symacct.derive(
        model=lambda V, n, L: eagle(V, 64 * n, L),
        inputs=lambda B, V: torch.randint(V, (B, 3)),
        dims={"B": 2, "V": 96, "n": 2, "L": 2},
        mode="forward",
    )
    wide = {symbol("D"): parse("64*n")}
    parameters = parse("13*D**2*L + 14*D*L + 4*D + 2*D*V").xreplace(wide)
    assert ledger.formulas["params.total"] == parameters.expand()
    for d, L, published in ((2048, 24, 1_577_754_624), (4096, 32, 7_518_044_160)):
        assert ledger.at(B=1, V=65536, n=d // 64, L=L)["params.total"] == published
    # Of three tokens, with two products of 64 by 64 for each head: a pair's, and the reading of the state.
    products = parse("3*B*2*(13*D**2*L + D*V + 2*64*D*L)").xreplace(wide)
    assert ledger.formulas["flops.forward"] == products.expand()
    # Its FLOPs are 2 a parameter and 6·D²·L/h for the state; of training 3 times that, where 16D is for 24D.
    names = {"D": "64*n", "h": "n"}
    once = "2*params + 6*D^2 L/h = 26 D^2 L + 28 D L + 8 D + 4 D V + 6 D^2 L/h"
    assert ledger.check(once, map=names).verdict == "equal"
    training = "6*params + 18*D^2 L/h = 78 D^2 L + 84 D L + {} D + 12 D V + 18 D^2 L/h"
    assert ledger.check(training.format(24), map=names).verdict == "equal"
    found = ledger.check(training.format(16), map=names)
    assert (found.verdict, found.difference) == ("refuted", parse("8*64*n"))
    assert {term.op for term in found.terms} == {"parameter"}


# U-Net, Whisper


def test_the_original_unet():
    """Ronneberger et al. 2015, figure 1: one channel to two classes, convolutions with biases."""
    formula = symacct.derive("unet").formulas["params.total"]
    assert formula.xreplace({symbol("C"): 2, symbol("w"): 64}) == 31_030_658


@pytest.mark.parametrize(
    ("sizes", "all_of_them", "trained", "printed"),
    [
        ((384, 4, 4, 6, 80, 51865), 37_760_640, 37_184_640, (39_000_000,)),
        # 809 M in the README, 798 M in the model card
        ((1280, 32, 4, 20, 128, 51866), 808_878_080, 806_958_080, (798_000_000,)),
    ],
    ids=["tiny", "large-v3-turbo"],
)
def test_whispers_table_of_sinusoids_is_frozen(sizes, all_of_them, trained, printed):
    """openai/whisper registers 1500·d as a buffer, transformers as a parameter that does not train.

    Sizes that its README and model card print are refuted as claims.
    """
    transformers = pytest.importorskip("transformers")
    d, encoder, decoder, h, mels, V = sizes
    config = transformers.WhisperConfig(
        vocab_size=V, num_mel_bins=mels, d_model=d, encoder_layers=encoder, decoder_layers=decoder,
        encoder_attention_heads=h, decoder_attention_heads=h, encoder_ffn_dim=4 * d, decoder_ffn_dim=4 * d,
        use_cache=False,
    )  # fmt: skip
    inputs = {
        "input_features": torch.zeros(1, mels, 3000),
        "decoder_input_ids": torch.zeros(1, 4, dtype=torch.long),
    }
    ledger = symacct.derive(
        model=lambda: transformers.WhisperForConditionalGeneration(config),
        inputs=lambda: {name: value.clone() for name, value in inputs.items()},
        dims={},
        mode="forward",
    )
    assert ledger.formulas["params.total"] == all_of_them
    assert ledger.formulas["params.trainable"] == trained
    for claimed in printed:
        for key in ("params.total", "params.trainable"):
            found = ledger.check(f"{key} = {claimed}")
            assert (found.verdict, found.difference) == ("refuted", ledger.formulas[key] - claimed)
    assert ledger.check(f"params.total = params.trainable + 1500*{d}").verdict == "equal"
