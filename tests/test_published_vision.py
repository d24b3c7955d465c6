"""Image models traced at symbolic sizes: their formulas at 224 by 224 are the counts that were published.

Counts of multiply-adds ("FLOPs" in these papers) and of parameters are torchvision's, from the metadata of
its weights (`num_params`, `_ops`) if no other source is named; to the unit by torch's FlopCounterMode.
"""

from __future__ import annotations

from functools import cache

import published_compact_vision_models as compact
import published_vision_models as models
import pytest
import sympy as sp
import torch
from torch import nn

import symacct
from symacct.conventions import convention
from symacct.expressions import parse
from symacct.graph import total_over
from symacct.symbols import symbol
from symacct.testing import assert_formula

IMAGES = {"B": 2, "H": 64, "W": 96}
LARGE = {"B": 2, "H": 288, "W": 320}  # room for two poolings by 3 and a stride of 4
WIDE = {"w": 8, "C": 10}
AT_224 = {"B": 1, "H": 224, "W": 224, "C": 1000}

# model: sizes of the trace, its width in the paper, parameters, multiply-adds of an image of 224 by 224
SYMBOLIC = {
    models.resnet18: (IMAGES | WIDE, {"w": 64}, 11_689_512, 1_814_073_344),
    models.vgg16: (IMAGES | WIDE, {"w": 64}, 138_357_544, 15_470_264_320),
    models.alexnet: (LARGE | WIDE, {"w": 64}, 61_100_840, 714_188_480),
    # Howard et al. 2017, table 4: 569 and 4866 million mult-adds, 4.2 and 29.3 million weights
    models.mobilenet: (IMAGES | WIDE, {"w": 32}, 4_209_088, 568_740_352),
    models.full_mobilenet: (IMAGES | WIDE, {"w": 32}, 29_281_120, 4_867_293_184),
}
NUMERIC = {
    models.efficientnet_b0: ((1000,), 5_288_548, 385_814_752),
    models.convnext_tiny: ((96, 1000), 28_589_128, 4_455_531_264),
    models.densenet121: ((32, 1000), 7_978_856, 2_834_161_664),
    models.resnet152: ((64, 1000), 60_192_808, 11_513_626_624),
    compact.resnext50: ((1000,), 25_028_904, 4_230_479_872),
    compact.wide_resnet50: ((1000,), 68_883_240, 11_398_021_120),
    compact.mnasnet: ((1000,), 4_383_312, 314_415_872),
    compact.shufflenet: ((1000,), 2_278_604, 144_907_992),
    compact.squeezenet: ((1000,), 1_248_424, 818_924_576),
    # He et al. 2015, table 1: 3.8, 7.6 and 11.3 × 10⁹, the stride on a stage's first 1 by 1 convolution
    models.resnet50_of_2015: ((64, 1000), 25_557_032, 3_857_973_248),
    models.resnet101_of_2015: ((64, 1000), 44_549_160, 7_570_194_432),
    models.resnet152_of_2015: ((64, 1000), 60_192_808, 11_282_415_616),
}


def named(row):
    return row.__name__


@cache
def forward(model, inputs, *dims):
    return symacct.derive(model=model, inputs=inputs, dims=dict(dims), mode="forward")


def block(model, inputs, **dims):
    return forward(model, inputs, *dims.items())


@cache
def numeric(model, *sizes):
    """One image of 224 by 224, through a model of these sizes."""
    return block(lambda: model(*sizes), lambda: torch.randn(1, 3, 224, 224))


@pytest.mark.parametrize("model", SYMBOLIC, ids=named)
def test_a_formula_gives_the_published_counts(model):
    dims, width, parameters, products = SYMBOLIC[model]
    at = forward(model, models.images, *dims.items()).at(**AT_224, **width)
    assert (at["params.total"], at["flops.forward"]) == (parameters, 2 * products)


@pytest.mark.parametrize("model", NUMERIC, ids=named)
def test_a_model_with_its_own_numbers_has_the_published_counts(model):
    sizes, parameters, products = NUMERIC[model]
    found = numeric(model, *sizes).formulas
    assert (found["params.total"], found["flops.forward"]) == (parameters, 2 * products)


