"""Formulas derived from Hugging Face configs, at the numbers of published models, depth included."""

from __future__ import annotations

import json
from functools import cache

import pytest
import sympy as sp
from hf_configs import PUBLISHED

from symacct import derive
from symacct.account import Ledger
from symacct.expressions import parse
from symacct.graph import total_over
from symacct.symbols import symbol
from symacct.testing import assert_formula
from symacct.tracing.build import Builder
from symacct.tracing.hf import load_config

pytest.importorskip("transformers")

# One derivation serves every config of the same class, tied or untied.
MEMBERS = {
    "llama3-8b": (
        "llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama2-70b", "llama3-70b", "tinyllama-1.1b",
    ),
    "llama3.2-1b": (),
    "mistral-7b-v0.1": (),
    "mixtral-8x7b": (),
    "qwen2.5-7b": ("qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b"),
    "qwen2.5-0.5b": ("qwen2.5-1.5b", "qwen2.5-3b"),
    "qwen3-8b": ("qwen3-14b", "qwen3-32b"),
    "qwen3-0.6b": ("qwen3-1.7b", "qwen3-4b"),
    "qwen3-30b-a3b": (),
    "gemma-2b": ("gemma-7b",),
    "gemma2-2b": ("gemma2-9b",),
    "gpt2": ("gpt2-medium", "gpt2-large", "gpt2-xl"),
    "bert-base-uncased, bare": ("bert-large-uncased, bare",),
    "t5-small": ("t5-base", "t5-11b"),
    "deepseek-v2": (),
    "deepseek-v3": (),
    "mamba-130m": ("mamba-2.8b",),
    "rwkv-169m": ("rwkv-430m", "rwkv-1b5"),
}  # fmt: skip
# Parameters that work on one token: k of E experts, the shared ones, and everything else.
ACTIVE = {
    "mixtral-8x7b": 12_879_925_248,  # the top 2 of 8; Mistral rounds to 12.9 B
    "qwen3-30b-a3b": 3_353_032_704,  # 8 of 128; "A3B"
    "deepseek-v2": 21_375_800_320,  # 6 of 160 and 2 shared; 21 B in the report, section 3.1.2
    # 8 of 256 and 1 shared; 37 B in the README. The 58·256 biases of the routing are no parameters here.
    "deepseek-v3": 37_552_297_472 - 58 * 256,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    @cache
    def load(name):
        folder = tmp_path_factory.mktemp("config")
        (folder / "config.json").write_text(json.dumps(PUBLISHED[name][0]))
        return load_config(folder)

    return load


@pytest.mark.parametrize("first", MEMBERS)
def test_the_formula_gives_the_published_count_of_each_model_of_its_class(first, sources):
    ledger = Ledger(Builder(sources(first), "forward", "cuda").graph(first))
    formula = ledger.formulas["params.total"]
    for name in (first, *MEMBERS[first]):
        assert at(formula, sources(name).values) == PUBLISHED[name][1], name
    if first == "llama3-8b":
        assert formula == parse("2*V*d + L*(2*d*h*d_h + 2*d*h_kv*d_h + 3*d*f + 2*d) + d").expand()
    if first in ACTIVE:
        assert at(ledger.formulas["params.active"], sources(first).values) == ACTIVE[first]
    if first == "mamba-130m":  # the config holds R itself, ceiling(d/16)
        inner = parse("d*2*f + 4*f + f + f*(R + 2*N) + R*f + f + f*N + f + f*d + d")
        assert formula == sp.expand(parse("V*d + d") + symbol("L") * inner)
    if first == "rwkv-169m":
        rwkv(ledger)
    if first == "deepseek-v3":
        activated(ledger, sources(first).values)


def rwkv(ledger):
    """Peng et al. 2023, section 4.2: 2VD + 13D²L + D(11L + 4) parameters and 2(VD + 13D²L) FLOPs a token."""
    total, forward = (
        sp.expand(ledger.formulas[key].xreplace({symbol("f"): parse("4*d")}))
        for key in ("params.total", "flops.forward")
    )
    assert total == parse("2*V*d + 13*d**2*L + d*(11*L + 4)").expand()
    assert forward == parse("B*T*2*(V*d + 13*d**2*L)").expand()
    token = {"B": 1, "T": 1, "V": 50277, "d": 768, "L": 12}
    assert at(forward, token) == 261_250_560  # table 2: 2.613e8
    # The text has 2·(2VD + 13D²L), which is so if the lookup is a product with the whole table.
    claim = "forward = B*T*2*(2*V*d + 13*d^2*L)"
    found = assert_formula(ledger, claim, given="f = 4*d", verdict="equal-under")
    assert any("dense lookups" in condition for condition in found.conditions)
    assert {term.module for term in found.terms} == {"rwkv.embeddings"}


def activated(ledger, sizes):
    """DeepSeek-V3's README_WEIGHTS: 36.7 B "including 0.9B for embedding and 0.9B for the output head".

    That is 37.55 B with both; without the input embedding it is 36.63 B, 129,280 rows of 7,168 less.
    """
    known = {**sizes, "B": 1, "T": 1}
    assert ledger.check("params.active = 367*10**8", at=known).verdict == "refuted"
    biases = 58 * 256
    found = ledger.check(f"params.active = 36625618432 - {biases}", at=known)
    assert (found.verdict, found.difference) == ("refuted", 129_280 * 7168)
    assert {term.module for term in found.terms} == {"model.embed_tokens", "lm_head"}
    bare = ledger.check(f"params.active - V*d = 36625618432 - {biases}", at=known)
    assert bare.verdict == "equal-under"


def test_the_parts_of_llama_3_70b():
    """The parts in jax-ml/scaling-book, "Training LLaMA 3 on TPUs", which leaves out the norms."""
    parts = {"mlp": 56_371_445_760, "attn": 12_079_595_520, "table": 2_101_346_304, "norm": 161 * 8192}
    sizes = {"V": 128256, "L": 80, "d": 8192, "h": 64, "h_kv": 8, "d_h": 128, "f": 28672}
    found = dict.fromkeys(parts, 0)
    for place in derive("llama").graph.sources("parameter"):
        part = next((name for name in parts if name in place.node.module), "table")
        found[part] += at(total_over(place.node.outputs[0].numel, place.loops), sizes)
    assert found == parts
    assert sum(parts.values()) - parts["norm"] == 70_552_387_584


def test_gpt3_has_the_parameters_that_its_compute_table_rounds():
    """Brown et al. 2020, tables 2.1 and D.1: 174,600 M parameters, 3.14e23 FLOPs for 300 B tokens."""
    sizes = {"V": 50257, "T": 2048, "L": 96, "d": 12288, "h": 96, "f": 4 * 12288}
    total = at(derive("gpt2").formulas["params.total"], sizes)
    assert total == 174_604_259_328
    assert f"{float(6 * total * 300 * 10**9):.2e}" == "3.14e+23"


@pytest.mark.parametrize(
    ("target", "sizes", "a_token", "tokens", "flops", "days"),
    [
        # Brown et al. 2020, table D.1; a petaflop/s-day is 8.64e19. Its parameters are rounded to millions.
        ("gpt2", "V=50257 T=2048 L=96 d=12288 f=49152", 6, 300e9, "3.14e+23", 3637.5),
        ("gpt2", "V=50257 T=2048 L=40 d=5120 f=20480", 6, 300e9, "2.31e+22", 267.7),
        # Meta 2024, section 3.2: 405 B parameters, 15.6 T tokens, 3.8e25 FLOPs
        ("llama", "V=128256 L=126 d=16384 h=128 h_kv=8 d_h=128 f=53248", 6, 15.6e12, "3.80e+25", None),
    ],
)
def test_published_budgets_are_six_flops_a_parameter_and_token(target, sizes, a_token, tokens, flops, days):
    values = {name: int(number) for name, number in (pair.split("=") for pair in sizes.split())}
    total = at(derive(target).formulas["params.total"], values)
    budget = a_token * int(total) * int(tokens)
    assert f"{budget:.2e}" == flops
    if days is not None:
        assert budget / 8.64e19 == pytest.approx(days, rel=5e-3)
    if target == "llama":
        assert total == 405_853_388_800
        assert budget == 37_987_877_191_680_000_000_000_000
        assert 6 * 405e9 * tokens == pytest.approx(3.7908e25, rel=1e-12)


def test_t5s_budget_takes_half_of_its_parameters_a_token():
    """Brown et al. 2020, table D.1: 3 FLOPs a parameter and token of an encoder and decoder, 1e12 tokens."""
    sizes = {"V": 32128, "L": 24, "d": 1024, "h": 128, "d_h": 128, "f": 65536}
    total = at(derive("t5").formulas["params.total"], sizes)
    assert total == 11_307_321_344
    assert 3 * 11_000 * 10**6 * 10**12 == 33_000 * 10**18  # as printed, of 11,000 M parameters: 3.30E+22
    assert pytest.approx(381.9, abs=0.05) == 33_000 * 10**18 / 8.64e19
    assert 3 * int(total) * 10**12 / 3.30e22 == pytest.approx(1.028, abs=5e-4)


def at(formula, values):
    return formula.xreplace({symbol(size): value for size, value in values.items()})
