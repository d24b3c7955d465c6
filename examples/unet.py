"""The original U-Net with padded convolutions, so that the segmentation is as large as the image.

The image has one channel; its height and width are multiples of 16, as there are four halvings.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "H": 32, "W": 48, "C": 2, "w": 8}
meanings = {
    "B": "batch size",
    "H": "image height",
    "W": "image width",
    "C": "classes",
    "w": "base width, 64 in the paper",
}


class DoubleConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))))


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.conv = DoubleConv(2 * c, c)

    def forward(self, x, skip):
        return self.conv(torch.cat((skip, self.up(x)), dim=1))


class UNet(nn.Module):
    def __init__(self, C, w):
        super().__init__()
        self.first = DoubleConv(1, w)
        self.down = nn.ModuleList(DoubleConv(c * w, 2 * c * w) for c in (1, 2, 4, 8))
        self.up = nn.ModuleList(Up(c * w) for c in (8, 4, 2, 1))
        self.head = nn.Conv2d(w, C, 1)

    def forward(self, image):
        x = self.first(image)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for up in self.up:
            x = up(x, skips.pop())
        return self.head(x)


def model(C, w):
    return UNet(C, w)


def inputs(B, H, W):
    return torch.randn(B, 1, H, W)


def loss(output, B, H, W, C):
    return F.cross_entropy(output, torch.randint(C, (B, H, W)))
