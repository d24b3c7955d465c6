"""More of torchvision's image models, written compactly: grouped and wide ResNets, and small ones."""

from __future__ import annotations

from functools import partial

import torch
from published_vision_models import Sum, conv, pooled, resnet
from torch import nn


def widened(i, c, stride, project, first, groups):
    """A bottleneck that is twice as wide inside, in groups; as in ResNeXt (32 × 4d) and wide ResNets."""
    body = nn.Sequential(
        conv(i, 2 * c, 1), conv(2 * c, 2 * c, 3, stride, groups), conv(2 * c, 4 * c, 1, act=None)
    )
    return Sum(body, conv(i, 4 * c, 1, stride, act=None) if project else None, nn.ReLU())


def resnext50(C):
    """Xie et al. 2017."""
    return resnet(partial(widened, groups=32), 4, (3, 4, 6, 3), 64, C)


def wide_resnet50(C):
    """Zagoruyko and Komodakis 2016."""
    return resnet(partial(widened, groups=1), 4, (3, 4, 6, 3), 64, C)


def mnasnet(C):
    """Tan et al. 2019."""
    stages = (
        (3, 3, 2, 24, 3), (3, 5, 2, 40, 3), (6, 5, 2, 80, 3), (6, 3, 1, 96, 2), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    features, i = [conv(3, 32, 3, 2), conv(32, 32, 3, groups=32), conv(32, 16, 1, act=None)], 16
    for widening, kernel, stride, o, count in stages:
        for k in range(count):
            c, step = widening * i, 1 if k else stride
            body = nn.Sequential(conv(i, c, 1), conv(c, c, kernel, step, c), conv(c, o, 1, act=None))
            features.append(Sum(body) if k else body)
            i = o
    return pooled(*features, conv(i, 1280, 1), head=nn.Linear(1280, C))


class Shuffled(nn.Module):
    """Ma et al. 2018: half of the channels, or a second branch, beside a separable convolution."""

    def __init__(self, i, o, stride):
        super().__init__()
        c = o // 2
        self.halved = stride == 1
        aside = [conv(i, i, 3, stride, i, act=None), conv(i, c, 1)]
        self.aside = nn.Identity() if self.halved else nn.Sequential(*aside)
        self.body = nn.Sequential(
            conv(c if self.halved else i, c, 1), conv(c, c, 3, stride, c, act=None), conv(c, c, 1)
        )

    def forward(self, x):
        one, two = x.chunk(2, 1) if self.halved else (x, x)
        both = torch.stack([self.aside(one), self.body(two)], 2)
        return both.flatten(1, 2)


def shufflenet(C):
    features, i = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
    for o, count in ((116, 4), (232, 8), (464, 4)):
        features += [Shuffled(i, o, 2), *(Shuffled(o, o, 1) for _ in range(count - 1))]
        i = o
    return pooled(*features, conv(i, 1024, 1), head=nn.Linear(1024, C))


class Fire(nn.Module):
    """Iandola et al. 2016: squeezed, then widened by kernels of 1 and of 3."""

    def __init__(self, i, s, e):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(i, s, 1), nn.ReLU())
        self.one, self.three = nn.Conv2d(s, e, 1), nn.Conv2d(s, e, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1).relu()


def squeezenet(C):
    pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)
    return nn.Sequential(
        nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool(),
        Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), pool(),
        Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), pool(),
        Fire(512, 64, 256), nn.Conv2d(512, C, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
