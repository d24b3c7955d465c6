"""Small modules that several test files derive."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

SPELLINGS = ("fused", "products", "einsum")


class Call(nn.Module):
    """A module that calls `function(self, *inputs, **inputs)`, with the given children and parameters."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def randn(*shape, grad=False, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def linear(i, o):
    return nn.Linear(i, o, bias=False)


def attend(spelling, q, k, v):
    """Softmax attention of (batch, head, position, width), the two products spelled one of three ways."""
    if spelling == "fused":
        return F.scaled_dot_product_attention(q, k, v)
    scale = q.shape[-1] ** -0.5
    if spelling == "products":
        return ((q @ k.transpose(-2, -1)) * scale).softmax(-1) @ v
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


class Attention(nn.Module):
    """Self-attention of width d in h heads, without biases."""

    def __init__(self, d, h, spelling="products"):
        super().__init__()
        self.h, self.spelling = h, spelling
        self.qkv, self.out = linear(d, 3 * d), linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(attend(self.spelling, q, k, v).transpose(1, 2).reshape(b, t, d))


class Projected(nn.Module):
    """Causal self-attention with a projection of its own, biased, for each of q, k, v and the output."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm transformer block with a GELU MLP."""

    def __init__(self, d, h, f, spelling="products"):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, h, spelling), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, f), nn.GELU(), nn.Linear(f, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class LanguageModel(nn.Module):
    """Embedding, L blocks, norm, head."""

    def __init__(self, V, L, d, h, f, spelling="products"):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Block(d, h, f, spelling) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(d), linear(d, V)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
