"""The example models against published figures, counted by PyTorch alone on the meta device."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))

GPT2 = {"V": 50257, "T": 1024, "L": 12, "d": 768, "h": 12, "f": 3072}
LLAMA_7B = {"V": 32000, "L": 32, "d": 4096, "h": 32, "h_kv": 32, "d_h": 128, "f": 11008}
LLAMA3_8B = {"V": 128256, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336}
MIXTRAL = {"V": 32000, "L": 32, "d": 4096, "h": 32, "h_kv": 8, "d_h": 128, "f": 14336, "E": 8, "k": 2}
BERT = {"V": 30522, "P": 512, "L": 12, "d": 768, "h": 12, "f": 3072}
T5_SMALL = {"V": 32128, "L": 6, "d": 512, "h": 8, "d_h": 64, "f": 2048}
T5_11B = {"V": 32128, "L": 24, "d": 1024, "h": 128, "d_h": 128, "f": 65536}
VIT_B16 = {"n": 14, "p": 16, "C": 1000, "L": 12, "d": 768, "h": 12, "f": 3072}
MAMBA_130M = {"V": 50280, "L": 24, "d": 768, "N": 16, "R": 48}
MAMBA_2_8B = {"V": 50280, "L": 64, "d": 2560, "N": 16, "R": 160}

PARAMETERS = [
    ("gpt", GPT2, 124_439_808),  # GPT-2 124M: OpenAI's config; llm.c README prints the same count
    ("gpt", GPT2 | {"L": 48, "d": 1600, "h": 25, "f": 6400}, 1_557_611_200),  # GPT-2 1558M
    ("llama", LLAMA_7B, 6_738_415_616),  # Llama 7B: calculate-flops.pytorch README
    ("llama", LLAMA3_8B, 8_030_261_248),  # Llama 3 8B: Meta's config
    ("mixtral", MIXTRAL, 46_702_792_704),  # Mixtral 8x7B: Mistral's config
    ("bert", BERT, 109_482_240),  # BERT-base uncased: Devlin et al. 2019, with pooler
    ("t5", T5_SMALL, 60_506_624),  # T5-small: Raffel et al. 2020, transformers.T5Config()
    ("t5", T5_11B, 11_307_321_344),  # T5-11B
    ("vit", VIT_B16, 86_567_656),  # ViT-B/16: torchvision weights metadata
    ("resnet50", {"C": 1000, "w": 64}, 25_557_032),  # ResNet-50: torchvision weights metadata
    ("unet", {"C": 2, "w": 64}, 31_030_658),  # Ronneberger et al. 2015, figure 1
    ("mamba", MAMBA_130M, 129_135_360),  # state-spaces/mamba-130m
    ("mamba", MAMBA_2_8B, 2_768_345_600),  # state-spaces/mamba-2.8b
]

FORWARD = [
    # nanoGPT, transformer_sizing.ipynb
    ("gpt", GPT2 | {"B": 1}, 291_648_307_200),
    # calculate-flops.pytorch README: 850.00 GMACs for llama-7b at (1, 128)
    ("llama", LLAMA_7B | {"B": 1, "T": 128}, 2 * 850_000_871_424),
    # torchvision's "GFLOPS" are multiply-adds: 17.564 and 4.089
    ("vit", VIT_B16 | {"B": 1}, 2 * 17_563_828_224),
    ("resnet50", {"B": 1, "H": 224, "W": 224, "C": 1000, "w": 64}, 2 * 4_089_184_256),
]


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(function, values):
    return function(**{name: values[name] for name in inspect.signature(function).parameters})


def apply(net, given):
    return net(**given) if isinstance(given, dict) else net(given)


def parameters(name, sizes):
    with torch.device("meta"):
        return sum(p.numel() for p in call(load(name).model, sizes).parameters())


def forward_flops(name, sizes):
    example = load(name)
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        apply(call(example.model, sizes), call(example.inputs, sizes))
    return counter.get_total_flops()


@pytest.mark.parametrize(("name", "sizes", "published"), PARAMETERS)
def test_parameters_equal_the_published_count(name, sizes, published):
    assert parameters(name, sizes) == published


@pytest.mark.parametrize(("name", "sizes", "published"), FORWARD)
def test_forward_products_equal_the_published_count(name, sizes, published):
    assert forward_flops(name, sizes) == published


def test_latent_attention_has_deepseek_v3s_parameters():
    # DeepSeek-V3's config_671B.json: attention with its two latent norms, 187,107,328 a layer.
    with torch.device("meta"):
        latent = load("deepseek_mla").LatentAttention
        attention = latent(d=7168, h=128, d_h=128, d_r=64, d_v=128, d_c=512, d_q=1536)
    assert sum(p.numel() for p in attention.parameters()) == 187_107_328


def test_lstm_has_four_gates_with_two_biases():
    # PyTorch's definition: 4(d(d + d) + 2d) a layer, beside the table and the head with its bias.
    V, L, d = 1000, 2, 256
    assert parameters("lstm", {"V": V, "L": L, "d": d}) == V * d + L * 4 * (2 * d * d + 2 * d) + d * V + V


def test_mlp_has_two_linear_layers():
    d, f, c = 784, 300, 10
    assert parameters("mlp", {"d": d, "f": f, "c": c}) == d * f + f + f * c + c


def test_mixtral_experts_cost_k_of_them_per_token():
    sizes = MIXTRAL | {"V": 100, "L": 1, "d": 64, "h": 4, "h_kv": 2, "d_h": 16, "f": 96, "B": 2, "T": 16}
    B, T, V, d, f, E, k = (sizes[name] for name in "BTVdfEk")
    wide, narrow = 4 * 16, 2 * 16
    attention = 2 * B * T * d * (2 * wide + 2 * narrow) + 4 * B * T**2 * wide
    experts = 2 * B * T * d * E + k * B * T * 6 * d * f
    assert forward_flops("mixtral", sizes) == attention + experts + 2 * B * T * V * d


@pytest.mark.parametrize("name", NAMES)
def test_example_trains_one_step(name):
    torch.manual_seed(0)
    example = load(name)
    sizes = example.dims
    assert set(example.meanings) == set(sizes)
    net, given = call(example.model, sizes), call(example.inputs, sizes)
    output = apply(net, given)
    if hasattr(example, "loss"):
        loss = call(example.loss, sizes | {"output": output, "inputs": given})
    else:
        loss = sum(part.sum() for part in output)
    loss.backward()
    torch.optim.AdamW(net.parameters()).step()
    assert all(p.grad is not None and p.isfinite().all() for p in net.parameters())
