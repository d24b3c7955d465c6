"""What conventions charge beside products, and what they leave out: hand counts of single calls."""

from __future__ import annotations

import pytest
import sympy as sp
import torch
from torch import nn
from torch.nn import functional as F

import symacct
from symacct.conventions import convention
from symacct.formula_reader import parse


def forward(function, name):
    """The forward formula of a function of x (B, d), under a named convention."""

    class Call(nn.Module):
        def forward(self, x):
            return function(x)

    inputs = lambda B, d: torch.randn(B, d, requires_grad=True)  # noqa: E731
    ledger = symacct.derive(model=lambda: Call(), inputs=inputs, dims={"B": 3, "d": 8}, convention=name)
    return ledger.formulas


# google-research/electra, flops_computation.py: DROPOUT_FLOPS 4, LAYER_NORM_FLOPS 5, ACTIVATION_FLOPS 8,
# SOFTMAX_FLOPS 5, an addition 1. Hoffmann et al. 2022, appendix F: 3 for each score of a softmax.
@pytest.mark.parametrize(
    ("function", "name", "each"),
    [
        (lambda x: F.softmax(x, -1), "electra", 5),
        (lambda x: F.softmax(x, -1), "chinchilla", 3),
        (lambda x: F.layer_norm(x, x.shape[-1:]), "electra", 5),
        (lambda x: F.layer_norm(x, x.shape[-1:]), "chinchilla", 0),
        (lambda x: F.dropout(x, 0.1), "electra", 4),
        (F.gelu, "electra", 8),
        (lambda x: x + x, "electra", 1),
        (lambda x: x * x.shape[-1] ** -0.5, "electra", 1),
        (lambda x: F.softmax(x, -1), "palm", 0),
    ],
)
def test_what_an_element_is_charged(function, name, each):
    assert forward(function, name)["flops.forward"] == each * parse("B*d")


def test_a_dense_lookup_is_a_product_with_the_whole_table():
    ledger = symacct.derive(
        model=lambda V, d: nn.Embedding(V, d),
        inputs=lambda B, V: torch.randint(V, (B,)),
        dims={"B": 3, "V": 10, "d": 8},
        convention="electra",
    )
    assert ledger.formulas["flops.forward"] == parse("2*B*V*d")  # one-hot (B, V) by (V, d)
    assert ledger.under(convention("palm")).formulas["flops.forward"] == 0


def test_electra_counts_a_backward_as_much_as_a_forward():
    found = forward(F.gelu, "electra")
    assert found["flops.step"] == 2 * found["flops.forward"] == 16 * parse("B*d")


def test_all_arithmetic_takes_the_rules_own_numbers():
    twice = symacct.derive("gpt2", convention="electra", count="all").formulas["flops.forward"]
    assert twice == symacct.derive("gpt2", count="all").formulas["flops.forward"]


@pytest.mark.parametrize("fused", [True, False])
def test_fused_attention_is_charged_what_its_parts_are(fused):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            if fused:
                return F.scaled_dot_product_attention(q, k, v)
            return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v

    ledger = symacct.derive(
        model=Attention,
        inputs=lambda B, h, T, d: tuple(torch.randn(B, h, T, d) for _ in range(3)),
        dims={"B": 2, "h": 3, "T": 5, "d": 8},
        convention="electra",
    )
    assert ledger.formulas["flops.forward"] == parse("B*h*T**2*(4*d + 5 + 1)").expand()


# A causal mask


@pytest.mark.parametrize(
    ("attention", "pairs"), [("full", "T**2"), ("half", "T**2/2"), ("exact", "T*(T + 1)/2")]
)
def test_a_causal_backward_is_twice_its_forward_and_repeats_the_scores(attention, pairs):
    """Dao 2023, section 3.1: 2 products forward, 5 backward, of which one repeats the scores."""
    ledger = symacct.derive("gpt2", attention=attention)
    product = 2 * parse("B*L*d") * parse(pairs)
    rest = parse("2*B*T*(V*d + L*(4*d**2 + 2*d*f))")
    expected = {
        "flops.forward": 2 * product + rest,
        "flops.backward": 4 * product + 2 * rest,
        "flops.hardware": 7 * product + 3 * rest,
    }
    for key, value in expected.items():
        assert sp.expand(ledger.formulas[key] - value) == 0
