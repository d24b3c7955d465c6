"""Counting conventions: the switches in which published numbers differ, and sets of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from symacct.errors import SizeError


@dataclass(frozen=True, slots=True)
class Convention:
    """How to count. `unit` FLOP (2 per multiply-add) or MAC; `count` products, or all kinds of arithmetic.

    `attention`: the full square of a causal mask, its half, or exactly the unmasked pairs. `backward`: as traced, or
    twice or once the forward. `params`: which N stands in 6·N·D. `charges`: FLOPs an element that products leave out
    (symacct.charges says for what); `count = all` takes the rules' own numbers in their place.
    """

    name: str = "symacct"
    unit: str = "FLOP"
    count: str = "products"
    attention: str = "full"
    backward: str = "traced"
    params: str = "all"
    charges: tuple[tuple[str, int], ...] = ()
    source: str = "multiply-add = 2 FLOPs, products only, as in torch.utils.flop_counter"

    @property
    def line(self) -> str:
        """The convention in one line, for a head line."""
        unit = "multiply-add = 2 FLOPs" if self.unit == "FLOP" else "multiply-add = 1 MAC"
        count = "products only" if self.count == "products" else "all arithmetic"
        square = {"full": "full attention square", "half": "half the causal square", "exact": "exact causal triangle"}
        tail = {"twice": ", backward = 2 × forward", "once": ", backward = forward"}.get(self.backward, "")
        if self.charges and self.count == "products":
            each = ", ".join(f"{name} {number}" for name, number in self.charges if name != "lookup")
            dense = " and dense lookups" if "lookup" in dict(self.charges) else ""
            count = f"products{dense}, per element {each}"
        return f"{count}, {unit}, {square[self.attention]}{tail}"

    @property
    def forwards(self) -> int | None:
        """How many times the forward a backward is; None where it counts as traced."""
        return {"twice": 2, "once": 1}.get(self.backward)

    def as_json(self) -> dict[str, str]:
        """The switches as the JSON contract lists them."""
        found = {
            "name": self.name, "unit": self.unit, "count": self.count, "attention": self.attention,
            "backward": self.backward, "params": self.params,
        }
        return found | ({"charges": ", ".join(f"{name} {n}" for name, n in self.charges)} if self.charges else {})


CHOICES: Mapping[str, tuple[str, ...]] = {
    "unit": ("FLOP", "MAC"),
    "count": ("products", "all"),
    "attention": ("full", "half", "exact"),
    "backward": ("traced", "twice", "once"),
    "params": ("all", "trainable", "active", "non-embedding", "matmul"),
}

_ELECTRA = (
    ("lookup", 2), ("bias", 1), ("addition", 1), ("scaling", 1), ("softmax", 5), ("log-softmax", 5), ("norm", 5),
    ("dropout", 4), ("activation", 8), ("target", 2),
)
# fvcore, nn/jit_handles.py: a multiply-add is 1, and so is each of these; a norm without weights one less
_FVCORE = (
    ("norm", 5), ("batch norm", 5), ("running norm", 2), ("norm without weights", -1), ("mean pooling", 1), ("nearest", 1),
    ("bilinear", 4),
)
_ROWS = (
    Convention(),
    Convention("kaplan", attention="half", backward="twice", params="non-embedding", source="Kaplan et al. 2020, Table 1"),
    Convention("chinchilla", backward="twice", charges=(("lookup", 2), ("softmax", 3)), source="Hoffmann et al. 2022, Appendix F"),
    Convention("palm", backward="twice", params="all", source="Chowdhery et al. 2022, Appendix B"),
    Convention("megatron", backward="twice", source="Narayanan et al. 2021, eq. 3"),
    Convention("nanogpt", backward="twice", source="karpathy/nanoGPT, transformer_sizing.ipynb"),
    Convention("llm.c", attention="half", backward="twice", source="karpathy/llm.c, train_gpt2.cu"),
    Convention("timm", unit="MAC", charges=_FVCORE, source="huggingface/pytorch-image-models, results (GMACs by fvcore)"),
    Convention("electra", backward="once", charges=_ELECTRA, source="google-research/electra, flops_computation.py"),
    Convention("flash", attention="half", source="Dao 2023, FlashAttention-2, section 4.1"),
)
NAMED: Mapping[str, Convention] = {row.name: row for row in _ROWS}


def convention(name: str | None = None, **switches: str | None) -> Convention:
    """A named convention with single switches changed. Raises SizeError for a name or value that is unknown."""
    key = name or "symacct"
    if key not in NAMED:
        near = get_close_matches(key, NAMED, 1)
        raise SizeError(f"no convention {key!r}; " + (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(NAMED)}")
    changed: dict[str, Any] = {switch: value for switch, value in switches.items() if value is not None}
    for switch, value in changed.items():
        if switch not in CHOICES:
            raise SizeError(f"no switch {switch!r}; there are {', '.join(CHOICES)}")
        value = changed[switch] = next((c for c in CHOICES[switch] if c.lower() == value.lower()), value)
        if value not in CHOICES[switch]:
            raise SizeError(f"{switch} = {value!r}: choose from {', '.join(CHOICES[switch])}")
    made = NAMED[key]
    return replace(made, **changed) if changed else made
