"""Which fields of a Hugging Face config are sizes, and by which symbols symacct knows them.

Nothing here imports torch or transformers: a config is any object whose `vars()` hold its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from symacct.symbols import GLOSSARY


@dataclass(frozen=True, slots=True)
class Field:
    """One size. `names` are the names it has in config classes, the first one found counts."""

    symbol: str
    names: tuple[str, ...]
    example: int
    follows: str = ""  # this symbol's value is used when the config's two numbers agree
    sizes_parameters: bool = False  # a symbol only where the shape of a parameter follows it
    meaning: str = ""  # for symbols that the glossary lacks


# The examples are pairwise different and keep d / h a multiple of 8 and of 5 (rotary fractions 1/4, 2/5, 1/2
# of a head must be even), d_h different from d / h, d different from h * d_h, W > T, P >= 2 * S.
FIELDS = (
    Field("V", ("vocab_size",), 808),
    Field("L", ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    Field("d", ("hidden_size", "n_embd", "d_model", "dim"), 160),
    Field("h", ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    Field("h_kv", ("num_key_value_heads", "num_kv_heads"), 2, sizes_parameters=True),
    Field("d_h", ("head_dim", "d_kv"), 16, sizes_parameters=True),
    Field(
        "f",
        (
            "intermediate_size",
            "n_inner",
            "d_ff",
            "ffn_dim",
            "ffn_hidden_size",
            "hidden_dim",
            "encoder_ffn_dim",
        ),
        352,
        sizes_parameters=True,
    ),
    Field("f_e", ("moe_intermediate_size",), 136),
    Field("f_s", ("shared_expert_intermediate_size",), 216, meaning="shared expert feed-forward width"),
    Field("E", ("num_local_experts", "num_experts", "n_routed_experts"), 11),
    Field("k", ("num_experts_per_tok",), 5),
    Field("d_q", ("q_lora_rank",), 104),
    Field("d_c", ("kv_lora_rank",), 88),
    Field("d_r", ("qk_rope_head_dim", "rotary_dim"), 8),
    Field("d_n", ("qk_nope_head_dim",), 48),
    Field("d_v", ("v_head_dim",), 32),
    Field("P", ("max_position_embeddings", "n_positions", "max_target_positions"), 56, sizes_parameters=True),
    Field("S", ("max_source_positions",), 26, sizes_parameters=True),
    Field("M", ("num_mel_bins",), 20, sizes_parameters=True, meaning="mel bins of a frame"),
    Field("W", ("sliding_window",), 48),
    Field("N", ("state_size",), 12, sizes_parameters=True),
    Field("R", ("time_step_rank",), 10, sizes_parameters=True),
    Field("L_d", ("num_decoder_layers", "decoder_layers"), 2, follows="L", meaning="decoder layers"),
    Field("h_d", ("decoder_attention_heads",), 8, follows="h", meaning="decoder attention heads"),
    Field("f_d", ("decoder_ffn_dim",), 416, follows="f", meaning="decoder feed-forward width"),
    Field("d_a", ("attention_hidden_size",), 240, follows="d", meaning="attention width"),
    Field("d_e", ("embedding_size", "word_embed_proj_dim"), 72, follows="d", meaning="embedding width"),
)
EXAMPLE_INPUTS = {"B": 3, "S": 26, "T": 14}

# Scalars that make every n-th layer another one, where the class keeps no list of it.
_EVERY = (
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "moe_layer_freq",
    "attn_layer_period",
    "expert_layer_period",
    "global_attn_every_n_layers",
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A field of one config: the attribute that holds it, its symbol, the config's own number."""

    field: Field
    attribute: str
    value: int

    @property
    def symbol(self) -> str:
        return self.field.symbol


@dataclass(frozen=True, slots=True)
class Cycle:
    """A list with an entry per layer: `prefix` entries, then `period` entries over and over."""

    entries: tuple[Any, ...]
    prefix: int
    period: int

    def at(self, depth: int) -> list[Any]:
        """The list for `depth` layers."""
        head, body = self.entries[: self.prefix], self.entries[self.prefix : self.prefix + self.period]
        return [head[i] if i < len(head) else body[(i - len(head)) % len(body)] for i in range(depth)]


