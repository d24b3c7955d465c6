"""A language model around nn.LSTM, with as many hidden units as the embedding is wide."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

dims = {"B": 2, "T": 10, "V": 96, "L": 2, "d": 32}
meanings = {
    "B": "batch size",
    "T": "sequence length",
    "V": "vocabulary size",
    "L": "layers",
    "d": "width of the embedding and of the hidden state",
}


class LSTM(nn.Module):
    def __init__(self, V, L, d):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.lstm = nn.LSTM(d, d, num_layers=L, batch_first=True)
        self.head = nn.Linear(d, V)

    def forward(self, idx):
        y, _ = self.lstm(self.embed(idx))
        return self.head(y)


def model(V, L, d):
    return LSTM(V, L, d)


def inputs(B, T, V):
    return torch.randint(V, (B, T))


def loss(output, inputs):
    return F.cross_entropy(output.flatten(0, 1), inputs.flatten())
