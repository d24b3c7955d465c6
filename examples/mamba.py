"""Mamba-1 without its fused kernel: the selective scan is a loop over time. The head is tied."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 10, "V": 96, "L": 2, "d": 24, "N": 6, "R": 4}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "L": "layers",
    "d": "model width, half of the inner width",
    "N": "state size of a channel",
    "R": "rank of the step size's projection",
}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class Mixer(nn.Module):
    def __init__(self, d, N, R):
        super().__init__()
        inner = 2 * d
        self.inner, self.N, self.R = inner, N, R
        self.in_proj = nn.Linear(d, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel_size=4, groups=inner, padding=3)
        self.x_proj = nn.Linear(inner, R + 2 * N, bias=False)
        self.dt_proj = nn.Linear(R, inner)
        self.A_log = nn.Parameter(torch.arange(1, N + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x):
        T = x.shape[1]
        x, z = self.in_proj(x).split(self.inner, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :T].transpose(1, 2))
        dt, B, C = self.x_proj(x).split([self.R, self.N, self.N], dim=-1)
        y = self.scan(x, F.softplus(self.dt_proj(dt)), B, C)
        return self.out_proj((y + x * self.D) * F.silu(z))

    def scan(self, x, dt, B, C):
        """x and dt have shape (batch, T, inner), B and C (batch, T, N); so has the result that of x."""
        A = -torch.exp(self.A_log)
        state = x.new_zeros(x.shape[0], self.inner, self.N)
        outputs = []
        for t in range(x.shape[1]):
            decay = torch.exp(dt[:, t, :, None] * A)
            state = decay * state + (dt[:, t] * x[:, t])[:, :, None] * B[:, t, None, :]
            outputs.append((state @ C[:, t, :, None]).squeeze(-1))
        return torch.stack(outputs, dim=1)


class Block(nn.Module):
    def __init__(self, d, N, R):
        super().__init__()
        self.norm = RMSNorm(d)
        self.mixer = Mixer(d, N, R)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Mamba(nn.Module):
    def __init__(self, V, L, d, N, R):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Block(d, N, R) for _ in range(L))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, V, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, idx):
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model(V, L, d, N, R):
    return Mamba(V, L, d, N, R)


def inputs(B, T, V):
    return torch.randint(V, (B, T))


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs.flatten())
