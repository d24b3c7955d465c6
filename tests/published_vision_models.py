"""Published image models, written compactly, as functions of their sizes.

Each follows the paper and the code that its published counts belong to: torchvision's, MobileNet's, DiT's.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def conv(i, o, kernel, stride=1, groups=1, act=nn.ReLU, norm=nn.BatchNorm2d):
    """A convolution that keeps the size but for its stride, with norm and activation."""
    parts = [nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False), norm(o)]
    return nn.Sequential(*parts, *([act()] if act else []))


class Sum(nn.Module):
    """What `body` makes, added to what `shortcut` makes of the same input."""

    def __init__(self, body, shortcut=None, after=None):
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x):
        return self.after(self.body(x) + self.shortcut(x))


def pooled(*features, head):
    """Features, their mean over the image, a classifier."""
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


# He et al. 2015


def basic(i, c, stride, project, first):
    body = nn.Sequential(conv(i, c, 3, stride), conv(c, c, 3, act=None))
    return Sum(body, conv(i, c, 1, stride, act=None) if project else None, nn.ReLU())


def bottleneck(i, c, stride, project, first):
    """The stride is the first convolution's in the paper, the second one's in torchvision ("v1.5")."""
    one, two = (stride, 1) if first else (1, stride)
    body = nn.Sequential(conv(i, c, 1, one), conv(c, c, 3, two), conv(c, 4 * c, 1, act=None))
    return Sum(body, conv(i, 4 * c, 1, stride, act=None) if project else None, nn.ReLU())


def resnet(block, widening, counts, w, C, first=False):
    stages, i = [], w
    for k, count in enumerate(counts):
        c, stride = w * 2**k, 2 if k else 1
        project = k > 0 or widening > 1
        blocks = [block(i, c, stride, project, first)]
        i = widening * c
        blocks += [block(i, c, 1, False, first) for _ in range(count - 1)]
        stages.append(nn.Sequential(*blocks))
    return pooled(conv(3, w, 7, 2), nn.MaxPool2d(3, 2, 1), *stages, head=nn.Linear(i, C))


def resnet18(w, C):
    return resnet(basic, 1, (2, 2, 2, 2), w, C)


def resnet50(w, C):
    return resnet(bottleneck, 4, (3, 4, 6, 3), w, C)


def resnet152(w, C):
    return resnet(bottleneck, 4, (3, 8, 36, 3), w, C)


def resnet50_of_2015(w, C):
    return resnet(bottleneck, 4, (3, 4, 6, 3), w, C, first=True)


def resnet101_of_2015(w, C):
    return resnet(bottleneck, 4, (3, 4, 23, 3), w, C, first=True)


def resnet152_of_2015(w, C):
    return resnet(bottleneck, 4, (3, 8, 36, 3), w, C, first=True)


# Krizhevsky 2014, Simonyan and Zisserman 2014


def classifier(i, C):
    return [nn.Flatten(), nn.Linear(i, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, C)]


def vgg16(w, C):
    features, i = [], 3
    for k, count in enumerate((2, 2, 3, 3, 3)):
        for _ in range(count):
            c = w * min(2**k, 8)
            features += [nn.Conv2d(i, c, 3, padding=1), nn.ReLU()]
            i = c
        features.append(nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(7), *classifier(49 * i, C))


def alexnet(w, C):
    sizes = (
        (3, w, 11, 4, 2),
        (w, 3 * w, 5, 1, 2),
        (3 * w, 6 * w, 3, 1, 1),
        (6 * w, 4 * w, 3, 1, 1),
        (4 * w, 4 * w, 3, 1, 1),
    )
    features = []
    for k, size in enumerate(sizes):
        features += [nn.Conv2d(*size), nn.ReLU(), *([nn.MaxPool2d(3, 2)] if k in (0, 1, 4) else [])]
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(6), *classifier(36 * 4 * w, C))


# Huang et al. 2016


def normed(i, o, kernel):
    return nn.Sequential(
        nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, o, kernel, padding=kernel // 2, bias=False)
    )


class Dense(nn.Module):
    """Each layer reads everything before it and adds g channels."""

    def __init__(self, i, count, g):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(normed(i + k * g, 4 * g, 1), normed(4 * g, g, 3)) for k in range(count)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet121(g, C):
    i = 2 * g
    features = [conv(3, i, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for k, count in enumerate((6, 12, 24, 16)):
        features.append(Dense(i, count, g))
        i = i + count * g
        if k < 3:
            features += [normed(i, i // 2, 1), nn.AvgPool2d(2)]
            i = i // 2
    return pooled(*features, nn.BatchNorm2d(i), nn.ReLU(), head=nn.Linear(i, C))


# Howard et al. 2017; the paper counts weights of convolutions and of the classifier alone


def plain(i, o, kernel, stride=1, groups=1):
    return conv(i, o, kernel, stride, groups, norm=lambda _: nn.Identity())


def separable(i, o, stride=1, kernel=3):
    """Depthwise, then 1 by 1."""
    return nn.Sequential(plain(i, i, kernel, stride, groups=i), plain(i, o, 1))


def mobilenet(w, C, block=separable):
    steps = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *(((16, 1),) * 5), (32, 2), (32, 1))
    widths = [1, *(width for width, _ in steps)]
    blocks = [block(i * w, o * w, s) for (i, o), (_, s) in zip(pairwise(widths), steps, strict=True)]
    return pooled(plain(3, w, 3, 2), *blocks, head=nn.Linear(32 * w, C, bias=False))


def full_mobilenet(w, C):
    """The same with ordinary convolutions in place of separable ones."""
    return mobilenet(w, C, lambda i, o, stride: plain(i, o, 3, stride))


# Tan and Le 2019


class Gate(nn.Module):
    """Channels weighed by a small network on their means."""

    def __init__(self, c, squeezed):
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, c, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.weigh(x)


def inverted(i, o, widening, kernel, stride):
    c = widening * i
    widen = [conv(i, c, 1, act=nn.SiLU)] if widening > 1 else []
    body = nn.Sequential(
        *widen, conv(c, c, kernel, stride, c, nn.SiLU), Gate(c, i // 4), conv(c, o, 1, act=None)
    )
    return Sum(body) if stride == 1 and i == o else body


def efficientnet_b0(C):
    stages = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
    )  # fmt: skip
    features, i = [conv(3, 32, 3, 2, act=nn.SiLU)], 32
    for widening, kernel, stride, o, count in stages:
        for k in range(count):
            features.append(inverted(i, o, widening, kernel, 1 if k else stride))
            i = o
    return pooled(*features, conv(i, 1280, 1, act=nn.SiLU), head=nn.Linear(1280, C))


# Liu et al. 2022


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mixing(nn.Module):
    """Depthwise 7 by 7, then an MLP on every pixel, scaled by channel."""

    def __init__(self, c):
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.mlp = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        self.scale = nn.Parameter(torch.ones(c))

    def forward(self, x):
        return (self.mlp(self.depthwise(x).permute(0, 2, 3, 1)) * self.scale).permute(0, 3, 1, 2)


def convnext(counts, w, C):
    features = [nn.Conv2d(3, w, 4, 4), ChannelNorm(w)]
    for k, count in enumerate(counts):
        features += [Sum(Mixing(w * 2**k)) for _ in range(count)]
        if k < 3:
            features += [ChannelNorm(w * 2**k), nn.Conv2d(w * 2**k, w * 2 ** (k + 1), 2, 2)]
    head = nn.Sequential(nn.LayerNorm(8 * w), nn.Linear(8 * w, C))
    return pooled(*features, head=head)


def convnext_tiny(w, C):
    return convnext((3, 3, 9, 3), w, C)


# Liu et al. 2021


class WindowAttention(nn.Module):
    """Attention of h heads in windows of M by M, biased by relative position; `shift` rolls the image."""

    def __init__(self, C, h, M, shift=False):
        super().__init__()
        self.h, self.M, self.shift = h, M, shift
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.table = nn.Parameter(torch.zeros((2 * M - 1) ** 2, h))

    def forward(self, x):
        B, H, W, C = x.shape
        h, M = self.h, self.M
        by = M // 2
        if self.shift:
            x = torch.roll(x, (-by, -by), (1, 2))
        x = x.view(B, H // M, M, W // M, M, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, M * M, C)
        q, k, v = self.qkv(x).view(-1, M * M, 3, h, C // h).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (C // h) ** -0.5) @ k.transpose(-2, -1) + self.bias(M)
        if self.shift:
            scores = self.masked(scores, H, W, by)
        x = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, M * M, C))
        x = x.view(B, H // M, W // M, M, M, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return torch.roll(x, (by, by), (1, 2)) if self.shift else x

    def bias(self, M):
        at = torch.arange(M)
        row, column = (at[:, None] - at + M - 1 for _ in range(2))
        index = row[:, None, :, None] * (2 * M - 1) + column[None, :, None, :]
        return self.table[index.reshape(-1)].view(M * M, M * M, self.h).permute(2, 0, 1)

    def masked(self, scores, H, W, by):
        """Pixels that the roll brought together do not see each other."""
        M = self.M
        down, right = ((torch.arange(n) >= n - M).long() + (torch.arange(n) >= n - by).long() for n in (H, W))
        region = (3 * down[:, None] + right).view(H // M, M, W // M, M).permute(0, 2, 1, 3).reshape(-1, M * M)
        apart = (region[:, :, None] != region[:, None, :]) * -100.0
        count = region.shape[0]
        return (scores.view(-1, count, *scores.shape[1:]) + apart[:, None]).view(scores.shape)


class GlobalAttention(nn.Module):
    """Every pixel attends to all."""

    def __init__(self, C, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        B, H, W, C = x.shape
        q, k, v = self.qkv(x).view(B, H * W, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, H, W, C))


def mlp(d, widening=4):
    return nn.Sequential(nn.Linear(d, widening * d), nn.GELU(), nn.Linear(widening * d, d))


class Merge(nn.Module):
    """Each 2 by 2 pixels to one of twice the width."""

    def __init__(self, C):
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * C), nn.Linear(4 * C, 2 * C, bias=False)

    def forward(self, x):
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Last(nn.Module):
    """Channels last."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1)


