"""Vision Transformer: patches of a square image, a class token, learned positions, pre-norm blocks."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "n": 3, "p": 8, "C": 10, "L": 2, "d": 32, "h": 4, "f": 128}
meanings = {
    "B": "batch size",
    "n": "patches per side, so the image is n*p pixels wide and high",
    "p": "pixels per side of a patch",
    "C": "classes",
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
        B, N, d = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(B, N, d))


class Block(nn.Module):
    def __init__(self, d, h, f):
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.ln2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, f)
        self.down = nn.Linear(f, d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class ViT(nn.Module):
    def __init__(self, n, p, C, L, d, h, f):
        super().__init__()
        self.patch = nn.Conv2d(3, d, kernel_size=p, stride=p)
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.position = nn.Parameter(torch.randn(1, n * n + 1, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, h, f) for _ in range(L))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, C)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x)[:, 0])


def model(n, p, C, L, d, h, f):
    return ViT(n, p, C, L, d, h, f)


def inputs(B, n, p):
    return torch.randn(B, 3, n * p, n * p)


def loss(output, B, C):
    return F.cross_entropy(output, torch.randint(C, (B,)))
