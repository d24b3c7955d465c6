"""ResNet-50 v1.5 (the stride sits on the 3x3 convolution), as in torchvision."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "H": 64, "W": 96, "C": 10, "w": 8}
meanings = {
    "B": "batch size",
    "H": "image height",
    "W": "image width",
    "C": "classes",
    "w": "base width, 64 in the paper",
}


def conv(c_in, c_out, kernel, stride=1):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(c_out)
    )


class Bottleneck(nn.Module):
    def __init__(self, c_in, c, stride, project):
        super().__init__()
        self.conv1 = conv(c_in, c, 1)
        self.conv2 = conv(c, c, 3, stride)
        self.conv3 = conv(c, 4 * c, 1)
        self.shortcut = conv(c_in, 4 * c, 1, stride) if project else nn.Identity()

    def forward(self, x):
        y = F.relu(self.conv1(x))
        y = F.relu(self.conv2(y))
        return F.relu(self.conv3(y) + self.shortcut(x))


def stage(c_in, c, blocks, stride):
    first = Bottleneck(c_in, c, stride, project=True)
    rest = (Bottleneck(4 * c, c, 1, project=False) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


class ResNet50(nn.Module):
    def __init__(self, C, w):
        super().__init__()
        self.stem = conv(3, w, 7, stride=2)
        self.stage1 = stage(w, w, blocks=3, stride=1)
        self.stage2 = stage(4 * w, 2 * w, blocks=4, stride=2)
        self.stage3 = stage(8 * w, 4 * w, blocks=6, stride=2)
        self.stage4 = stage(16 * w, 8 * w, blocks=3, stride=2)
        self.head = nn.Linear(32 * w, C)

    def forward(self, image):
        x = F.max_pool2d(F.relu(self.stem(image)), 3, stride=2, padding=1)
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.head(x.mean(dim=(2, 3)))


def model(C, w):
    return ResNet50(C, w)


def inputs(B, H, W):
    return torch.randn(B, 3, H, W)


def loss(output, B, C):
    return F.cross_entropy(output, torch.randint(C, (B,)))
