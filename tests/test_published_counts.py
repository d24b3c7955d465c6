"""What scripts and lecture notes compute of a language model, judged in their conventions."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import published_language_models as gpt
import published_variants as other
import pytest
import sympy as sp
from published_language_models import decoder, forward_of, number, parameters_of, published, same, under

import symacct
from symacct.conventions import convention
from symacct.expressions import parse
from symacct.graph import total_over
from symacct.symbols import symbol

B, T, V, L, d, h, f = map(symbol, "BTVLdhf")
SMALL = {"V": 50_257, "T": 1024, "L": 12, "d": 768, "h": 12}
XL = {"V": 50_257, "T": 1024, "L": 48, "d": 1600, "h": 25}
MHA = ["h_kv = h", "d = h*d_h"]


@cache
def stored(name: str):
    return symacct.derive(name)


# karpathy/nanoGPT, transformer_sizing.ipynb: GPT-2 small without biases.


def nanogpt():
    return under(decoder(bias=False, norm=gpt.norm(bias=False)), "nanogpt")


@pytest.mark.parametrize(
    ("modules", "parameters", "flops"),
    [
        (("wpe",), 786_432, 0),
        (("wte", "head"), 38_597_376, 79_047_426_048),
        (("blocks.*.attn.qkv",), 12 * 1_769_472, 12 * 3_623_878_656),
        (("blocks.*.attn.core.scores",), 0, 12 * 1_610_612_736),
        (("blocks.*.attn.core.mix",), 0, 12 * 1_610_612_736),
        (("blocks.*.attn.proj",), 12 * 589_824, 12 * 1_207_959_552),
        (("blocks.*.attn", "blocks.*.ln1"), 12 * 2_360_064, 12 * 8_053_063_680),
        (("blocks.*.mlp.up",), 12 * 2_359_296, 12 * 4_831_838_208),
        (("blocks.*.mlp", "blocks.*.ln2"), 12 * 4_719_360, 12 * 9_663_676_416),
        (("blocks",), 84_953_088, 212_600_881_152),
        (("",), 124_337_664, 291_648_307_200),
    ],
)
def test_nanogpts_tables(modules, parameters, flops):
    ledger = nanogpt()
    assert number(parameters_of(ledger, *modules), **SMALL) == parameters
    assert number(forward_of(ledger, *modules), B=1, **SMALL) == flops


def test_nanogpts_estimate_counts_the_norms_in_products():
    found = nanogpt().check("C / D = 6(N - T d) + 12 L H Q T", at={"B": 1, **SMALL})
    assert (found.verdict, found.difference) == ("leading-order", -12 * L * d - 6 * d)
    assert {term.module for term in found.terms} == {"blocks.*.ln1", "blocks.*.ln2", "ln_f"}
    at = {"B": 1, **SMALL}
    step, estimate = number(nanogpt().formulas["flops.step"], **at), 1024 * number(found.read_as, **SMALL)
    assert (step, estimate) == (874_944_921_600, 875_062_886_400)


# karpathy/llm.c, train_gpt2.cu: 6·N + 6·L·C·T a token, N with the table padded to 50,304 rows.


def test_llm_cs_estimate_counts_half_of_attention():
    ledger = stored("gpt2").under(convention("llm.c"))
    found = ledger.check("flops.step / D = 6N + 6LCT", ["f = 4*d"], map={"C": "d"})
    assert found.verdict == "equal-under"
    assert found.conditions[-1].startswith("N = parameters used in products")
    assert number(ledger.formulas["params.total"], **SMALL | {"V": 50_304, "f": 3072}) == 124_475_904


# Stanford CS336 (spring 2025), assignment 1, transformer_accounting: RMSNorm, SwiGLU, no biases, an
# untied head. The handout prints no numbers; two integers of GPT-2 XL's shape are those of several
# public solutions.


@pytest.mark.parametrize(
    "claim",
    [
        "params = 2Vd + L(4d^2 + 3 d d_ff + 2d) + d",
        "forward = B T (L(6d^2 + 4 T d + 2d^2 + 6 d d_ff) + 2 d V)",
    ],
)
def test_assignment_1s_formulas(claim):
    assert stored("llama").check(claim, MHA).verdict == "equal-under"


def test_assignment_1s_integers():
    sizes = {"B": 1, **XL, "h_kv": 25, "d_h": 64, "f": 6400}
    found = stored("llama").at(**sizes)
    assert (found["params.total"], found["bytes.params"]) == (2_127_057_600, 8_508_230_400)
    assert found["flops.forward"] == 4_513_336_524_800


@pytest.mark.parametrize(
    ("layers", "width", "heads", "inner", "percent"),
    [
        (12, 768, 12, 4 * 768, (12.44, 11.06, 4.15, 49.75, 22.61)),
        (24, 1024, 16, 4 * 1024, (14.97, 9.98, 4.99, 59.87, 10.20)),
        (36, 1280, 20, 4 * 1280, (16.05, 8.56, 5.35, 64.20, 5.84)),
        (48, 1600, 25, 6400, (16.73, 7.14, 5.58, 66.91, 3.65)),
    ],
    ids=["small", "medium", "large", "XL"],
)
def test_assignment_1s_shares(layers, width, heads, inner, percent):
    ledger = stored("llama")
    sizes = {"B": 1, "T": 1024, "V": 50_257, "L": layers, "d": width, "h": heads, "h_kv": heads}
    sizes |= {"d_h": width // heads, "f": inner}
    whole = number(ledger.formulas["flops.forward"], **sizes)
    found = ledger.by("module", phases=("forward",))
    shares = [[f"blocks.*.attn.{name}" for name in "qkv"], ["blocks.*.attn"], ["blocks.*.attn.o"]]
    shares += [[f"blocks.*.mlp.{name}" for name in ("gate", "up", "down")], ["head"]]
    for names, share in zip(shares, percent, strict=True):
        part = number(sp.Add(*(found[(name,)] for name in names)), **sizes)
        assert 100 * part / whole == pytest.approx(share, abs=0.005)


# CS336 assignment 1, adamwAccounting: elements that listed components give, and 16 bytes a parameter.

LISTED = "L(16 B s d + 2 B h s^2) + B s d + 2 B s V"


@cache
def assignment():
    return symacct.derive(
        model=lambda V, L, d, h: gpt.Decoder(
            V, 1, L, d, h, bias=False, norm=lambda n: torch_rms(n), act=silu, positions=False, tied=False
        ),
        inputs=gpt.tokens,
        loss=lambda output, inputs: gpt.F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
        dims=gpt.DIMS,
    )


def torch_rms(width):
    return gpt.nn.RMSNorm(width)


def silu():
    return gpt.nn.SiLU()


def test_adamw_accountings_activations():
    """Norms 2, query, key, value 3, scores, softmax, mix 1, projection 1, W1 4, SiLU 4, W2 1."""
    ledger = assignment()
    listed = ("aten.mm", "aten.bmm", "aten._softmax", "aten._log_softmax", "aten.silu")
    made: list[sp.Expr] = []
    norms: dict[str, sp.Expr] = {}
    for place in ledger.graph.ops:
        if place.node.phase not in ("forward", "loss"):
            continue
        elements = total_over(place.node.outputs[0].numel, place.loops)
        if place.node.op in listed:
            made.append(elements)
        elif "ln" in place.node.module:
            norms[place.node.module] = elements  # what its last operation gives
    assert same(sp.Add(*made, *norms.values()), published(ledger, LISTED, s="T"))


def test_adamw_accountings_activations_are_not_what_is_kept():
    """A list of outputs is no inventory: scores are not kept, the residual stream is."""
    found = assignment().check(f"bytes.saved = 4({LISTED})", map={"s": "T"})
    assert found.verdict in ("refuted", "leading-order")
    told = {(term.kind, term.term, term.module) for term in found.terms}
    assert any(module.startswith("blocks.*.attn") and term.has(T**2) for _, term, module in told)


def test_adamw_accountings_16_bytes_a_parameter():
    found = assignment().check("bytes.params + bytes.grads + bytes.optimizer = 16 N")
    assert found.verdict == "leading-order"  # AdamW also keeps a step in each of its states
    assert same(found.difference, 4 * (6 * L + 3))
    assert all("step" in term.meaning for term in found.terms) and len(found.terms) == 9
    assert 16 * number(assignment().formulas["params.total"], **XL) == 26_168_601_600
    activations = 4 * number(published(assignment(), LISTED, s="T"), B=1, **XL)
    assert activations == 15_517_753_344


# pytorch/torchtitan, utils: 6·(parameters - embedding) + 6·L·H·(query and value widths)·T a token;
# mosaicml/llm-foundry, scripts/train/benchmarking: (3·2·N·s + 3·L·4·d·s²) a sequence.


def test_torchtitans_estimate_counts_the_norms_in_products():
    claim = "flops.step / D = 6*(params.total - params.embedding) + 6 L h (d_h + d_h) T"
    found = stored("llama").check(claim)
    assert (found.verdict, found.difference) == ("leading-order", -12 * L * d - 6 * d)
    assert {term.module for term in found.terms} == {"blocks.*.norm1", "blocks.*.norm2", "norm"}


def test_llm_foundrys_estimate():
    found = stored("gpt2").check("C = B(3*2*N*T + 3*L*4*d*T^2)")
    assert found.verdict == "equal-under"
    assert found.conditions[0].startswith("N = parameters used in products")


# NVIDIA/Megatron-LM, training.py, num_floating_point_operations (at d98e8a64): three times the
# forward, a causal core halved, logits included; executed for one sequence.


def test_megatrons_counter():
    llama = stored("llama").under(convention("megatron", attention="half")).formulas["flops.step"]
    sizes = {"B": 1, "T": 4096, "V": 32_000, "L": 32, "d": 4096, "h": 32, "h_kv": 32, "d_h": 128, "f": 11_008}
    assert number(llama, **sizes) == 175_569_673_125_888
    ledger = stored("gpt2").under(convention("megatron", attention="half"))
    large = {"B": 1, "T": 2048, "V": 51_200, "L": 96, "d": 12_288, "f": 4 * 12_288}
    assert number(ledger.formulas["flops.step"], **large) == 2_174_868_359_479_296
    claim = "C = 3 * 2 B s (L(4 h^2 + 2 h f + s h) + h V)"  # the core's s·h is half of 2·s·h
    assert ledger.check(claim, map={"s": "T", "h": "d"}).verdict == "equal"


# Dao 2023 (FlashAttention-2), section 4.1: forward 4·s²·d·h, half under a causal mask, backward 2.5 times it.

SPED = {"b": 8, "s": 2048, "d": 64, "h": 32}


@pytest.mark.parametrize(
    ("causal", "name", "forward", "both"),
    [
        (False, "symacct", 274_877_906_944, 962_072_674_304),
        (True, "flash", 137_438_953_472, 962_072_674_304 // 2),
    ],
)
def test_flash_attentions_counts(causal, name, forward, both):
    ledger = under(other.attention(causal), name)
    assert number(ledger.formulas["flops.forward"], **SPED) == forward
    assert number(ledger.formulas["flops.hardware"], **SPED) == both
    assert ledger.check("flops.hardware = 7*flops.forward/2").verdict == "equal"
    assert ledger.check("flops.backward = 2*flops.forward").verdict == "equal"  # model FLOPs repeat nothing


def test_unfused_attention_goes_backward_in_twice_its_forward():
    core = nanogpt().by("module", phases=("backward",))
    back = sum(number(core[(f"blocks.*.attn.core.{name}",)], B=1, **SMALL) for name in ("scores", "mix"))
    there = nanogpt().by("module", phases=("forward",))
    on = sum(number(there[(f"blocks.*.attn.core.{name}",)], B=1, **SMALL) for name in ("scores", "mix"))
    assert on == 38_654_705_664
    assert back == 77_309_411_328  # torch.utils.flop_counter of nanoGPT, its unfused path


# MrYxJ/calculate-flops.pytorch, README: multiply-adds of 128 tokens, all logits, no causal discount.


def test_calflops_table():
    macs = convention(None, unit="MAC")
    llama = {"B": 1, "T": 128, "V": 32_000, "L": 32, "d": 4096, "h": 32, "h_kv": 32, "d_h": 128, "f": 11_008}
    assert number(stored("llama").under(macs).formulas["flops.forward"], **llama) == 850_000_871_424
    flops = number(stored("llama").formulas["flops.forward"], **llama)
    assert flops == 1_700_001_742_848
    assert flops == pytest.approx(1700.06e9, rel=5e-5)  # as printed, elementwise operations included
    bert = {"B": 1, "T": 128, "L": 12, "d": 768, "f": 3072}
    found = number(stored("bert").under(macs).formulas["flops.forward"], **bert)
    assert found == 11_174_215_680
    assert f"{found / 1e9:.3f}" == "11.174"


# google-research/electra, flops_computation.py: every operation counts, a lookup is a product, a
# backward is one forward.

BERT = {
    "V": 30_522,
    "T": 512,
    "L": 12,
    "d": 768,
    "h": 12,
    "f": 3072,
    "m": 80,
}  # 15.625 % of 512 are predicted
BLOCK = (
    "3*2*d*d + 3*d + 2*d*T + 5*T*h + 4*T*h + T*h + 2*d*T + 2*d*d + d + 4*d + d + {norm}"
    " + 2*d*f + 8*f + f + 2*d*f + d + 4*d + d + 5*d"
)
ENDS = "T(2*d*V + 2*d*(T + 2) + 2*d + 5*d + 4*d) + m(2*d*V + 2*d*d + d + 8*d + 5*d + 5*V + 2*V)"


def electra():
    return under(other.masked_bert(), "electra")


def test_electras_script_but_for_a_norm_that_it_counts_once():
    ledger = electra()
    right = f"flops.step = 2 B (L T ({BLOCK.format(norm='5*d')}) + {ENDS})"
    assert ledger.check(right).verdict == "equal"
    printed = f"flops.step = 2 B (L T ({BLOCK.format(norm='5')}) + {ENDS})"
    found = ledger.check(printed)  # erratum: attn_output_layer_norm lacks the factor of the width
    assert same(found.difference, 2 * B * L * T * 5 * (d - 1))
    assert {term.module for term in found.terms} >= {"blocks.*.norm1"}
    steps, sequences = 10**6, 256
    assert steps * number(found.read_as, B=sequences, **BERT) == 64_283_351_040_000_000_000


def test_electras_numbers():
    """gpt: all 512 positions are predicted from 40,000 words; roberta: 24 layers of 1024, 50,265 words."""
    printed = published(electra(), f"2 B (L T ({BLOCK.format(norm='5')}) + {ENDS})")
    assert same(electra().formulas["flops.step"] - 10 * B * L * T * (d - 1), printed)
    gpt1 = number(printed, **BERT | {"V": 40_000, "m": 512}, B=128) * 960_800
    assert gpt1 == pytest.approx(3.968752230785352e19, rel=1e-12)
    large = {"V": 50_265, "L": 24, "d": 1024, "h": 16, "f": 4096}
    roberta = number(printed, **BERT | large, B=8000) * 500_000
    assert roberta == pytest.approx(3.187221435776e21, rel=1e-12)


ATTENTION = (
    "3*2*d*h*d_h + 3*h*d_h + 2*h*d_h*T + 5*T*h + 4*T*h + T*h"
    " + 2*{w}*T + 2*{w}*d + d + 4*d + d + {norm}"
)
FEED = "2*d*f + 8*f + f + 2*d*f + d + 4*d + d + 5*d"


def test_electras_script_takes_the_width_of_all_heads_for_the_models():
    """Values weighed and projected are h·d_h wide, not d: of T5-11B 16,384 and 1,024."""
    ledger = under(other.wide_block(), "electra")
    wide, norm = "h*d_h", "5*d"
    step = f"flops.forward = B T ({ATTENTION.format(w=wide, norm=norm)} + {FEED})"
    assert ledger.check(step).verdict == "equal"
    found = ledger.check(f"flops.forward = B T ({ATTENTION.format(w='d', norm=norm)} + {FEED})")
    assert found.verdict == "refuted"
    # the scores cost as much as the weighed values: the difference is one of the two
    assert {term.module for term in found.terms} == {"attn.core.scores", "attn.core.mix", "attn.proj"}
    q = symbol("h") * symbol("d_h")
    assert same(found.difference, 2 * B * T * (q - d) * (T + d))
    # 2048 sequences, a million steps; encoder and decoder, which attends twice and has all its logits
    sizes = {"B": 2048, "T": 512, "V": 32_000, "d": 1024, "h": 128, "d_h": 128, "f": 65_536}
    printed = ATTENTION.format(w="d", norm="5")
    ends = f"2*({ENDS.partition(' + m')[0]}) + T*{ENDS.partition(' + m')[2]}"
    both = parse(f"2*10**6*B*(24*T*(3*({printed}) + 2*({FEED})) + {ends})".replace("T(", "T*("))
    assert number(both, **sizes) == pytest.approx(4.581900124212429e22, rel=1e-12)


# kipply, "Transformer Inference Arithmetic" and "LLM Parameter Counting": 52B, d = 8192, L = 64, in float16.

KIPPLY = {"L": 64, "d": 8192}


def test_kipplys_arithmetic():
    ledger = other.decoding()
    cache_a_token = ledger.formulas["bytes.kv_cache"] / (B * (T + 1))
    assert same(sp.cancel(cache_a_token), published(ledger, "2*2*n_layers*d_model"))
    assert number(sp.cancel(cache_a_token), **KIPPLY) == 2_097_152
    filling = forward_of(ledger, "layers.*.k", "layers.*.v") / B
    assert same(filling, published(ledger, "2*2*n_layers*d_model^2"))
    assert number(filling, **KIPPLY) == 17_179_869_184
    weights = parameters_of(ledger, "layers")
    assert same(weights, published(ledger, "12*n_layers*d_model^2"))
    assert (number(weights, **KIPPLY), number(weights + V * d, V=65_536, **KIPPLY)) == (
        51_539_607_552,
        52_076_478_464,
    )
    assert (
        number(forward_of(ledger, "layers.*.") / B, **KIPPLY) == 103_079_215_104
    )  # 24·L·d², attention to the cache apart


def test_kipplys_forward_leaves_out_attention_and_the_head():
    found = other.decoding().check("forward = 2*12*n_layers*d_model^2 B")
    assert found.verdict == "leading-order"
    assert same(found.difference, 4 * B * L * (T + 1) * d + 2 * B * V * d)
    assert "head" in {term.module for term in found.terms}


# DeepSeek-V2 (2024), table 1: elements cached a token, (d_c + d_r)·l, about 9/2·d_h·l where d_c =
# 4·d_h, d_r = d_h/2.

LATENT = {"L": 60, "h": 128, "d_h": 128, "d_c": 512, "d_r": 64}


@cache
def latent():
    return symacct.derive(str(Path(__file__).parents[1] / "examples" / "deepseek_mla.py"), mode="prefill")


def test_latent_attentions_cache():
    ledger = latent()
    elements = "bytes.kv_cache / (4 B T)"
    assert ledger.check(f"{elements} = (d_c + d_r) L").verdict == "equal"
    given = ["d_c = 4*d_h", "d_h = 2*d_r"]
    assert ledger.check(f"{elements} = 9/2 d_h L", given).verdict == "equal-under"
    assert number(ledger.formulas["bytes.kv_cache"] / 4, B=1, T=1, **LATENT) == 34_560
    all_heads = ledger.check(f"{elements} = 2 h d_h L")  # what multi-head attention caches
    assert (all_heads.verdict, {term.module for term in all_heads.terms}) == ("refuted", {"cache.*"})
    assert number(all_heads.read_as, **LATENT) == 2 * 128 * 128 * 60
