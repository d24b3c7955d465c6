"""A config.json becomes a model source with the right symbols, sizes, classes and inputs."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sympy as sp
from hf_configs import FAMILIES, PUBLISHED, config, decoder, gpt2, llama

from symacct.errors import ModelFileError
from symacct.tracing import hf_fields
from symacct.tracing.hf import load_config
from symacct.tracing.source import ModelSource

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def source(tmp_path: Path):
    def load(data: dict[str, Any]) -> ModelSource:
        (tmp_path / "config.json").write_text(json.dumps(data))
        return load_config(tmp_path)

    return load


def parameters(source: ModelSource, **sizes: int) -> int:
    """Parameters of the model at these sizes, counted on the meta device, tied ones once."""
    with torch.device("meta"):
        return sum(p.numel() for p in source.model(source.dims | sizes).parameters())


# Sizes


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configs_own_numbers_give_the_published_parameter_count(source, name):
    data, published = PUBLISHED[name]
    loaded = source(data)
    assert parameters(loaded, **loaded.values) == published


@pytest.mark.parametrize(
    ("name", "symbols"),
    [
        ("llama3-8b", "B T V L d h h_kv d_h f"),
        ("qwen2.5-7b", "B T V L d h h_kv f"),  # no head width of its own: d/h
        ("mistral-7b-v0.1", "B T V L d h h_kv d_h f W"),
        ("mixtral-8x7b", "B T V L d h h_kv d_h f E k"),
        ("qwen3-30b-a3b", "B T V L d h h_kv d_h f_e E k"),  # no dense layer, so f is idle
        ("gemma2-2b", "B T V L d h h_kv d_h f W"),
        ("gpt2", "B T V L d h f P"),
        ("bert-base-uncased, masked", "B T V L d h f P"),
        ("t5-base", "B S T V L d h d_h f"),
        ("opt-125m", "B T V L d h f P"),
        ("falcon-7b", "B T V L d h f"),  # multi-query: one key/value head, whatever num_kv_heads says
        ("mamba-130m", "B T V L d f N R"),
        ("deepseek-v3", "B T V L d h f f_e E k d_q d_c d_r d_n d_v"),
    ],
)
def test_the_usual_fields_become_symbols(source, name, symbols):
    loaded = source(PUBLISHED[name][0])
    assert list(loaded.dims) == symbols.split()
    assert loaded.values.keys() == loaded.dims.keys() - {"B", "S", "T"}
    assert loaded.meanings.keys() == loaded.dims.keys()
    assert loaded.structural == ("L",)


@pytest.mark.parametrize("name", FAMILIES)
def test_example_sizes_are_generic(source, name):
    dims = source(PUBLISHED[name][0]).dims
    sizes = sorted(n for symbol, n in dims.items() if symbol != "L")
    assert all(small < large for small, large in pairwise(sizes))
    assert dims["d"] % dims.get("h", 1) == 0 and dims.get("h", 4) % dims.get("h_kv", 2) == 0
    assert "h" not in dims or dims["d"] // dims["h"] not in sizes
    assert dims.get("k", 1) < dims.get("E", 2)
    assert dims["T"] < dims.get("W", dims["T"] + 1) and dims["T"] <= dims.get("P", dims["T"])
    widths = dims.keys() & {"V", "d", "d_h", "f", "f_e", "d_q", "d_c", "d_r", "d_n", "d_v"}
    assert all(dims[symbol] % 8 == 0 for symbol in widths)


def test_null_fields_mean_what_the_class_makes_of_them(source):
    assert source(gpt2(768, 12, 12) | {"n_inner": None}).values["f"] == 4 * 768
    assert source(llama(32000, 4096, 11008, 32, 32, 32) | {"head_dim": None}).values["d_h"] == 4096 // 32
    mixtral = PUBLISHED["mixtral-8x7b"][0] | {"head_dim": None}
    assert source(mixtral).values["d_h"] == 4096 // 32
    full_queries = PUBLISHED["deepseek-v3"][0] | {"q_lora_rank": None}
    assert "d_q" not in source(full_queries).dims


def test_every_symbol_is_a_size_of_its_own(source):
    loaded = source(llama(32000, 4096, 11008, 32, 32, 32))
    V, L, d, h, g, d_h, f = (loaded.dims[s] for s in ("V", "L", "d", "h", "h_kv", "d_h", "f"))
    # embedding and head; queries, output; keys, values; gated feed-forward; two norms a layer, one at the end
    assert parameters(loaded) == 2 * V * d + L * (2 * d * h * d_h + 2 * d * g * d_h + 3 * d * f + 2 * d) + d


def test_grouped_keys_and_values_are_traced_for_a_config_without_them(source):
    loaded = source(llama(32000, 4096, 11008, 32, 32, 32))
    assert (loaded.values["h_kv"], loaded.values["h"]) == (32, 32)
    assert (loaded.dims["h_kv"], loaded.dims["h"]) == (2, 4)


def test_fields_that_agree_share_a_symbol_and_others_get_their_own(source):
    sides = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("attention_heads", 4), ("ffn_dim", 96))
    }
    bart = config(
        "BartForConditionalGeneration", "bart", vocab_size=100, d_model=64, encoder_layers=3, **sides
    )
    same = source(bart | {"decoder_layers": 3})
    other = source(bart | {"decoder_layers": 2})
    assert "L_d" not in same.dims and same.structural == ("L",)
    assert other.values["L_d"] == 2 and other.structural == ("L", "L_d")


class Kept:
    """Stands in for a model class and keeps the config it is made from."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def forward(self, input_ids: Any) -> None: ...


