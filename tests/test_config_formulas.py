"""Formulas derived from Hugging Face configs, at the numbers of published models: parameters exact, depth included."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hf_configs import PUBLISHED

from symacct.account import Ledger
from symacct.expressions import parse
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.hf import load_config

pytest.importorskip("transformers")

# One derivation serves every config of the same class, tied or untied.
MEMBERS = {
    "llama3-8b": ("llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama2-70b", "llama3-70b", "tinyllama-1.1b"),
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
    "t5-small": ("t5-base", "t5-11b"),
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
        numbers = {symbol(size): value for size, value in sources(name).values.items()}
        assert formula.xreplace(numbers) == PUBLISHED[name][1], name
    if first == "llama3-8b":
        assert formula == parse("2*V*d + L*(2*d*h*d_h + 2*d*h_kv*d_h + 3*d*f + 2*d) + d").expand()
    if first == "mixtral-8x7b":  # 12,879,925,248 of 46.7e9 work on one token: the top 2 of 8 experts
        numbers = {symbol(size): value for size, value in sources(first).values.items()}
        assert ledger.formulas["params.active"].xreplace(numbers) == 12_879_925_248
    if first == "qwen3-30b-a3b":
        numbers = {symbol(size): value for size, value in sources(first).values.items()}
        assert ledger.formulas["params.active"].xreplace(numbers) == 3_353_032_704
