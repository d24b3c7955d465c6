"""T5 v1.0: encoder and decoder with relative position biases, RMSNorm, no bias terms, one tied embedding."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "S": 20, "T": 12, "V": 96, "L": 2, "d": 32, "h": 3, "d_h": 8, "f": 80}
meanings = {
    "B": "batch size",
    "S": "encoder length",
    "T": "decoder length",
    "V": "vocabulary size",
    "L": "layers of the encoder, and as many of the decoder",
    "d": "model width",
    "h": "attention heads",
    "d_h": "head width",
    "f": "hidden width of the MLP",
}

BUCKETS, FARTHEST = 32, 128


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class RelativeBias(nn.Module):
    """One learned number per head and distance bucket: exact when near, logarithmic when far."""

    def __init__(self, h, causal):
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(BUCKETS, h)

    def forward(self, T, device):
        place = torch.arange(T, device=device)
        bias = self.table(self.bucket(place - place[:, None])).permute(2, 0, 1)
        if self.causal:
            bias = bias + torch.full((T, T), -torch.inf, dtype=bias.dtype, device=device).triu(1)
        return bias

    def bucket(self, offset):
        count = BUCKETS if self.causal else BUCKETS // 2
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        near = count // 2
        scale = (count - near) / math.log(FARTHEST / near)
        far = near + (torch.log(distance.clamp(min=near) / near) * scale).long()
        bucket = torch.where(distance < near, distance, far.clamp(max=count - 1))
        return bucket if self.causal else bucket + count * (offset > 0)


class Attention(nn.Module):
    def __init__(self, d, h, d_h):
        super().__init__()
        self.d_h = d_h
        self.q = nn.Linear(d, h * d_h, bias=False)
        self.k = nn.Linear(d, h * d_h, bias=False)
        self.v = nn.Linear(d, h * d_h, bias=False)
        self.o = nn.Linear(h * d_h, d, bias=False)

    def forward(self, x, source, bias=None):
        q, k, v = (
            p(y).unflatten(-1, (-1, self.d_h)).transpose(1, 2)
            for p, y in ((self.q, x), (self.k, source), (self.v, source))
        )
        score = q @ k.transpose(2, 3)
        if bias is not None:
            score = score + bias
        return self.o((score.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, d, h, d_h, f, cross):
        super().__init__()
        self.norm1 = RMSNorm(d)
        self.attn = Attention(d, h, d_h)
        if cross:
            self.norm2 = RMSNorm(d)
            self.cross = Attention(d, h, d_h)
        self.norm3 = RMSNorm(d)
        self.up = nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x, bias, memory=None):
        y = self.norm1(x)
        x = x + self.attn(y, y, bias)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory)
        return x + self.down(F.relu(self.up(self.norm3(x))))


class Stack(nn.Module):
    def __init__(self, L, d, h, d_h, f, decoder):
        super().__init__()
        self.bias = RelativeBias(h, causal=decoder)
        self.blocks = nn.ModuleList(Block(d, h, d_h, f, cross=decoder) for _ in range(L))
        self.norm = RMSNorm(d)

    def forward(self, x, memory=None):
        bias = self.bias(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, bias, memory)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, V, L, d, h, d_h, f):
        super().__init__()
        self.d = d
        self.embed = nn.Embedding(V, d)
        self.encoder = Stack(L, d, h, d_h, f, decoder=False)
        self.decoder = Stack(L, d, h, d_h, f, decoder=True)

    def forward(self, source, target):
        y = self.decoder(self.embed(target), self.encoder(self.embed(source)))
        return F.linear(y / math.sqrt(self.d), self.embed.weight)


def model(V, L, d, h, d_h, f):
    return T5(V, L, d, h, d_h, f)


def inputs(B, S, T, V):
    return {"source": torch.randint(V, (B, S)), "target": torch.randint(V, (B, T))}


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs["target"].flatten())
