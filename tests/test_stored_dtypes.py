"""The dtype in which a config says that weights were released is never passed over in silence."""

from __future__ import annotations

import json

import pytest

from symacct.cli import main
from symacct.variants import variant

pytest.importorskip("transformers")

from symacct.tracing.hf import load_config
from symacct.tracing.variation import of_stored, varied

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}  # as in DeepSeek-V3's config.json


@pytest.fixture
def stored(tmp_path):
    def of(**fields):
        (tmp_path / "config.json").write_text(json.dumps(SMALL | fields))
        return load_config(tmp_path).stored

    return of


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"torch_dtype": "float32"}, ""),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, ""),
        ({"torch_dtype": "bfloat16", "quantization_config": FP8}, "bfloat16, quantized (fp8)"),
        ({"quantization_config": {}}, "quantized (by a method that it does not name)"),
    ],
)
def test_what_a_config_says_of_its_weights(stored, fields, said):
    assert stored(**fields) == said


def test_a_remark_says_so_unless_a_dtype_was_asked_for():
    (remark,) = of_stored("bfloat16", None, variant())
    assert remark == (
        "the config says that weights are stored in bfloat16, and the model is built in float32: "
        "--dtype bf16 derives these bytes"
    )
    assert "--dtype" not in of_stored("bfloat16, quantized (fp8)", None, variant())[0]
    assert of_stored("bfloat16", None, variant("autocast"))
    assert (
        of_stored("", None, variant())
        == of_stored("bfloat16", "fp32", variant())
        == of_stored("bfloat16", None, variant("mixed"))
        == []
    )


def test_the_model_is_built_as_is_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"torch_dtype": "bfloat16"}))
    source = load_config(tmp_path)
    built = {
        dtype: {str(p.dtype) for p in varied(source, variant(), dtype).model(source.dims).parameters()}
        for dtype in (None, "bf16")
    }
    assert built == {None: {"torch.float32"}, "bf16": {"torch.bfloat16"}}


def test_a_stored_graph_asked_for_8_bits_says_what_a_model_file_would(capsys):
    """Its model file would refuse them too, so it is not what is advised."""
    assert main(["plan", "llama", "--card", "a100", "--dtype", "fp8"]) == 2
    said = capsys.readouterr().err
    assert "8 bits does not run" in said and "stored graph" not in said
    assert main(["plan", "llama", "--card", "a100", "--precision", "fp8"]) == 2
    assert "no peak for fp8" in capsys.readouterr().err