def bind(config: Any) -> tuple[Bound, ...]:
    """Every size that this config has, in the order of `FIELDS`."""
    found: dict[str, Bound] = {}
    for field in FIELDS:
        attribute = _attribute(config, field.names)
        if attribute is None:
            continue
        value = vars(config)[attribute]
        value = _default(field.symbol, found) if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found[field.symbol] = Bound(field, attribute, value)
    if "W" in found and "sliding_attention" not in vars(config).get("layer_types", ["sliding_attention"]):
        del found["W"]
    if "d_n" in found:
        found.pop("d_h", None)  # the head of latent attention is d_n + d_r
    return tuple(found.values())


def derived(config: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of `config` that its class computes from sizes when it is made."""
    if "d_n" not in sizes:
        return {}
    composed = {"qk_head_dim": sizes["d_n"] + sizes["d_r"], "head_dim": sizes["d_r"]}
    return {name: value for name, value in composed.items() if name in vars(config)}


def examples(config: Any, bound: Iterable[Bound], first: int, period: int) -> dict[str, int]:
    """A small size for every symbol; enough layers for `first` special ones and one period, at least two."""
    own = {b.symbol: b.field.example for b in bound}
    if "L" in own:
        own["L"] = first + max(2, period)
    groups = vars(config).get("n_group") or 1
    if "E" in own and groups > 1:
        own["E"] = 3 * groups  # routing by groups picks two experts of each
    return own


def meanings(symbols: Iterable[str]) -> dict[str, str]:
    """What each symbol stands for."""
    own = {field.symbol: field.meaning for field in FIELDS if field.meaning}
    return {name: own.get(name) or GLOSSARY[name].meaning for name in symbols}


def layer_lists(config: Any, depth: int) -> dict[str, Cycle]:
    """The attributes that hold one entry per layer. The indices of all layers are no such list."""
    lists = {name: v for name, v in vars(config).items() if isinstance(v, list) and name != "architectures"}
    return {name: _cycle(v) for name, v in lists.items() if len(v) == depth > 1 and v != list(range(depth))}


def layer_pattern(config: Any, lists: Mapping[str, Cycle]) -> tuple[int, int]:
    """How many layers at the front are special, and after how many layers the rest repeats."""
    fields = vars(config)
    every = [fields[name] for name in _EVERY if isinstance(fields.get(name), int) and fields[name] > 1]
    first = [fields.get("first_k_dense_replace") or 0, *(c.prefix for c in lists.values())]
    return max(first), lcm(1, *every, *(c.period for c in lists.values()))


def _cycle(entries: list[Any]) -> Cycle:
    """The shortest prefix and period that explain the list, with at least two whole periods seen."""
    n = len(entries)
    fits = [
        (prefix + period, period, prefix)
        for period in range(1, n // 2 + 1)
        for prefix in [_prefix(entries, period)]
        if prefix + 2 * period <= n
    ]
    _, period, prefix = min(fits, default=(n, 1, n - 1))
    return Cycle(tuple(entries), prefix, period)


def _prefix(entries: list[Any], period: int) -> int:
    """The index from which every entry equals the one a period later."""
    start = len(entries) - period
    while start > 0 and entries[start - 1] == entries[start - 1 + period]:
        start -= 1
    return start


def _attribute(config: Any, names: tuple[str, ...]) -> str | None:
    own = vars(config)
    return next((real for name in names if (real := config.attribute_map.get(name, name)) in own), None)


def _default(symbol: str, found: Mapping[str, Bound]) -> int | None:
    """What config classes mean by null."""
    value = {name: bound.value for name, bound in found.items()}
    match symbol:
        case "f" if "d" in value:
            return 4 * value["d"]
        case "h_kv" if "h" in value:
            return value["h"]
        case "d_h" if {"d", "h"} <= value.keys():
            return value["d"] // value["h"]
    return None
