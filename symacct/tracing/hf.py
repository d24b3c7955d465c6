"""A Hugging Face `config.json` as a model source: its size fields become symbols.

Nothing is downloaded and no weight is read. The class is the one that `architectures` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symacct.errors import ModelFileError
from symacct.tracing import hf_fields
from symacct.tracing.hf_family import Family, read_family
from symacct.tracing.source import ModelSource

if TYPE_CHECKING:
    from torch import nn

# Classes whose `labels` hold a token for each position, by the end of their name.
_COUNTED = ("L", "L_d", "V", "E", "k")  # sizes of lists and tables in the config, whose own checks concern nothing else
_TOKEN_LABELS = (
    "LMHeadModel",
    "ForCausalLM",
    "ForMaskedLM",
    "ForPreTraining",
    "ForConditionalGeneration",
    "ForTokenClassification",
)
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_CACHES = ("cache", "past_key_values")  # what forward calls it, by transformers' release
_UNCACHED = "the training step runs with use_cache=False: it fills no cache of keys and values"
# Labels beside `labels`, one for each sequence.
_SEQUENCE_LABELS = ("next_sentence_label", "sentence_order_label")


def load_config(target: str | Path) -> ModelSource:
    """The model source of a `config.json`, or of a directory that holds one."""
    family = read_family(Path(target))
    bound = hf_fields.bind(family.text)
    depth = next((b.value for b in bound if b.symbol == "L"), 0)
    lists = hf_fields.layer_lists(family.text, depth)
    first, period = hf_fields.layer_pattern(family.text, lists)
    examples = hf_fields.examples(family.text, bound, first, period)
    blueprint = _settle(Blueprint(family, bound, lists, examples))
    symbols = blueprint.examples
    dims = blueprint.input_sizes | symbols
    return ModelSource(
        name=family.name,
        stored=family.stored,
        dims=dims,
        model=blueprint.model,
        inputs=blueprint.inputs,
        meanings=hf_fields.meanings(dims),
        cache=blueprint.cache if blueprint.cache_keyword else None,
        prompt=blueprint.prompt,
        trained=_UNCACHED if blueprint.cache_keyword else "",
        step=blueprint.step if family.has_encoder else None,
        values={b.symbol: b.value for b in bound if b.symbol in symbols},
        structural=tuple(s for s in ("L", "L_d") if s in symbols),
        periods={"L": period} if period > 1 and "L" in symbols else {},
    )


@dataclass(frozen=True)
class Blueprint:
    """How sizes become a module and its inputs."""

    family: Family
    bound: tuple[hf_fields.Bound, ...]  # the fields that are sizes
    lists: Mapping[str, hf_fields.Cycle]  # the fields with an entry per layer
    examples: dict[str, int]  # the symbols; a bound field without one follows another or keeps its number

    @property
    def input_sizes(self) -> dict[str, int]:
        """Example sizes of the inputs."""
        return {s: n for s, n in hf_fields.EXAMPLE_INPUTS.items() if s != "S" or self.family.has_encoder}

    def settings(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Attribute -> size, for every bound field."""
        known = {s: sizes[s] for s in self.examples}
        for b in self.bound:
            if b.symbol in known:
                continue
            match b.symbol:
                case "h_kv":
                    known["h_kv"] = known["h"]
                case "d_h":
                    known["d_h"] = known["d"] * vars(self.family.text).get("expand", 1) // known["h"]
                case symbol:
                    known[symbol] = known.get(b.field.follows, b.value)
        return {b.attribute: known[b.symbol] for b in self.bound}

    def model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """The module, in float32. A `torch.SymInt` reaches the constructors as it is."""
        import torch

        # config classes validate sizes and compute with them, so they see the example's first: any size, symbol or
        # number, then takes the same way into the model
        numbers = {s: sizes[s] if s in _COUNTED and isinstance(sizes[s], int) else n for s, n in self.examples.items()}
        overrides = self.settings(numbers)
        depth = next((overrides[b.attribute] for b in self.bound if b.symbol == "L"), 0)
        given = self.family.given
        overrides |= {name: cycle.at(depth) for name, cycle in self.lists.items() if name in given}
        overrides |= self._tokens(numbers.get("V"))
        config = self.family.configure(overrides)
        text = self.family.text_of(config)
        for own in (config, text):  # transformers sets sizes of its own copies, and shall take symbols there too
            object.__setattr__(own, "__validators__", {})
        for attribute, value in (self.settings(sizes) | hf_fields.derived(text, sizes)).items():
            object.__setattr__(text, attribute, value)
        config.use_cache = text.use_cache = False
        config.dtype = text.dtype = torch.float32
        if self.family.has_encoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 0  # which token starts a decoder costs nothing
        module = self.family.model_class(config)
        # it only warns, but reads token values for that: ops that a trace on fake tensors does not have
        module.warn_if_padding_and_no_attention_mask = lambda *_: None
        return module

    def _tokens(self, rows: int | None) -> dict[str, Any]:
        """The special tokens that lie outside a smaller table, as its last row: which token it is costs nothing."""
        fields = vars(self.family.text)
        named = {name: fields.get(name) for name in _TOKENS}
        known = {name: token for name, token in named.items() if isinstance(token, int)}
        return {name: rows - 1 for name, token in known.items() if rows is not None and token >= rows}

    @property
    def cache_keyword(self) -> str:
        """By which keyword the class takes a cache; none where it keeps none."""
        if self.family.has_encoder and "encoder_outputs" not in self.family.accepted:
            return ""
        return next((name for name in _CACHES if name in self.family.accepted), "")

    def cache(self, model: nn.Module, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a call that fills an empty cache, of the kind that the class itself would make."""
        from transformers import DynamicCache, EncoderDecoderCache

        if self.family.has_encoder:
            own = getattr(model.get_decoder(), "config", model.config)
            kept = EncoderDecoderCache(DynamicCache(config=own), DynamicCache(config=own))
            return {self.cache_keyword: kept, "use_cache": True}
        # a layer also makes a tensor of its window, which takes numbers only
        text, number, window = self.family.text_of(model.config), self.examples.get("W"), sizes.get("W")
        if number is None:
            return {self.cache_keyword: DynamicCache(config=model.config), "use_cache": True}
        object.__setattr__(text, "sliding_window", number)
        cache = DynamicCache(config=model.config)
        object.__setattr__(text, "sliding_window", window)
        for layer in cache.layers:
            if getattr(layer, "sliding_window", None) == number:
                layer.sliding_window = window
        return {self.cache_keyword: cache, "use_cache": True}

    def prompt(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs without labels: of an encoder-decoder the encoder's tokens or features, and the decoder's tokens."""
        made = {name: given for name, given in self.inputs(sizes).items() if name.endswith(("input_ids", "input_features"))}
        return made | self._decoded(sizes) if self.family.has_encoder else made

    def step(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """What a decoder reads in a step: its token, and what the encoder made of the prompt."""
        import torch

        return self._decoded(sizes) | {"encoder_outputs": (torch.zeros(sizes["B"], sizes["S"], sizes["d"]),)}

    def _decoded(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        return {"decoder_input_ids": torch.full((sizes["B"], sizes["T"]), 1)}

    def _features(self, sizes: Mapping[str, Any]) -> Any:
        """Log-mel features: the second convolution of the encoder makes one position of two frames."""
        import torch

        known = {b.symbol: sizes.get(b.symbol, b.value) for b in self.bound}
        return torch.zeros(sizes["B"], known["M"], 2 * known["S"])

    def inputs(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Token ids and the labels that the class trains with, (B, T); an encoder's ids are (B, S), its features (B, M, 2S)."""
        import torch

        token = int(getattr(self.family.text, "pad_token_id", None) == 0)  # any token but the padding
        rows, columns, encoder = sizes["B"], sizes["T"], self.family.has_encoder
        accepted, kind = self.family.accepted, self.family.model_class.__name__
        made = {"input_ids": torch.full((rows, sizes["S"] if encoder else columns), token)}
        if self.family.hears:
            made = {"input_features": self._features(sizes)}
        if "labels" in accepted and kind.endswith(_TOKEN_LABELS):
            made["labels"] = torch.full((rows, columns), token)
        elif "labels" in accepted and kind.endswith("ForSequenceClassification"):
            made["labels"] = torch.zeros(rows, dtype=torch.int64)
        elif encoder:
            made["decoder_input_ids"] = torch.full((rows, columns), token)
        if "labels" in made:
            for name in _SEQUENCE_LABELS:
                if name in accepted:
                    made[name] = torch.zeros(rows, dtype=torch.int64)
        return made


def _settle(blueprint: Blueprint) -> Blueprint:
    """Keep as symbols the fields that differ from what they follow, and that the class makes use of."""
    value = {b.symbol: b.value for b in blueprint.bound}
    own = {
        b.symbol: blueprint.examples[b.symbol]
        for b in blueprint.bound
        if value.get(b.field.follows) != b.value
    }
    optional = {b.symbol for b in blueprint.bound if b.field.sizes_parameters} & own.keys()
    base = {s: n for s, n in own.items() if s not in optional}
    family = blueprint.family
    try:
        plain = _parameter_shapes(replace(blueprint, examples=base))
    except ModelFileError:
        raise
    except Exception as error:  # the class's own code
        reason = " ".join(str(error).split())
        raise ModelFileError(
            f"{family.name}: {family.model_class.__name__} cannot be built at small sizes: {reason}"
        ) from error
    used = {s for s in optional if _changes(replace(blueprint, examples=base | {s: own[s]}), plain)}
    return replace(blueprint, examples={s: n for s, n in own.items() if s in base or s in used})


def _changes(blueprint: Blueprint, plain: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the parameters' shapes are not `plain`. A class that rejects the sizes has no use for them."""
    try:
        return _parameter_shapes(blueprint) != plain
    except Exception:
        return False


def _parameter_shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape at the example sizes, built without memory."""
    import torch

    with torch.device("meta"):
        module = blueprint.model(blueprint.examples)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
