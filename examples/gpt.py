"""GPT-2 as nanoGPT writes it: learned positions, pre-norm blocks, biases everywhere but in the tied head."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 16, "V": 96, "L": 2, "d": 32, "h": 4, "f": 128}
meanings = {
    "B": "batch size",
    "T": "sequence length, also the rows of the position table",
    "V": "vocabulary size",
    "L": "layers",
    "d": "model width",
    "h": "attention heads",
    "f": "hidden width of the MLP",
}


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (y.view(B, T, self.h, d // self.h).transpose(1, 2) for y in self.qkv(x).split(d, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, d))


class MLP(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, d, h, f):
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.ln2 = nn.LayerNorm(d)
        self.mlp = MLP(d, f)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, V, T, L, d, h, f):
        super().__init__()
        self.wte = nn.Embedding(V, d)
        self.wpe = nn.Embedding(T, d)
        self.blocks = nn.ModuleList(Block(d, h, f) for _ in range(L))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, V, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def model(V, T, L, d, h, f):
    return GPT(V, T, L, d, h, f)


def inputs(B, T, V):
    return torch.randint(V, (B, T))


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs.flatten())
