"""Small models that published counters got wrong, with the right figures and the thread that reports them.

FLOPs are 2 per multiply-add of matrix products and convolutions alone; a convolution counts every tap, also those
on padding; attention counts the full square. `forward` is for the whole batch. Each figure is written as the
product of sizes that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from small_models import Attention, Call, linear, randn
from torch import nn

GITHUB = "https://github.com/"
CASES: list[Case] = []


@dataclass(frozen=True)
class Case:
    """`step`: forward and backward; `step_dx`: the same where floating inputs require grad."""

    id: str
    what: str
    link: str
    build: Callable
    params: int
    forward: int
    trainable: int | None = None
    step: int | None = None
    step_dx: int | None = None


def case(id, what, thread, params, forward, **more):
    """Register the decorated function: () -> (module, inputs)."""

    def register(build):
        CASES.append(Case(id, what, GITHUB + thread, build, params, forward, **more))
        return build

    return register


def found(id: str) -> Case:
    return next(c for c in CASES if c.id == id)


def heads(grad=False, h=4):
    return randn(2, h, 16, 8, grad=grad)


# Ops that counters did not know


@case("BP-01", "fused attention on CPU", "pytorch/pytorch/issues/195460", 0, 4 * 2 * 4 * 16 * 16 * 8)
def fused_attention():
    return Call(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v)), (heads(), heads(), heads())


@case(
    "BP-03", "functional convolution on a raw parameter", "sovrasov/flops-counter.pytorch/issues/59",
    296, 2 * 2 * 64 * 8 * 27 + 2 * 2 * 8 * 10, step=2 * 55_616 + 320,
)  # fmt: skip
def functional():
    def f(m, x):
        return F.linear(F.conv2d(x, m.w, padding=1).mean((2, 3)), m.v)

    return Call(f, w=nn.Parameter(randn(8, 3, 3, 3)), v=nn.Parameter(randn(10, 8))), (randn(2, 3, 8, 8),)


ATTENTION = 2 * 32 * 32 * 96 + 2 * (2 * 2 * 4 * 16 * 16 * 8) + 2 * 32 * 32 * 32


@case("BP-04", "attention by @", "autoliuweijie/FastBERT/issues/14", 4096, ATTENTION, step=786_432)
def written_attention():
    return Attention(32, 4), (randn(2, 16, 32),)


@case(
    "BP-05", "einsum, operands also in a list", "Lyken17/pytorch-OpCounter/issues/174",
    0, 2 * (2 * 2 * 4 * 16 * 16 * 8) + 2 * 2 * 3 * 4,
)  # fmt: skip
def einsums():
    def f(m, q, k, v, a, b):
        p = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", [p, v]), torch.einsum("bnc,bnc->bn", a, b)

    return Call(f), (heads(), heads(), heads(), randn(2, 3, 4), randn(2, 3, 4))


@case("BP-07", "nn.LSTM", "facebookresearch/fvcore/issues/98", 2560, 2 * 4 * 20 * (10 + 20) * 5 * 3)
def lstm():
    return nn.LSTM(10, 20), (randn(5, 3, 10),)


@case(
    "BP-09", "baddbmm, addbmm, addmv", "facebookresearch/fvcore/issues/117",
    0, 2 * (2 * 2 * 3 * 4 * 5) + 2 * 4 * 8,
)  # fmt: skip
def added_products():
    def f(m, c, a, b, d, e, x, v):
        return torch.baddbmm(c, a, b).sum() + torch.addbmm(d, a, b).sum() + torch.addmv(e, x, v).sum()

    shapes = ((2, 3, 5), (2, 3, 4), (2, 4, 5), (3, 5), (4,), (4, 8), (8,))
    return Call(f), tuple(randn(*shape) for shape in shapes)


@case(
    "BP-10", "products by rank: vectors, broadcast batches", "deepspeedai/DeepSpeed/pull/8419",
    0, 2 * 8 + 2 * 4 * 8 + 2 * (2 * 3) * 4 * 8 * 5,
)  # fmt: skip
def ranks():
    def f(m, a, b, matrix, x, y):
        return (a @ b) + (matrix @ b).sum() + (x @ y).sum()

    return Call(f), (randn(8), randn(8), randn(4, 8), randn(2, 1, 4, 8), randn(3, 8, 5))


@case(
    "BP-11", "nn.MultiheadAttention, all of it frozen", "sovrasov/flops-counter.pytorch/issues/101",
    4224, 2 * 20 * 32 * 96 + 4 * 2 * 10 * 10 * 32 + 2 * 20 * 32 * 32, trainable=0, step=189_440,
)  # fmt: skip
def frozen_attention():
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval().requires_grad_(False)
    return Call(lambda m, x: m.attention(x, x, x)[0], attention=attention), (randn(2, 10, 32),)


@case("BP-12", "under inference_mode", "pytorch/pytorch/issues/126268", 224, 2 * 8 * 6 * 6 * 27)
def plain_convolution():
    return nn.Conv2d(3, 8, 3), (randn(1, 3, 8, 8),)


class Scan(nn.Module):
    """A selective scan written as a loop: state h (B, D, N) ← exp(A)·h + x·b, read out by Σₙ h·c."""

    def __init__(self, D, N):
        super().__init__()
        self.A, self.bc = nn.Parameter(-torch.ones(D, N)), linear(D, 2 * N)

    def forward(self, x):
        B, T, D = x.shape
        N = self.A.shape[1]
        bc, h, out = self.bc(x), x.new_zeros(B, D, N), []
        for t in range(T):
            h = torch.exp(self.A) * h + x[:, t, :, None] * bc[:, t, None, :N]
            out.append((h * bc[:, t, None, N:]).sum(-1))
        return torch.stack(out, 1)


@case("BP-15", "a scan: products apart from the rest", "state-spaces/mamba/issues/110", 36, 2 * 2 * 6 * 4 * 6)
def scan():
    return Scan(4, 3), (randn(2, 6, 4),)


# Conventions


@case("BP-16", "one convolution", "facebookresearch/fvcore/issues/69", 1280, 2 * 128 * 126 * 126 * 9)
def wide_convolution():
    return nn.Conv2d(1, 128, 3), (randn(1, 1, 128, 128),)


@case("BP-17", "the batch multiplies", "open-mmlab/mmcv/issues/2936", 110, 2 * 32 * 10 * 10)
def square():
    return nn.Linear(10, 10), (randn(32, 10),)


@case("BP-19", "bias additions", "sovrasov/flops-counter.pytorch/issues/134", 144, 2 * 4 * 8 * 16)
def biased():
    return nn.Linear(8, 16), (randn(4, 8),)


@case(
    "BP-20", "norms and pooling stay out of the headline", "sovrasov/flops-counter.pytorch/issues/94",
    268, 2 * 2 * 64 * 8 * 27 + 2 * 2 * 8 * 4,
)  # fmt: skip
def normed():
    first = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), (randn(2, 3, 8, 8),)


@case("BP-22", "causal attention", "NVIDIA/Megatron-LM/issues/831", 0, 4 * 2 * 4 * 16 * 16 * 8)
def causal():
    def f(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Call(f), (heads(), heads(), heads())


def language_head(tied):
    table, head = nn.Embedding(100, 16), linear(16, 100)
    if tied:
        head.weight = table.weight
    model = Call(lambda m, i: m.head(m.inner(m.table(i))), table=table, inner=nn.Linear(16, 16), head=head)
    return model, (torch.randint(0, 100, (2, 7)),)


@case("BP-24", "a tied head", "huggingface/trl/pull/6709", 1872, 2 * 14 * 16 * 16 + 2 * 14 * 16 * 100)
def tied_head():
    return language_head(tied=True)


@case("BP-24u", "the same, not tied", "huggingface/trl/pull/6709", 3472, 2 * 14 * 16 * 16 + 2 * 14 * 16 * 100)
def own_head():
    return language_head(tied=False)


@case(
    "BP-27", "heads of another width than d/h", "pytorch/torchtitan/issues/1920",
    10_240, 4 * (2 * 16 * 40 * 64) + 4 * 2 * 4 * 8 * 8 * 16,
)  # fmt: skip
def wide_heads():
    def f(m, x):
        b, t, _ = x.shape
        q, k, v = (part(x).view(b, t, 4, 16).transpose(1, 2) for part in (m.q, m.k, m.v))
        return m.o(((q @ k.mT) * 0.25).softmax(-1).matmul(v).transpose(1, 2).reshape(b, t, 64))

    parts = {name: linear(40, 64) for name in "qkv"}
    return Call(f, **parts, o=linear(64, 40)), (randn(2, 8, 40),)


@case("BP-29", "grouped queries", "facebookresearch/xformers/pull/1404", 0, 4 * 2 * 8 * 16 * 16 * 8)
def grouped_queries():
    def f(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return Call(f), (heads(h=8), heads(h=2), heads(h=2))


@case(
    "BP-30", "SwiGLU has three products", "bigscience-workshop/Megatron-DeepSpeed/pull/283",
    6144, 3 * (2 * 10 * 32 * 64), step=3 * 122_880 - 2 * (2 * 10 * 32 * 64),
)  # fmt: skip
def swiglu():
    parts = {"gate": linear(32, 64), "up": linear(32, 64), "down": linear(64, 32)}
    return Call(lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)), **parts), (randn(2, 5, 32),)


# Shared and repeated modules


@case(
    "BP-37", "one layer under two parents", "Lyken17/pytorch-OpCounter/issues/98",
    110, 2 * (2 * 10 * 10), step=400 + 400 + 200,
)  # fmt: skip
def two_parents():
    shared = nn.Linear(10, 10)
    return nn.Sequential(*(Call(lambda m, x: m.inner(x), inner=shared) for _ in range(2))), (randn(1, 10),)


@case("BP-38", "one activation under many parents", "TylerYep/torchinfo/pull/396", 120, 6 * (2 * 4 * 4))
def shared_activation():
    act = nn.ReLU()

    def block():
        parts = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "act": act}
        return Call(lambda m, x: m.act(m.b(m.act(m.a(x)))), **parts)

    return nn.Sequential(block(), block(), block()), (randn(1, 4),)


@case(
    "BP-40", "containers beside their leaves", "TylerYep/torchinfo/issues/39",
    6960, 2 * 16 * 16 * 9 * (8 * 8 + 6 * 6 + 4 * 4),
)  # fmt: skip
def contained():
    return nn.Sequential(*[nn.Conv2d(16, 16, 3) for _ in range(3)]), (randn(1, 16, 10, 10),)


class Again(nn.Module):
    """One layer, called `times` times."""

    def __init__(self, times, d):
        super().__init__()
        self.inner, self.times = nn.Linear(d, d), times

    def forward(self, x):
        for _ in range(self.times):
            x = self.inner(x)
        return x


@case(
    "BP-41", "one layer called ten times", "TylerYep/torchinfo/issues/144",
    72, 10 * (2 * 32 * 8 * 8), step=3 * 40_960 - 4096,
)  # fmt: skip
def again():
    return Again(10, 8), (randn(32, 8),)


@case("BP-42", "the root is a leaf", "ultralytics/thop/pull/116", 280, 2 * 10 * 222 * 222 * 27)
def root_leaf():
    return nn.Conv2d(3, 10, 3), (randn(1, 3, 224, 224),)


@case("BP-46", "compiled", "sovrasov/flops-counter.pytorch/issues/110", 1_000_000, 2 * 1000 * 1000)
def compiled():
    return torch.compile(linear(1000, 1000), backend="eager"), (randn(1, 1000),)


# Convolutions


@case("BP-48", "transposed: input positions", "facebookresearch/fvcore/issues/78", 13, 2 * (2 * 2) * 3 * (2 * 2))
def transposed():
    return nn.ConvTranspose2d(3, 1, 2, stride=2), (randn(1, 3, 2, 2),)


@case("BP-48b", "transposed, 3 × 3 on one pixel", "facebookresearch/fvcore/issues/78", 289, 2 * 32 * 9)
def transposed_pixel():
    return nn.ConvTranspose2d(32, 1, 3), (randn(1, 32, 1, 1),)


@case(
    "BP-49", "transposed, backward", "pytorch/pytorch/issues/119806",
    96, 2 * (2 * 5 * 5) * 4 * 6 * (2 * 2), step=19_200, step_dx=28_800,
)  # fmt: skip
def transposed_backward():
    return nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (randn(2, 4, 5, 5),)


def convolution(i, o, groups):
    return nn.Conv2d(i, o, 3, bias=False, groups=groups)


FIRST = 2 * 24 * 6 * 6 * 27


@case(
    "BP-51", "groups of two, twice", "sovrasov/flops-counter.pytorch/issues/9",
    1080, FIRST + 2 * (2 * 12 * 4 * 4 * 2 * 9),
)  # fmt: skip
def grouped():
    def f(m, x):
        y = m.a(x)
        return torch.cat([m.b(y), m.c(y)], 1)

    parts = {"a": convolution(3, 24, 1), "b": convolution(24, 12, 12), "c": convolution(24, 12, 12)}
    return Call(f, **parts), (randn(1, 3, 8, 8),)


@case("BP-51d", "depthwise", "sovrasov/flops-counter.pytorch/issues/9", 864, FIRST + 2 * 24 * 4 * 4 * 9)
def depthwise():
    return nn.Sequential(convolution(3, 24, 1), convolution(24, 24, 24)), (randn(1, 3, 8, 8),)


@case("BP-53", "interpolation", "deepspeedai/DeepSpeed/issues/4498", 12, 2 * (2 * 8 * 8) * 3 * 4)
def interpolated():
    def f(m, x):
        y = m.c(x)
        bigger = F.interpolate(y, size=(16, 16), mode="bilinear")
        return F.interpolate(y, scale_factor=2, mode="bilinear") + bigger

    return Call(f, c=nn.Conv2d(3, 4, 1, bias=False)), (randn(2, 3, 8, 8),)
