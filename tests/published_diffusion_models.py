"""The U-Net of Stable Diffusion 1.x (Rombach et al. 2022), written compactly, shaped as its weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

TIME, CONTEXT, HEADS, GROUPS = 1280, 768, 8, 32
WIDTHS = (320, 640, 1280, 1280)


class Residual(nn.Module):
    """Two convolutions, the embedded time added between them."""

    def __init__(self, i, o):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, i), nn.Conv2d(i, o, 3, padding=1)
        self.time = nn.Linear(TIME, o)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, o), nn.Conv2d(o, o, 3, padding=1)
        self.shortcut = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, time, context):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention to the positions themselves, or to the words of a prompt; no bias but the output's."""

    def __init__(self, d, source):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(i, d, bias=False) for i in (d, source, source))
        self.out = nn.Linear(d, d)

    def forward(self, x, source):
        q, k, v = (
            made.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for made in (self.q(x), self.k(source), self.v(source))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """One block on the positions of an image: self-attention, cross-attention, a gated MLP."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.into, self.back = nn.GroupNorm(GROUPS, d), nn.Conv2d(d, d, 1), nn.Conv2d(d, d, 1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d) for _ in range(3))
        self.own, self.cross = Attention(d, d), Attention(d, CONTEXT)
        self.up, self.down = nn.Linear(d, 8 * d), nn.Linear(4 * d, d)

    def forward(self, x, time, context):
        y = self.into(self.norm(x))
        shape = y.shape
        y = y.flatten(2).transpose(1, 2)
        normed = self.norm1(y)
        y = y + self.own(normed, normed)
        y = y + self.cross(self.norm2(y), context)
        value, gate = self.up(self.norm3(y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.back(y.transpose(1, 2).reshape(shape))


class Level(nn.ModuleList):
    """Blocks one after the other, all of which hear of the time and the prompt."""

    def forward(self, x, time, context):
        for block in self:
            x = block(x, time, context)
        return x


class UNet(nn.Module):
    """Latents (B, 4, H, W), sinusoids of the time (B, 320), a prompt (B, words, 768) to noise."""

    def __init__(self):
        super().__init__()
        first, last = WIDTHS[0], WIDTHS[-1]
        self.time = nn.Sequential(nn.Linear(first, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.first = nn.Conv2d(4, first, 3, padding=1)
        self.levels, self.smaller = nn.ModuleList(), nn.ModuleList()
        self.upper, self.larger = nn.ModuleList(), nn.ModuleList()
        kept, i = [first], first
        for k, o in enumerate(WIDTHS):
            for _ in range(2):
                attended = [Transformer(o)] if k < 3 else []
                self.levels.append(Level([Residual(i, o), *attended]))
                i = o
                kept.append(o)
            if k < 3:
                self.smaller.append(nn.Conv2d(o, o, 3, stride=2, padding=1))
                kept.append(o)
        self.middle = Level([Residual(last, last), Transformer(last), Residual(last, last)])
        for k, o in reversed(list(enumerate(WIDTHS))):
            for _ in range(3):
                attended = [Transformer(o)] if k < 3 else []
                self.upper.append(Level([Residual(i + kept.pop(), o), *attended]))
                i = o
            if k:
                self.larger.append(nn.Conv2d(o, o, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(GROUPS, first), nn.Conv2d(first, 4, 3, padding=1)

    def forward(self, x, sinusoids, context):
        time = self.time(sinusoids)
        x = self.first(x)
        kept = [x]
        for k in range(len(WIDTHS)):
            for level in self.levels[2 * k : 2 * k + 2]:
                x = level(x, time, context)
                kept.append(x)
            if k < 3:
                x = self.smaller[k](x)
                kept.append(x)
        x = self.middle(x, time, context)
        for k in range(len(WIDTHS)):
            for level in self.upper[3 * k : 3 * k + 3]:
                x = level(torch.cat([x, kept.pop()], 1), time, context)
            if k < 3:
                x = self.larger[k](F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))