# ResNet-50's step


def test_the_first_convolution_of_a_resnet_has_no_input_gradient():
    """Twice the forward without the gradient of the image: 118,013,952 multiply-adds, an image of two."""
    at = symacct.derive("resnet50").at(**AT_224 | {"B": 2, "w": 64})
    assert at["params.total"] == 25_557_032
    assert at["flops.forward"] == 16_356_737_024 == 2 * 2 * 4_089_184_256
    assert at["flops.backward"] == 32_241_418_240 == 2 * at["flops.forward"] - 2 * 2 * 118_013_952


# Separable convolutions


def test_a_separable_convolution_costs_the_share_that_mobilenet_claims():
    """Howard et al. 2017, equations 2 to 5; an image whose output is D by D."""

    def inputs(B, M, D, K):
        return torch.randn(B, M, D + K - 1, D + K - 1)

    def full(M, N, K):
        return nn.Conv2d(M, N, K, bias=False)

    def separable(M, N, K):
        return nn.Sequential(nn.Conv2d(M, M, K, groups=M, bias=False), nn.Conv2d(M, N, 1, bias=False))

    sizes = {"B": 2, "M": 4, "N": 6, "D": 7, "K": 3}
    one, two = (block(made, inputs, **sizes) for made in (full, separable))
    paper = {"unit": "MAC", "map": {"D_K": "K", "D_F": "D"}}
    assert_formula(one, "flops.forward = B*(D_K*D_K*M*N*D_F*D_F)", **paper)
    assert_formula(two, r"flops.forward = B (D_K D_K M D_F D_F + M N D_F D_F)", **paper)
    ratio = two.formulas["flops.forward"] / one.formulas["flops.forward"]
    assert sp.expand(ratio - parse("1/N + 1/K**2")) == 0
    # The depthwise part alone is the whole only for kernels far wider than the output is deep.
    found = assert_formula(two, "flops.forward = B*D_K^2*M*D_F^2", verdict="leading-order", given=["N << K**2"], **paper)
    assert {term.module for term in found.terms} == {"1"}


# timm's table: what fvcore counts


# model: multiply-adds with norms and pooling, conv, linear and matmul outputs; both 1e9 and 1e6 in the table
TIMM = {  # huggingface/pytorch-image-models, results/benchmark-infer-*.csv; to the unit by fvcore
    models.resnet18: ((64, 1000), 1_819_065_856, "1.82", "2.48"),
    models.resnet50: ((64, 1000), 4_111_512_576, "4.11", "11.11"),
    models.resnet152: ((64, 1000), 11_558_835_200, "11.56", "22.56"),
    models.densenet121: ((32, 1000), 2_865_546_752, "2.87", "6.90"),
    models.convnext_tiny: ((96, 1000), 4_470_437_376, "4.47", "13.44"),
    models.swin_tiny: ((96, 3, 7, 1000), 4_509_194_496, "4.51", "17.06"),
}


def produced(ledger):
    """Elements that convolutions and matrix products write, timm's "activations"."""
    return sum(
        total_over(entry.place.node.outputs[0].numel, entry.place.loops)
        for entry in ledger.entries
        if entry.product != 0
    )


@pytest.mark.parametrize("model", TIMM, ids=named)
def test_timms_convention_gives_timms_table(model):
    sizes, products, gmacs, macts = TIMM[model]
    ledger = numeric(model, *sizes).under(convention("timm"))
    assert ledger.formulas["flops.forward"] == products
    assert f"{products / 1e9:.2f}" == gmacs
    assert f"{int(produced(ledger)) / 1e6:.2f}" == macts


def test_timm_adds_layer_norms_to_a_vit():
    """ViT-B/16: 17.58 in the table, with 5 for each element of 25 norms: 18,912,000 of them."""
    ledger = symacct.derive("vit").under(convention("timm"))
    sizes = {"B": 1, "n": 14, "p": 16, "C": 1000, "L": 12, "d": 768, "h": 12, "f": 3072}
    assert ledger.at(**sizes)["flops.forward"] == 17_582_740_224 == 17_563_828_224 + 18_912_000


