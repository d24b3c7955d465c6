"""Counting conventions: the switches in which published numbers differ, and sets of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from symacct.errors import SizeError


@dataclass(frozen=True, slots=True)
class Convention:
    """How to count. `unit` FLOP (2 per multiply-add) or MAC; `count` products, or all kinds of arithmetic.

    `attention`: the full square of a causal mask, its half, or exactly the unmasked pairs. `backward`: as traced, or
    twice the forward. `params`: which N stands in 6·N·D.
    """

    name: str = "symacct"
    unit: str = "FLOP"
    count: str = "products"
    attention: str = "full"
    backward: str = "traced"
    params: str = "all"
    source: str = "multiply-add = 2 FLOPs, products only, as in torch.utils.flop_counter"

    @property
    def line(self) -> str:
        """The convention in one line, for a head line."""
        unit = "multiply-add = 2 FLOPs" if self.unit == "FLOP" else "multiply-add = 1 MAC"
        count = "products only" if self.count == "products" else "all arithmetic"
        square = {"full": "full attention square", "half": "half the causal square", "exact": "exact causal triangle"}
        tail = ", backward = 2 × forward" if self.backward == "twice" else ""
        return f"{count}, {unit}, {square[self.attention]}{tail}"

    def as_json(self) -> dict[str, str]:
        """The switches as the JSON contract lists them."""
        return {
            "name": self.name, "unit": self.unit, "count": self.count, "attention": self.attention,
            "backward": self.backward, "params": self.params,
        }


CHOICES: Mapping[str, tuple[str, ...]] = {
    "unit": ("FLOP", "MAC"),
    "count": ("products", "all"),
    "attention": ("full", "half", "exact"),
    "backward": ("traced", "twice"),
    "params": ("all", "trainable", "active", "non-embedding", "matmul"),
}

_ROWS = (
    Convention(),
    Convention("kaplan", attention="half", backward="twice", params="non-embedding", source="Kaplan et al. 2020, Table 1"),
    Convention("chinchilla", backward="twice", source="Hoffmann et al. 2022, Appendix F"),
    Convention("palm", backward="twice", params="all", source="Chowdhery et al. 2022, Appendix B"),
    Convention("megatron", backward="twice", source="Narayanan et al. 2021, eq. 3"),
    Convention("nanogpt", backward="twice", source="karpathy/nanoGPT, transformer_sizing.ipynb"),
    Convention("llm.c", attention="half", backward="twice", source="karpathy/llm.c, train_gpt2.cu"),
    Convention("timm", unit="MAC", source="huggingface/pytorch-image-models, results (GMACs)"),
    Convention("electra", count="all", backward="twice", source="google-research/electra, flops_computation.py"),
    Convention("flash", attention="half", source="Dao 2023, FlashAttention-2, section 4.1"),
)
NAMED: Mapping[str, Convention] = {row.name: row for row in _ROWS}


def convention(name: str | None = None, **switches: str | None) -> Convention:
    """A named convention with single switches changed. Raises SizeError for a name or value that is unknown."""
    key = name or "symacct"
    if key not in NAMED:
        near = get_close_matches(key, NAMED, 1)
        raise SizeError(f"no convention {key!r}; " + (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(NAMED)}")
    changed = {switch: value for switch, value in switches.items() if value is not None}
    for switch, value in changed.items():
        if switch not in CHOICES:
            raise SizeError(f"no switch {switch!r}; there are {', '.join(CHOICES)}")
        if value not in CHOICES[switch]:
            raise SizeError(f"{switch} = {value!r}: choose from {', '.join(CHOICES[switch])}")
    made = NAMED[key]
    return replace(made, **changed) if changed else made
