"""Stable Diffusion's U-Net: published parameters and multiply-adds, and what the common figure leaves out."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from published_diffusion_models import UNet

import symacct
from symacct.conventions import convention

PARAMETERS = 859_520_964  # diffusers, documentation of UNet2DConditionModel
MACS = 401_636_720_640  # diffusers' model on the meta device, torch's FlopCounterMode


@cache
def unet():
    """Latents of 64 by 64 and a prompt of 77 words, in multiply-adds."""
    inputs = lambda: (torch.randn(1, 4, 64, 64), torch.randn(1, 320), torch.randn(1, 77, 768))  # noqa: E731
    ledger = symacct.derive(model=UNet, inputs=inputs, dims={}, mode="forward")
    return ledger.under(convention(None, unit="MAC"))


def test_parameters_and_multiply_adds():
    assert unet().formulas["params.total"] == PARAMETERS
    assert unet().formulas["flops.forward"] == MACS


def test_the_common_figure_leaves_out_what_attention_multiplies():
    """"339 GMACs": convolutions and linear layers alone."""
    attention = 63_026_135_040
    # two products of n queries and m keys of width d: self-attention and 77 words, 5 + 1 blocks a width
    blocks = {320: (4096, 5), 640: (1024, 5), 1280: (256, 5)}
    counted = sum(many * 2 * n * (n + 77) * d for d, (n, many) in blocks.items())
    assert counted + 2 * 64 * (64 + 77) * 1280 == attention  # and one block in the middle, 8 by 8
    found = unet().check("forward = 338610585600")
    assert (found.verdict, found.difference) == ("refuted", attention)
    assert pytest.approx(339, abs=0.5) == 338_610_585_600 / 1e9
    assert {term.op for term in found.terms} == {"aten._scaled_dot_product_flash_attention"}
    assert {term.module.rpartition(".")[2] for term in found.terms} == {"own", "cross"}
    assert sum(term.term for term in found.terms) == attention