@pytest.mark.parametrize(
    ("module", "each"),
    [  # fvcore, nn/jit_handles.py: norm_flop_counter, batchnorm_flop_jit, elementwise_flop_counter
        (lambda: nn.GroupNorm(2, 4), 5),
        (lambda: nn.GroupNorm(2, 4, affine=False), 4),
        (lambda: nn.BatchNorm2d(4), 2),
        (lambda: nn.BatchNorm2d(4, affine=False), 1),
        (lambda: nn.AdaptiveAvgPool2d(1), 1),
        (lambda: nn.AdaptiveAvgPool2d(3), 1),
        (lambda: nn.Upsample(scale_factor=2), 4 * 1),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 4 * 4),
        (nn.ReLU, 0),
    ],
)
def test_what_fvcore_charges_an_element_of_the_image(module, each):
    ledger = block(module, lambda: torch.randn(2, 4, 6, 6)).under(convention("timm"))
    assert ledger.formulas["flops.forward"] == each * 2 * 4 * 6 * 6


# Vision Transformer


def test_vit_follows_its_closed_form():
    """For n tokens, (n-1)·3p²·D + L(12nD² + 2n²D) + 1000·D multiply-adds an image."""
    claim = "flops.forward = B*(n^2*3*p^2*d + L*(12*(n^2+1)*d^2 + 2*(n^2+1)^2*d) + C*d)"
    assert_formula("vit", claim, given="f = 4*d", unit="MAC")
    at = symacct.derive("vit").at(B=1, n=14, p=16, C=1000, L=12, d=768, h=12, f=3072)
    assert (at["params.total"], at["flops.forward"]) == (86_567_656, 2 * 17_563_828_224)


# Swin


def features(B, H, W, C):
    return torch.randn(B, H, W, C)


@pytest.mark.parametrize("shift", [False, True])
def test_attention_in_windows_is_swins_second_equation(shift):
    """Liu et al. 2021, equation 2: 4hwC² + 2M²hwC multiply-adds, shifted or not; a by b windows of M by M."""
    ledger = block(
        lambda C, M: models.WindowAttention(C, 3, M, shift),
        lambda B, a, b, M, C: torch.randn(B, a * M, b * M, C),
        B=2, a=3, b=2, C=12, M=4,
    )  # fmt: skip
    equation = parse("B*(4*H*W*C**2 + 2*M**2*H*W*C)")
    image = {symbol("H"): parse("a*M"), symbol("W"): parse("b*M")}
    assert ledger.formulas["flops.forward"] == sp.expand(2 * equation.xreplace(image))
    assert ledger.at(B=1, a=8, b=8, C=96, M=7)["flops.forward"] == 2 * 145_108_992  # 56 by 56


def test_global_attention_is_swins_first_equation():
    """Liu et al. 2021, equation 1: 4hwC² + 2(hw)²C; the second, for it, lacks the factor hw/M²."""
    ledger = block(models.GlobalAttention, features, B=2, H=12, W=8, C=12, h=3)
    assert_formula(ledger, "flops.forward = B*(4 H W C^2 + 2 (H W)^2 C)", unit="MAC")
    assert ledger.at(B=1, H=56, W=56, C=96, h=3)["flops.forward"] == 2 * 2_003_828_736
    found = assert_formula(ledger, "flops.forward = B*(4HWC^2 + 2*49*HWC)", verdict="refuted", unit="MAC")
    assert found.witness["derived"] != found.witness["claim"]


