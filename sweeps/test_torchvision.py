"""Every classifier and segmentation model of torchvision: parameters, and multiply-adds of one image.

The figures are those of torchvision's weights (`num_params`, and `_ops` in 10⁹ multiply-adds, which it calls
GFLOPS); to the unit by torch's own FlopCounterMode on the same models.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import symacct

ROWS = list(csv.DictReader((Path(__file__).parent / "torchvision.csv").open(encoding="utf-8")))
# What the published weights were made for: heads that only training uses are not among their parameters.
BUILT = {"googlenet": {"aux_logits": False}}


def row_name(row):
    return f"{row['model']}-{row['weights']}"


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_parameters_and_multiply_adds(torchvision, row):
    name, size = row["model"], int(row["size"])
    options = {"weights": None, **BUILT.get(name, {})}
    if name.startswith("vit"):
        options |= {"image_size": size}  # a row of the position table for each patch
    if name in torchvision.models.list_models(torchvision.models.segmentation):
        options |= {"weights_backbone": None}
        options |= {} if name.startswith("lraspp") else {"aux_loss": True}
    found = symacct.derive(
        model=lambda: torchvision.models.get_model(name, **options),
        inputs=lambda: torch.randn(1, 3, size, size),
        dims={},
        mode="forward",
    ).formulas
    products = int(row["multiply_adds"])
    assert (found["params.total"], found["flops.forward"]) == (int(row["parameters"]), 2 * products)
    assert abs(products / 1e9 - float(row["published_gmacs"])) <= 0.001
