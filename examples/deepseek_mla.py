"""A dense DeepSeek-V2/V3: multi-head latent attention with SwiGLU MLPs.

Queries pass through a latent of width d_q; keys and values share one of width d_c. A head's query and key
have a part of width d_h without positions and one of width d_r with rotary positions; the latter part of
the key is common to all heads.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 12, "V": 96, "L": 2, "d": 32, "h": 3, "f": 80}
dims |= {"d_h": 10, "d_r": 4, "d_v": 12, "d_c": 18, "d_q": 24}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "L": "layers",
    "d": "model width",
    "h": "attention heads",
    "d_h": "head width without positions",
    "d_r": "rotary width",
    "d_v": "value width",
    "d_c": "key-value latent width",
    "d_q": "query latent width",
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


class LatentAttention(nn.Module):
    def __init__(self, d, h, d_h, d_r, d_v, d_c, d_q):
        super().__init__()
        self.h, self.d_h, self.d_r, self.d_v, self.d_c, self.d_kv = h, d_h, d_r, d_v, d_c, d_h + d_v
        self.q_down = nn.Linear(d, d_q, bias=False)
        self.q_norm = RMSNorm(d_q)
        self.q_up = nn.Linear(d_q, h * (d_h + d_r), bias=False)
        self.kv_down = nn.Linear(d, d_c + d_r, bias=False)
        self.kv_norm = RMSNorm(d_c)
        self.kv_up = nn.Linear(d_c, h * (d_h + d_v), bias=False)
        self.o = nn.Linear(h * d_v, d, bias=False)

    def forward(self, x, cos, sin, past, kept):
        (B, T, _), S = x.shape, past + x.shape[1]
        q = self.q_up(self.q_norm(self.q_down(x))).view(B, T, self.h, self.d_h + self.d_r).transpose(1, 2)
        q, q_rotary = q.split([self.d_h, self.d_r], dim=-1)
        c, k_rotary = self.kv_down(x).split([self.d_c, self.d_r], dim=-1)
        kv = self.kv_up(*joint(kept, c=self.kv_norm(c))).view(B, S, self.h, self.d_kv).transpose(1, 2)
        k, v = kv.split([self.d_h, self.d_v], dim=-1)
        k_rotary = joint(kept, r=rotate(k_rotary, cos, sin))[0].unsqueeze(1).expand(B, self.h, S, self.d_r)
        q = torch.cat((q, rotate(q_rotary, cos, sin)), dim=-1)
        k = torch.cat((k, k_rotary), dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=not past)
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
    def __init__(self, d, h, d_h, d_r, d_v, d_c, d_q, f):
        super().__init__()
        self.norm1 = RMSNorm(d)
        self.attn = LatentAttention(d, h, d_h, d_r, d_v, d_c, d_q)
        self.norm2 = RMSNorm(d)
        self.mlp = MLP(d, f)

    def forward(self, x, cos, sin, past, kept):
        x = x + self.attn(self.norm1(x), cos, sin, past, kept)
        return x + self.mlp(self.norm2(x))


class DeepSeek(nn.Module):
    def __init__(self, V, L, d, h, d_h, d_r, d_v, d_c, d_q, f):
        super().__init__()
        self.d_r = d_r
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Block(d, h, d_h, d_r, d_v, d_c, d_q, f) for _ in range(L))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, idx, cache=None):
        x, past = self.embed(idx), cached(cache)
        cos, sin = rotary(idx.shape[1], self.d_r, x, past)
        for block, kept in zip(self.blocks, cache or [None] * len(self.blocks), strict=True):
            x = block(x, cos, sin, past, kept)
        return self.head(self.norm(x))


def model(V, L, d, h, d_h, d_r, d_v, d_c, d_q, f):
    return DeepSeek(V, L, d, h, d_h, d_r, d_v, d_c, d_q, f)


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
