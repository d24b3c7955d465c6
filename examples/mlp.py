"""A two-layer perceptron that classifies vectors."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 4, "d": 16, "f": 48, "c": 10}
meanings = {"B": "batch size", "d": "input width", "f": "hidden width", "c": "classes"}


def model(d, f, c):
    return nn.Sequential(nn.Linear(d, f), nn.GELU(), nn.Linear(f, c))


def inputs(B, d):
    return torch.randn(B, d)


def loss(output, B, c):
    return F.cross_entropy(output, torch.randint(c, (B,)))