class Mean(nn.Module):
    """The mean over an image whose channels are last."""

    def forward(self, x):
        return x.mean((1, 2))


def swin(counts, w, h, M, C):
    layers = [nn.Conv2d(3, w, 4, 4), Last(), nn.LayerNorm(w)]
    for k, count in enumerate(counts):
        width = w * 2**k
        for i in range(count):
            layers.append(
                Sum(nn.Sequential(nn.LayerNorm(width), WindowAttention(width, h * 2**k, M, i % 2 == 1)))
            )
            layers.append(Sum(nn.Sequential(nn.LayerNorm(width), mlp(width))))
        if k < 3:
            layers.append(Merge(width))
    return nn.Sequential(*layers, nn.LayerNorm(8 * w), Mean(), nn.Linear(8 * w, C))


def swin_tiny(w, h, M, C):
    return swin((2, 2, 6, 2), w, h, M, C)


# Peebles and Xie 2022


class Conditioned(nn.Module):
    """A transformer block whose norms are shifted, scaled and gated by the condition."""

    def __init__(self, d, h):
        super().__init__()
        self.h, self.condition = h, nn.Linear(d, 6 * d)
        self.norm1, self.norm2 = (nn.LayerNorm(d, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out, self.mlp = nn.Linear(d, 3 * d), nn.Linear(d, d), mlp(d)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(c))[:, None].chunk(6, -1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class DiT(nn.Module):
    """Latents of 4 channels in n by n patches of p by p, conditioned on a time and a class."""

    def __init__(self, n, p, d, h, L):
        super().__init__()
        self.p, self.patch = p, nn.Conv2d(4, d, p, p)
        self.time = nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        self.label = nn.Embedding(1001, d)
        self.position = nn.Parameter(torch.zeros(1, n * n, d), requires_grad=False)
        self.blocks = nn.ModuleList(Conditioned(d, h) for _ in range(L))
        self.norm, self.condition = nn.LayerNorm(d, elementwise_affine=False), nn.Linear(d, 2 * d)
        self.out = nn.Linear(d, 8 * p * p)

    def forward(self, image, time, label):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.position
        angles = time[:, None] * torch.exp(torch.arange(128) * -0.072)
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.label(label)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(F.silu(c))[:, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + scale) + shift)


def images(B, H, W):
    return torch.randn(B, 3, H, W)
