"""BERT's encoder: three embedding tables, post-norm blocks and the pooler over the first token."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 16, "V": 96, "P": 24, "L": 2, "d": 32, "h": 4, "f": 128}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "P": "rows of the position table",
    "L": "layers",
    "d": "model width",
    "h": "attention heads",
    "f": "hidden width of the MLP",
}


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (p(x).view(B, T, self.h, d // self.h).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(B, T, d))


class Block(nn.Module):
    def __init__(self, d, h, f):
        super().__init__()
        self.attn = Attention(d, h)
        self.ln1 = nn.LayerNorm(d)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)
        self.ln2 = nn.LayerNorm(d)

    def forward(self, x):
        x = self.ln1(x + self.attn(x))
        return self.ln2(x + self.down(F.gelu(self.up(x))))


class BERT(nn.Module):
    """Returns the hidden states (B, T, d) and the pooled first token (B, d)."""

    def __init__(self, V, P, L, d, h, f):
        super().__init__()
        self.P = P
        self.token = nn.Embedding(V, d)
        self.position = nn.Embedding(P, d)
        self.segment = nn.Embedding(2, d)
        self.ln = nn.LayerNorm(d)
        self.blocks = nn.ModuleList(Block(d, h, f) for _ in range(L))
        self.pooler = nn.Linear(d, d)

    def forward(self, token, segment):
        T = token.shape[1]
        assert T <= self.P, "sequence longer than the position table"
        position = torch.arange(T, device=token.device)
        x = self.ln(self.token(token) + self.segment(segment) + self.position(position))
        for block in self.blocks:
            x = block(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


def model(V, P, L, d, h, f):
    return BERT(V, P, L, d, h, f)


def inputs(B, T, V):
    return {"token": torch.randint(V, (B, T)), "segment": torch.zeros(B, T, dtype=torch.long)}
