"""What a size means follows from where it stands: W is an image's width or a window of attention."""

from __future__ import annotations

import torch
from torch import nn

import symacct


def meanings(model, inputs, dims, **options):
    graph = symacct.derive(model=model, inputs=inputs, dims=dims, mode="forward", **options).graph
    return {name: info.meaning for name, info in graph.symbols.items()}


def test_the_axes_of_an_image_are_no_classes_nor_a_window():
    found = meanings(
        lambda C: nn.Conv2d(C, 8, 3), lambda N, C, H, W: torch.ones(N, C, H, W), {"N": 3, "C": 5, "H": 12, "W": 14}
    )
    assert found == {"N": "batch size", "C": "channels", "H": "height", "W": "width"}


def test_elsewhere_they_mean_what_the_glossary_says():
    class Windowed(nn.Module):
        def __init__(self, d, C, W):
            super().__init__()
            self.near, self.head = nn.Parameter(torch.ones(W, d)), nn.Linear(d, C)

        def forward(self, x):
            return self.head(x @ self.near.T @ self.near)

    found = meanings(Windowed, lambda B, T, d: torch.ones(B, T, d), {"B": 2, "T": 5, "d": 8, "C": 3, "W": 4})
    assert found["W"] == "attention window" and found["C"] == "classes" and found["T"] == "sequence length"


def test_a_models_own_words_come_first():
    from symacct.tracing.build import Builder
    from symacct.tracing.model_file import model_source

    source = model_source(
        "m", dims={"N": 3, "W": 14}, model=lambda: nn.Conv1d(2, 4, 3), inputs=lambda N, W: torch.ones(N, 2, W),
        meanings={"W": "samples"},
    )
    assert Builder(source, "forward", "cpu").graph("m").symbols["W"].meaning == "samples"
