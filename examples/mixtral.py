"""Mixtral: Llama with E SwiGLU experts per layer, of which the router picks k for each token.

Every expert serves B*T*k/E pairs of a token and a choice, which has to be a whole number; pairs beyond
that share are dropped, as in Switch Transformer with capacity factor 1. So no shape depends on the routing,
and the experts' products cost k * B*T * 6*d*f FLOPs forward, as they do without dropping.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 12, "V": 96, "L": 2, "d": 32, "h": 6, "h_kv": 3, "d_h": 8, "f": 80, "E": 4, "k": 2}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "L": "layers",
    "d": "model width",
    "h": "query heads",
    "h_kv": "key and value heads",
    "d_h": "head width",
    "f": "hidden width of an expert",
    "E": "experts per layer",
    "k": "experts per token",
}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotary(T, width, x):
    """Cosines and sines of the rotary angles, each of shape (T, width/2), of x's dtype."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angle = torch.outer(torch.arange(T, device=x.device), frequency)
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

    def forward(self, x, cos, sin):
        q, k, v = (p(x).unflatten(-1, (-1, self.d_h)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        return self.o(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """E SwiGLU MLPs side by side; input and output have shape (E, pairs per expert, d)."""

    def __init__(self, E, d, f):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(E, d, f) * 0.02)
        self.up = nn.Parameter(torch.randn(E, d, f) * 0.02)
        self.down = nn.Parameter(torch.randn(E, f, d) * 0.02)

    def forward(self, x):
        return (F.silu(x @ self.gate) * (x @ self.up)) @ self.down


class MoE(nn.Module):
    def __init__(self, d, f, E, k):
        super().__init__()
        self.E, self.k = E, k
        self.router = nn.Linear(d, E, bias=False)
        self.experts = Experts(E, d, f)

    def forward(self, x):
        B, T, d = x.shape
        score, choice = self.router(x).topk(self.k, dim=-1)
        weight = score.softmax(dim=-1).flatten()
        expert = choice.flatten()
        share = B * T * self.k // self.E
        arrivals = (expert[:, None] == torch.arange(self.E, device=x.device)).long().cumsum(dim=0)
        place = arrivals.gather(1, expert[:, None]).squeeze(1) - 1
        kept = (place < share).unsqueeze(1)
        slot = expert * share + place.clamp(max=share - 1)
        pairs = x.unsqueeze(2).expand(B, T, self.k, d).reshape(B * T * self.k, d)
        queues = torch.zeros_like(pairs).index_add(0, slot, pairs * kept)
        y = self.experts(queues.view(self.E, -1, d)).flatten(0, 1)[slot]
        return (y * kept * weight.unsqueeze(1)).view(B, T, self.k, d).sum(dim=2)


class Block(nn.Module):
    def __init__(self, d, h, h_kv, d_h, f, E, k):
        super().__init__()
        self.norm1 = RMSNorm(d)
        self.attn = Attention(d, h, h_kv, d_h)
        self.norm2 = RMSNorm(d)
        self.moe = MoE(d, f, E, k)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.moe(self.norm2(x))


class Mixtral(nn.Module):
    def __init__(self, V, L, d, h, h_kv, d_h, f, E, k):
        super().__init__()
        self.d_h = d_h
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Block(d, h, h_kv, d_h, f, E, k) for _ in range(L))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, idx):
        x = self.embed(idx)
        cos, sin = rotary(idx.shape[1], self.d_h, x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def model(V, L, d, h, h_kv, d_h, f, E, k):
    return Mixtral(V, L, d, h, h_kv, d_h, f, E, k)


def inputs(B, T, V):
    return torch.randint(V, (B, T))


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs.flatten())