def test_swin_tiny_is_the_sum_of_its_stages():
    """56 by 56 tokens, halved in three merges; 28,288,354 parameters and 4.491 G, 4.5 G in the paper."""
    found = numeric(models.swin_tiny, 96, 3, 7, 1000).formulas
    products = 48 * 56**2 * 96 + 1000 * 8 * 96
    for k, count in enumerate((2, 2, 6, 2)):
        tokens, width = (56 // 2**k) ** 2, 96 * 2**k
        products += count * (12 * tokens * width**2 + 2 * 7**2 * tokens * width)
        products += 2 * tokens * width**2 if k < 3 else 0
    assert products == 4_490_566_656
    assert (found["params.total"], found["flops.forward"]) == (28_288_354, 2 * products)


# Diffusion transformer

# facebookresearch/DiT, models.py: width, heads, layers; the latents of 256 and 512 pixels are 32 and 64 wide
SIZES = {"XL": (1152, 16, 28), "L": (1024, 16, 24), "B": (768, 12, 12), "S": (384, 6, 12)}
DIT = [  # all parameters, those that train, multiply-adds; counted from that code
    ("XL/2", 32, 675_129_632, 674_834_720, 118_621_421_568),  # 118.64 in the paper, 119 in the README
    ("XL/4", 32, 675_074_432, 675_000_704, 29_043_671_040),
    ("XL/4", 64, 675_295_616, 675_000_704, 118_663_888_896),
    ("XL/8", 32, 675_683_072, 675_664_640, 7_392_411_648),
    ("XL/8", 64, 675_738_368, 675_664_640, 29_086_138_368),
    ("L/2", 32, 458_102_816, 457_840_672, 80_697_622_528),
    ("L/8", 32, 458_594_816, 458_578_432, 5_011_406_848),
    ("B/2", 32, 130_512_416, 130_315_808, 23_005_102_080),
    ("B/4", 32, 130_475_648, 130_426_496, 5_565_186_048),
    ("B/8", 32, 130_881_536, 130_869_248, 1_417_543_680),
    ("S/2", 32, 32_963_360, 32_865_056, 6_055_673_856),
    ("S/4", 32, 32_945_024, 32_920_448, 1_412_579_328),
    ("S/8", 32, 33_148_160, 33_142_016, 357_974_016),
]


def latents(B, n, p):
    return torch.randn(B, 4, n * p, n * p), torch.rand(B), torch.randint(1001, (B,))


def test_dit_follows_its_closed_form():
    """n tokens: 4np²D + 256D + D² + L(12nD² + 2n²D + 6D²) + 2D² + 8np²D multiply-adds."""
    ledger = block(models.DiT, latents, B=2, n=3, p=2, d=16, h=4, L=2)
    tokens = "n^2"
    claim = (
        f"flops.forward = B*(4*{tokens}*p^2*d + 256*d + d^2 + L*(12*{tokens}*d^2 + 2*{tokens}^2*d + 6*d^2)"
        f" + 2*d^2 + 8*{tokens}*p^2*d)"
    ).replace("n^2^2", "n^4")
    assert assert_formula(ledger, claim, unit="MAC").verdict == "equal"
    for name, latent, parameters, trained, products in DIT:
        size, patch = name.split("/")
        d, h, L = SIZES[size]
        at = ledger.at(B=1, n=latent // int(patch), p=int(patch), d=d, h=h, L=L)
        assert at["params.total"] == parameters, name
        assert at["params.trainable"] == trained, name
        assert at["flops.forward"] == 2 * products, name


# A family of any depths


def test_one_formula_counts_every_resnet_by_the_depths_of_its_stages():
    """torchvision's ResNet-50, 101 and 152 from one derivation: each stage's blocks beside its first."""
    ledger = block(
        lambda a, b, c, e: models.resnet(models.bottleneck, 4, (a, b, c, e), 64, 1000),
        lambda: torch.randn(1, 3, 224, 224),
        a=2, b=3, c=4, e=2,
    )  # fmt: skip
    # A further block: 1 by 1, 3 by 3, 1 by 1, four times as wide outside; scales and shifts for each channel.
    blocks = sum(
        (symbol(count) - 1) * (17 * width**2 + 2 * 6 * width)
        for count, width in zip("abce", (64, 128, 256, 512), strict=True)
    )
    total = ledger.formulas["params.total"]
    assert sp.expand(total - blocks - total.xreplace(dict.fromkeys(total.free_symbols, sp.Integer(1)))) == 0
    for depths, parameters, products in (
        ((3, 4, 6, 3), 25_557_032, 4_089_184_256),
        ((3, 4, 23, 3), 44_549_160, 7_801_405_440),
        ((3, 8, 36, 3), 60_192_808, 11_513_626_624),
    ):
        at = ledger.at(**dict(zip("abce", depths, strict=True)))
        assert (at["params.total"], at["flops.forward"]) == (parameters, 2 * products)