@pytest.mark.parametrize("name", FAMILIES)
def test_symbolic_sizes_reach_the_constructor_as_they_are(source, name):
    loaded = source(PUBLISHED[name][0])
    blueprint = loaded.model.__self__
    blueprint = replace(blueprint, family=replace(blueprint.family, model_class=Kept))
    sizes = {s: n if s in loaded.structural else sp.Symbol(s, positive=True) for s, n in loaded.dims.items()}
    made = vars(blueprint.model(sizes).config)
    for bound in blueprint.bound:
        if bound.symbol in loaded.dims:
            assert made[bound.attribute] is sizes[bound.symbol]
    if "d_r" in loaded.dims:
        assert made["qk_head_dim"] == sizes["d_n"] + sizes["d_r"]


# Depth


def test_alternating_layers_keep_their_period_at_any_depth(source):
    loaded = source(PUBLISHED["gemma2-2b"][0] | {"layer_types": ["sliding_attention", "full_attention"] * 13})
    assert loaded.periods == {"L": 2}
    with torch.device("meta"):
        module = loaded.model(loaded.dims | {"L": 5})
    assert module.config.layer_types == ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    assert len(module.model.layers) == 5


def test_sparse_layers_at_every_nth_place_have_that_period(source):
    sparse = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 2,
    }
    loaded = source(decoder("Qwen3MoeForCausalLM", "qwen3_moe", 100, 64, 96, 8, 4, 2, **sparse))
    assert loaded.periods == {"L": 2}
    assert {"f", "f_e"} <= loaded.dims.keys()  # dense and sparse layers alternate


def test_examples_are_deep_enough_to_show_every_kind_of_layer(source):
    assert source(PUBLISHED["deepseek-v3"][0]).dims["L"] == 3 + 2  # three dense layers come first
    assert source(PUBLISHED["llama3-8b"][0]).dims["L"] == 2


@pytest.mark.parametrize(
    ("entries", "prefix", "period"),
    [
        ("aaaa", 0, 1),
        ("abab", 0, 2),
        ("ababa", 0, 2),
        ("xaaaa", 1, 1),
        ("aaaaabaaaaabaa", 0, 6),
        ("xxabab", 2, 2),
        ("ab", 1, 1),
    ],
)
def test_a_list_per_layer_is_a_prefix_and_a_period(entries, prefix, period):
    cycle = hf_fields._cycle(list(entries))
    assert (cycle.prefix, cycle.period) == (prefix, period)
    assert cycle.at(len(entries)) == list(entries)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_at_its_example_sizes(source, name):
    loaded = source(PUBLISHED[name][0])
    module = loaded.model(loaded.dims)
    output = module(**loaded.inputs(loaded.dims))
    bare = name in ("bert-base-uncased, bare", "roberta-base")
    loss = output.last_hidden_state.sum() if bare else output.loss
    loss.backward()
    assert torch.isfinite(loss)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_inputs_are_what_the_class_trains_with(source):
    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        made = source(PUBLISHED[name][0]).inputs({"B": 2, "S": 7, "T": 5})
        return {key: tuple(value.shape) for key, value in made.items()}

    assert shapes("gpt2") == {"input_ids": (2, 5), "labels": (2, 5)}
    assert shapes("t5-base") == {"input_ids": (2, 7), "labels": (2, 5)}
    assert shapes("bert-base-uncased, bare") == {"input_ids": (2, 5)}
    assert shapes("bert-base-uncased, pretraining") == {
        "input_ids": (2, 5),
        "labels": (2, 5),
        "next_sentence_label": (2,),
    }


def test_no_input_token_is_padding(source):
    made = source(PUBLISHED["bert-base-uncased, masked"][0]).inputs({"B": 1, "T": 3})
    assert (made["input_ids"] != 0).all()


# Files


def test_a_file_and_its_directory_are_the_same_target(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(gpt2(768, 12, 12)))
    assert load_config(path).dims == load_config(tmp_path).dims


def test_nothing_is_downloaded(source, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    loaded = source(
        gpt2(768, 12, 12) | {"_name_or_path": "openai-community/gpt2", "auto_map": {"AutoModel": "x.Y"}}
    )
    assert parameters(loaded, **loaded.values) == 124439808


def test_without_architectures_the_model_type_names_a_language_model(source):
    def class_of(model_type: str) -> str:
        return source({"model_type": model_type}).model.__self__.family.model_class.__name__

    assert class_of("gpt2") == "GPT2LMHeadModel"
    assert class_of("t5") == "T5ForConditionalGeneration"
    assert class_of("bart") == "BartForConditionalGeneration"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"architectures": ["LLaMAForCausalLM"], "model_type": "llama"}, "did you mean LlamaForCausalLM"),
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean llama"),
        ({}, "without architectures"),
        ({"architectures": "GPT2LMHeadModel", "model_type": "gpt2"}, "must be a list of class names"),
        (config("LlamaForCausalLM", "gpt2"), "takes LlamaConfig"),
        (config("GPT2LMHeadModel", "gpt2", n_embd="wide"), "GPT2Config refuses these fields"),
        ([1], "a config is a JSON object, and this is a list"),
    ],
)
def test_a_wrong_config_says_what_is_wrong(source, data, message):
    with pytest.raises(ModelFileError, match=message):
        source(data)


def test_unreadable_files_are_model_file_errors(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelFileError, match="not JSON"):
        load_config(tmp_path)


def test_numbers_that_a_saved_config_computed_are_computed_again(source):
    saved = PUBLISHED["deepseek-v3"][0] | {"head_dim": 64, "qk_head_dim": 192}
    made = source(saved)
    config = made.model(made.dims).config
    assert (config.head_dim, config.qk_head_dim) == (made.dims["d_r"], made.dims["d_n"] + made.dims["d_r"])


def test_without_transformers_the_message_says_what_to_install(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelFileError, match=r"pip install symacct\[hf\]"):
        source(gpt2(768, 12, 12))
