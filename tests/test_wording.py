"""What is said where an answer is refused, refuted or divided among layers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import symacct
from symacct.certificate import Certificate, Check
from symacct.cli import main
from symacct.errors import ModelFileError
from symacct.report.grids import Page
from symacct.report.proved import as_text

WIDER = """
import torch
from torch import nn
dims = {"B": 4, "L": 4, "d": 8, "f": 16, "g": 24}
class Block(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.up, self.down = nn.Linear(d, f), nn.Linear(f, d)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
def model(L, d, f, g): return nn.Sequential(*(Block(d, f if i else g) for i in range(L)))
def inputs(B, d): return torch.randn(B, d)
"""


class Scaled(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(d, d), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.linear(x) * self.scale


def test_rprop_says_why_it_takes_no_parameter_without_dimensions():
    with pytest.raises(ModelFileError, match="parameter without dimensions, of which there is one; give it a dimension"):
        symacct.derive(model=Scaled, inputs=lambda B, d: torch.randn(B, d), dims={"B": 2, "d": 4}, optimizer="rprop")


def test_what_each_of_the_other_layers_costs_is_told_without_their_number(tmp_path, capsys):
    file = tmp_path / "wider.py"
    file.write_text(WIDER, encoding="utf-8")
    assert main(["derive", str(file), "--mode", "forward"]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("*.up")]
    assert [part.strip() for part in rows[0] if part] == ["*.up", "L - 1", "2·B·d·f"]


def test_copies_of_layers_warn_of_nothing():
    code = (
        "import torch, symacct; from torch import nn\n"
        "layer = lambda d: nn.TransformerEncoderLayer(d, 2, d, batch_first=True)\n"
        "symacct.derive(model=lambda d: nn.TransformerEncoder(layer(d), 2),"
        " inputs=lambda T, d: torch.randn(1, T, d), dims={'T': 4, 'd': 8}, mode='forward')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr


def test_a_long_formula_that_is_refuted_is_named_and_its_difference_given(capsys):
    forms = ", ".join(f"{k}*B*floor(d/2) + Max(B, {k})" for k in range(30))
    check = Check("bytes.peak", "births and deaths", {"B": 2}, f"Max({forms})", 1_100, 1_000, False, "")
    with Page() as page:
        as_text(Certificate("m", "train", "cpu", ({"B": 2},), (check,), ()), page)
    out = capsys.readouterr().out
    assert "the largest of 30 forms = 1,000" in out and "1,100, 100 more (0.1 of it)" in out
    assert "floor" not in out
