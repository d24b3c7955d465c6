"""More of `bug_cases`: backward passes, dtypes, branches and inputs of many forms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from bug_cases import ATTENTION, CASES, case
from small_models import Attention, Call, randn
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES"]

MLP = 2 * 4 * 16 * 32 + 2 * 4 * 32 * 8


def mlp(middle=None, frozen=None):
    model = nn.Sequential(nn.Linear(16, 32), middle or nn.ReLU(), nn.Linear(32, 8))
    if frozen is not None:
        model[frozen].requires_grad_(False)
    return model, (randn(4, 16),)


# Epoch AI: https://epochai.org/blog/backward-forward-FLOP-ratio
@case("BP-55", "no input gradient", "pytorch/pytorch/issues/69782", 808, MLP, step=14_336, step_dx=18_432)
def plain():
    return mlp()


@case(
    "BP-56", "frozen below", "Lyken17/pytorch-OpCounter/issues/194", 808, MLP, trainable=264, step=8192
)
def frozen_first():
    return mlp(frozen=0)


@case(
    "BP-56b", "frozen above", "Lyken17/pytorch-OpCounter/issues/194", 808, MLP, trainable=544, step=12_288
)
def frozen_last():
    return mlp(frozen=2)


class Checkpointed(nn.Module):
    """Three MLPs, each of them recomputed in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)
        )

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


@case(
    "BP-58", "checkpointing", "deepspeedai/DeepSpeed/pull/3362",
    3216, 3 * (2 * 4 * 16 * 32 + 2 * 4 * 32 * 16), step_dx=3 * 24_576,
)  # fmt: skip
def checkpointed():
    return Checkpointed(reentrant=False), (randn(4, 16),)


@case("BP-59", "fused attention, trained", "pytorch/pytorch/pull/195801", 4096, ATTENTION, step=786_432)
def fused_block():
    return Attention(32, 4, "fused"), (randn(2, 16, 32),)


@case("BP-64", "the same in bfloat16", "Dao-AILab/flash-attention/issues/899", 4096, ATTENTION, step=786_432)
def fused_block_half():
    return Attention(32, 4, "fused").bfloat16(), (randn(2, 16, 32, dtype=torch.bfloat16),)


@case("BP-65", "a norm alone", "cli99/llm-analysis/issues/18", 32, 0, step=0)
def norm():
    return nn.LayerNorm(16), (randn(4, 16),)


@case("BP-67", "LeakyReLU between", "pytorch/pytorch/issues/63027", 808, MLP, step=14_336)
def leaky():
    return mlp(nn.LeakyReLU())


class Packed(nn.Module):
    """A linear layer whose 4-bit weights lie two in a byte."""

    def __init__(self, i, o):
        super().__init__()
        self.o, self.i = o, i
        packed = torch.randint(0, 256, (o * i // 2, 1), dtype=torch.uint8)
        self.packed = nn.Parameter(packed, requires_grad=False)

    def forward(self, x):
        weight = torch.cat([self.packed & 15, self.packed >> 4], 1)
        return F.linear(x, weight.reshape(self.o, self.i).to(x.dtype) - 8)


@case(
    "BP-75", "packed weights", "bitsandbytes-foundation/bitsandbytes/issues/834",
    1024, 2 * 3 * 32 * 64, trainable=0,
)  # fmt: skip
def packed():
    return Packed(32, 64), (randn(3, 32),)


@case("BP-81", "half-width weights", "huggingface/accelerate/issues/3379", 1_000_000, 2 * 1000 * 1000)
def half_width():
    return nn.Linear(1000, 1000, bias=False).bfloat16(), (randn(1, 1000, dtype=torch.bfloat16),)


@case("BP-97", "a branch on a parameter's shape", "pytorch/pytorch/issues/61733", 15, 2 * 10 * 5 * 3)
def static_branch():
    def f(m, x):
        y = torch.mm(x, m.p)
        return y if m.p.shape[0] < 10 else torch.relu(y)

    return Call(f, p=nn.Parameter(randn(5, 3))), (randn(10, 5),)


@case("BP-98", "rows that a mask picks", "pytorch/pytorch/issues/180202", 20, 2 * 3 * 4 * 4)
def masked_rows():
    x = randn(5, 4)
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    return Call(lambda m, x: m.inner(x[x[:, 0] > 0]), inner=nn.Linear(4, 4)), (x,)


@case("BP-102", "keyword inputs, one of them a dict", "open-mmlab/mmengine/pull/1065", 20, 2 * 2 * 4 * 4)
def keywords():
    def f(m, x, mask=None, *, scale=1.0, extra=None):
        y = m.inner(x) * scale
        if mask is not None:
            y = y * mask
        return y + extra["bias"] if extra else y

    inputs = {"x": randn(2, 4), "mask": torch.ones(2, 4), "scale": 2.0, "extra": {"bias": torch.zeros(4)}}
    return Call(f, inner=nn.Linear(4, 4)), inputs
