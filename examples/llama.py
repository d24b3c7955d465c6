"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, an untied head and no biases."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 12, "V": 96, "L": 2, "d": 32, "h": 6, "h_kv": 3, "d_h": 8, "f": 80}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "L": "layers",
    "d": "model width",
    "h": "query heads",
    "h_kv": "key and value heads",
    "d_h": "head width",
    "f": "hidden width of the MLP",
}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotary(T, width, x, past):
    """Cosines and sines of T positions' rotary angles behind `past` others, (T, width/2), of x's dtype."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angle = torch.outer(torch.arange(*((past,) if past else ()), past + T, device=x.device), frequency)
    return angle.cos().to(x), angle.sin().to(x)


def rotate(x, cos, sin):
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, d, h, h_kv, d_h):
        super().__init__()
        self.d_h = d_h
        self.q = nn.Linear(d, h * d_h, bias=False)
        self.k = nn.Linear(d, h_kv * d_h, bias=False)
        self.v = nn.Linear(d, h_kv * d_h, bias=False)
        self.o = nn.Linear(h * d_h, d, bias=False)

    def forward(self, x, cos, sin, past, kept):
        q, k, v = (p(x).unflatten(-1, (-1, self.d_h)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), *joint(kept, k=rotate(k, cos, sin), v=v), is_causal=not past, enable_gqa=True
        )
        return self.o(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.gate = nn.Linear(d, f, bias=False)
        self.up = nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, d, h, h_kv, d_h, f):
        super().__init__()
        self.norm1 = RMSNorm(d)
        self.attn = Attention(d, h, h_kv, d_h)
        self.norm2 = RMSNorm(d)
        self.mlp = MLP(d, f)

    def forward(self, x, cos, sin, past, kept):
        x = x + self.attn(self.norm1(x), cos, sin, past, kept)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, V, L, d, h, h_kv, d_h, f):
        super().__init__()
        self.d_h = d_h
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Block(d, h, h_kv, d_h, f) for _ in range(L))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, idx, cache=None):
        x, past = self.embed(idx), cached(cache)
        cos, sin = rotary(idx.shape[1], self.d_h, x, past)
        for block, kept in zip(self.blocks, cache or [None] * len(self.blocks), strict=True):
            x = block(x, cos, sin, past, kept)
        return self.head(self.norm(x))


def model(V, L, d, h, h_kv, d_h, f):
    return Llama(V, L, d, h, h_kv, d_h, f)


def inputs(B, T, V):
    return torch.randint(V, (B, T))


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs.flatten())


def cached(cache):
    """The tokens in a cache; none without one."""
    return next(iter(cache[0].values())).shape[-2] if cache and cache[0] else 0


def joint(kept, **new):
    """These tensors (…, tokens, width) behind those kept of earlier tokens, if any; then all are kept."""
    if kept is not None:
        new = {name: torch.cat((kept[name], x), dim=-2) if name in kept else x for name, x in new.items()}
        kept.update(new)
    return list(new.values())


def cache(L):
    """Of each layer, what is kept of the tokens so far: nothing."""
    return [{} for _ in range(L)]
