"""Configs of models that read log-mel features: Whisper's encoder hears, its decoder keeps keys of both."""

from __future__ import annotations

import json

import pytest
import sympy as sp
from hf_configs import PUBLISHED

from symacct import cli
from symacct.errors import Unsupported
from symacct.symbols import symbol

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_inference import confirm, derived, narrowed  # noqa: E402

from symacct.tracing.hf import load_config  # noqa: E402

B, S, T = map(symbol, "B S T".split())
TINY = PUBLISHED["whisper-tiny"][0]
SMALL = {"V": 40, "d": 24, "h": 3, "f": 20, "M": 6, "P": 30}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def made(data):
        folder = tmp_path_factory.mktemp("config")
        (folder / "config.json").write_text(json.dumps(data))
        return load_config(folder)

    return made


def test_the_length_of_a_recording_is_the_encoders_positions(load):
    source = load(TINY)
    assert source.values["S"] == 1500 and source.values["M"] == 80
    features = source.inputs({**source.dims, "B": 2})["input_features"]
    assert features.shape == (2, source.dims["M"], 2 * source.dims["S"])  # a convolution of stride 2


def test_a_decoder_keeps_its_own_keys_and_those_of_what_was_heard(load):
    """Two layers of 3 heads of 8; a token has 4 projections, 2 towards the encoder, a feed-forward."""
    source = narrowed(load(TINY), "B T S", SMALL)
    found = {mode: derived(source, mode) for mode in ("prefill", "decode")}
    kept = 2 * 2 * 24 * 4
    assert sp.expand(found["prefill"].formulas["bytes.kv_cache"] - kept * B * (T + S)) == 0
    assert sp.expand(found["decode"].formulas["bytes.kv_cache"] - kept * B * (T + 1 + S)) == 0
    weights = 2 * (6 * 24 * 24 + 2 * 24 * 20) + 24 * 40
    token = 2 * B * weights + 2 * 4 * 24 * B * (T + 1 + S)
    assert sp.expand(found["decode"].formulas["flops.forward"] - token) == 0
    for ledger in found.values():
        confirm(ledger, source, {"B": 2, "S": 9, "T": 7})


def test_a_decoder_of_another_depth_keeps_its_own_layers(load):
    source = narrowed(load(TINY | {"decoder_layers": 2}), "T L_d", SMALL | {"B": 3, "L": 2, "S": 8})
    found = derived(source, "decode")
    assert sp.expand(found.formulas["bytes.kv_cache"] - 2 * 24 * 4 * symbol("L_d") * 3 * (T + 1 + 8)) == 0
    confirm(found, source, {"T": 6, "L_d": 4})


def test_training_steps_through_both(load):
    """Products of a forward pass by hand; the backward is its double, less the gradient of the features."""
    source = narrowed(load(TINY), "B T S", SMALL)
    found = derived(source, "train").formulas
    heard = 2 * S * 6 * 24 * 3 + S * 24 * 24 * 3  # 2S frames of 6 bins, then S positions, kernels of 3
    encoder = 2 * (S * (4 * 24 * 24 + 2 * 24 * 20) + 2 * S**2 * 24)
    decoder = 2 * (T * (6 * 24 * 24 + 2 * 24 * 20) + S * 2 * 24 * 24 + 2 * (T**2 + S * T) * 24) + T * 24 * 40
    forward = 2 * B * (heard + encoder + decoder)
    assert sp.expand(found["flops.forward"] - forward) == 0
    assert sp.expand(found["flops.backward"] - (2 * forward - 2 * B * 2 * S * 6 * 24 * 3)) == 0
    assert found["params.total"] - found["params.trainable"] == S * 24  # sinusoids


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"architectures": ["ViTForImageClassification"], "model_type": "vit"}, "reads pixel_values"),
        ({"architectures": ["Wav2Vec2ForCTC"], "model_type": "wav2vec2"}, "reads input_values"),
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "reads input_ids and pixel_values"),
    ],
)
def test_other_models_of_pictures_or_sound_are_refused(load, data, words):
    with pytest.raises(Unsupported, match=words):
        load(data)


def test_the_command_line_takes_such_a_config(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    words = ["--mode", "decode", "--at", "B=1,T=447", "--format", "json"]
    assert cli.main(["derive", str(tmp_path), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    # 4 layers, keys and values of 384 in 4 bytes: 448 tokens of the text and 1500 positions of the recording
    assert found["values"]["bytes.kv_cache"] == 4 * 2 * 384 * 4 * (448 + 1500)
