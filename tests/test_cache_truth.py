"""Published figures of inference and of vision, from traced models, under their authors' conventions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import sympy as sp
import torch
from test_memory_truth import EXAMPLES, at, outputs

import symacct
from symacct.account import Ledger
from symacct.formula_reader import parse
from symacct.plan.serving import looked_up_bytes
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file
from symacct.tracing.preparation import prepared

# Caches


@cache
def prompt(name, **options):
    return symacct.derive(str(EXAMPLES / f"{name}.py"), mode="prefill", **options)


def cached(**sizes):
    """Bytes of a Llama's cache in bf16, for one token of one sequence unless more are asked for."""
    return at(prompt("llama", dtype="bf16").formulas["bytes.kv_cache"], **{"B": 1, "T": 1} | sizes)


# 2·L·h_kv·d_h·2 bytes; the models' config.json
KV = {
    "Llama-2-7B": (32, 32, 524_288),
    "Llama-2-13B": (40, 40, 819_200),
    "Llama-2-70B": (80, 8, 327_680),
    "Llama-3-8B": (32, 8, 131_072),
    "Mistral-7B": (32, 8, 131_072),
}


@pytest.mark.parametrize("name", KV)
def test_bytes_cached_for_a_token(name):
    depth, heads, published = KV[name]
    assert cached(L=depth, h_kv=heads, d_h=128) == published


def test_palms_cache_with_a_head_of_keys_for_each_of_queries():
    """Pope et al. 2022, section 2.1: 3 TB at batch 512 and context 2048, where each head is halved to 128."""
    assert cached(B=512, T=2048, L=118, h_kv=48, d_h=128) == 3_040_836_845_568


def test_kipplys_52b():
    """kipply, "Transformer inference arithmetic" and "parameter counting": d = 8192, L = 64, V = 65536."""
    sizes = {"L": 64, "d": 8192, "V": 65_536}
    assert cached(L=64, h_kv=64, d_h=128) == 2_097_152
    keys = prompt("llama", dtype="bf16").by("module")
    each = sp.Add(*(keys[f"blocks.*.attn.{name}",] for name in "kv"))
    assert at(each, B=1, T=1, L=64, d=8192, h_kv=64, d_h=128) == 17_179_869_184
    found = {
        key: sp.expand(value.xreplace({symbol("f"): 4 * symbol("d")}))
        for key, value in symacct.derive("gpt2").formulas.items()
    }
    blocks = found["params.total"].coeff(symbol("L")).coeff(symbol("d"), 2) * parse("L*d**2")
    assert at(blocks, **sizes) == 51_539_607_552
    assert at(blocks + parse("V*d"), **sizes) == 52_076_478_464
    assert sp.expand(found["params.total"] - blocks - parse("V*d")) == parse(
        "T*d + 13*L*d + 2*d"
    )  # left out there
    forward = found["flops.forward"] - parse("2*B*T*V*d")  # and logits and attention of the products
    assert at(forward.expand().coeff(symbol("T"), 1), B=1, **sizes) == 103_079_215_104


class Whole(dict):
    """One layer's cache that holds whole numbers of one byte, and gives them back as bfloat16."""

    def update(self, new):
        super().update({name: x.to(torch.int8) for name, x in new.items()})

    def __getitem__(self, name):
        return super().__getitem__(name).to(torch.bfloat16)


def test_a_cache_of_whole_numbers():
    """scaling-book: LLaMA-3-70B caches 163,840 bytes a token in int8; 8 GiB for 8,192, L = 64, K·H = 8192."""
    source = replace(
        load_model_file(EXAMPLES / "llama.py"),
        cache=lambda model, sizes: {"cache": [Whole() for _ in range(sizes["L"])]},
    )
    found = Ledger(Builder(prepared(source, "bf16"), "prefill", "cuda").graph("llama")).formulas[
        "bytes.kv_cache"
    ]
    assert at(found, B=1, T=1, L=80, h_kv=8, d_h=128) == 163_840
    assert at(found, B=1, T=8192, L=64, h_kv=64, d_h=128) == 8 * 2**30


def test_deepseek_v2s_latent_cache():
    """Technical report, table 1: (512 + 64)·60 = 34,560 elements, as with 2.25 groups of grouped queries."""
    elements = prompt("deepseek_mla").formulas["bytes.kv_cache"] / 4
    latent = at(elements, B=1, T=1, L=60, d_c=512, d_r=64)
    assert latent == 34_560
    assert latent / at(cached_elements(), L=60, h_kv=1, d_h=128) == sp.Rational(9, 4)
    dense = at(cached_elements(), L=95, h_kv=8, d_h=128)  # DeepSeek-67B
    assert f"{float(100 * (1 - latent / dense)):.3f}" == "82.237"
    assert (
        f"{float(100 * (1 - 6 * latent / (16 * dense))):.3f}" == "93.339"
    )  # the published 93.3 %: 6 bits for 16


def cached_elements():
    return sp.expand(prompt("llama", dtype="bf16").formulas["bytes.kv_cache"] / 2).xreplace(
        {symbol("B"): sp.Integer(1), symbol("T"): sp.Integer(1)}
    )


# timm


def test_timms_activations():
    """timm's `macts`: outputs of convolutions and matrix products in millions, attention not fused."""
    products = ("convolution", "addmm", "mm")

    def counted(name):
        return sp.Add(
            *(
                n[0]
                for (_, op), found in outputs(symacct.derive(name)).items()
                if op in products
                for n in found
            )
        )

    assert f"{int(at(counted('resnet50'), B=1, H=224, W=224, C=1000, w=64)) / 1e6:.2f}" == "11.11"
    attention = parse(
        "L*(h*(n**2 + 1)**2 + (n**2 + 1)*d)"
    )  # of the fused op: scores, and their sum of values
    base = {"B": 1, "n": 14, "p": 16, "C": 1000, "L": 12, "d": 768, "h": 12, "f": 3072}
    assert f"{int(at(counted('vit') + attention, **base)) / 1e6:.2f}" == "23.90"


def test_a_token_reads_one_row_of_a_table_that_is_only_looked_up():
    """2·V·d bytes of an untied table in bf16; a tied one is read whole by the head."""
    V, d, T = map(symbol, "VdT")
    assert looked_up_bytes(prompt("llama", dtype="bf16").graph) == 2 * V * d
    tied = symacct.derive(str(EXAMPLES / "gpt.py"), mode="forward").graph
    assert looked_up_bytes(tied) == 4 * T * d  # positions alone: the head reads the other
