"""Which transformers classes a `config.json` asks for, and configs of that class at other sizes."""

from __future__ import annotations

import copy
import difflib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from symacct.errors import ModelFileError, Unsupported

# How weights are stored, served or run: none of these fields changes a size.
_IGNORED = (
    "quantization_config",
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "torch_dtype",
    "dtype",
)
_SEEN_OR_HEARD = ("pixel_values", "input_features", "input_values")
# Where `architectures` is absent: the first of these tables that knows the model type.
# An encoder-decoder comes first, because its decoder alone is a causal model too.
_FALLBACKS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)


@dataclass(frozen=True)
class Family:
    """The model class, and the config at its own numbers with the JSON it was made from."""

    name: str  # how messages call it
    data: dict[str, Any]
    config: Any
    model_class: Any
    stored: str = ""  # how the config says that the weights are stored, if not in float32

    @property
    def text(self) -> Any:
        """The part of the config that holds the language model's sizes."""
        return self.text_of(self.config)

    @property
    def given(self) -> Mapping[str, Any]:
        """The JSON fields of that part."""
        return self._fields(self.data)

    @property
    def accepted(self) -> Mapping[str, inspect.Parameter]:
        """What the model can be called with."""
        return inspect.signature(self.model_class.forward).parameters

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads one sequence and a decoder another."""
        return "decoder_input_ids" in self.accepted

    @property
    def hears(self) -> bool:
        """Whether its encoder reads log-mel features instead of tokens."""
        return _hears(self.model_class, self.config)

    def text_of(self, config: Any) -> Any:
        """`config.text_config` in models that also see or hear, else `config`."""
        return getattr(config, "text_config", config)

    def configure(self, overrides: Mapping[str, Any]) -> Any:
        """The config with other numbers in its text part."""
        data = copy.deepcopy(self.data)
        fields = self._fields(data)
        other_names = {name: real for name, real in self.text.attribute_map.items() if real in overrides}
        for name in other_names:
            fields.pop(name, None)
        fields.update(overrides)
        return _make(type(self.config), data, self.name)

    def _fields(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.text is self.config:
            return data
        data["text_config"] = data.get("text_config") or {}
        return data["text_config"]


def _hears(model_class: Any, config: Any) -> bool:
    """Whether an encoder reads features, (B, mel bins, two frames a position), and a decoder tokens."""
    told = vars(config).keys() >= {"num_mel_bins", "max_source_positions"}
    decodes = "decoder_input_ids" in inspect.signature(model_class.forward).parameters
    return told and decodes and bool(model_class.main_input_name == "input_features")


def _read_beside_tokens(model_class: Any, config: Any) -> str:
    """The inputs, in words, of a model that does not run on tokens alone or on features that are known."""
    main, accepted = model_class.main_input_name, inspect.signature(model_class.forward).parameters
    if main != "input_ids":
        return "" if _hears(model_class, config) else str(main)
    seen = [name for name in _SEEN_OR_HEARD if name in accepted]
    return f"{main} and {seen[0]}" if seen and "return_loss" in accepted else ""  # it contrasts the two


def read_family(target: Path) -> Family:
    """The family that a `config.json` names; `target` is the file or its directory."""
    data = _read(target / "config.json" if target.is_dir() else target)
    transformers, name = _transformers(), str(target)
    stored = _stored(data)
    data = {key: value for key, value in data.items() if key not in _IGNORED}
    model_type = data.get("model_type")
    known = transformers.CONFIG_MAPPING
    if model_type is not None and model_type not in known:
        raise ModelFileError(f"{name}: unknown model_type {model_type!r}{_near(model_type, known.keys())}")
    model_class = _model_class(transformers, data, name)
    config_class = known[model_type] if model_type else model_class.config_class
    if not issubclass(config_class, model_class.config_class):
        raise ModelFileError(
            f"{name}: architectures names {model_class.__name__}, which takes "
            f"{model_class.config_class.__name__}, but model_type {model_type!r} is {config_class.__name__}"
        )
    made = _make(config_class, copy.deepcopy(data), name)
    reads = _read_beside_tokens(model_class, made)
    if reads:
        raise Unsupported(
            f"{name}: {model_class.__name__} reads {reads}, and configs are traced for models of "
            "tokens, and of log-mel features as Whisper reads them; write a model file for it, as "
            "examples/vit.py is one of pictures"
        )
    return Family(name, data, made, model_class, stored)


def _stored(data: Mapping[str, Any]) -> str:
    """In words, the dtype and the quantization that a config names; empty for float32 or none."""
    text = data.get("text_config")
    named = [part.get(key) for part in (data, text if isinstance(text, Mapping) else {}) for key in ("dtype", "torch_dtype")]
    dtype = next((str(word).removeprefix("torch.") for word in named if word), "")
    words = [dtype] if dtype not in ("", "auto", "float32") else []
    quantized = data.get("quantization_config")
    if isinstance(quantized, Mapping):
        words.append(f"quantized ({quantized.get('quant_method', 'by a method that it does not name')})")
    return ", ".join(words)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: not a text file ({error.reason} at byte {error.start})") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ModelFileError(f"{path}: a config is a JSON object, and this is a {type(data).__name__}")
    return data


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ModelFileError("a Hugging Face config needs transformers: pip install symacct[hf]") from error
    return transformers


def _model_class(transformers: ModuleType, data: Mapping[str, Any], name: str) -> Any:
    """The class that `architectures` names, else the usual one of `model_type`."""
    named = data.get("architectures") or []
    if not (isinstance(named, list) and all(isinstance(entry, str) for entry in named)):
        raise ModelFileError(f"{name}: architectures must be a list of class names, not {named!r}")
    if not named:
        return getattr(transformers, _usual_class(data.get("model_type"), name))
    try:
        found = getattr(transformers, named[0], None)
    except (ImportError, RuntimeError) as error:  # its file needs a package that is missing
        raise ModelFileError(
            f"{name}: {named[0]} cannot be imported: {' '.join(str(error).split())}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        near = _near(named[0], _model_names())
        raise ModelFileError(
            f"{name}: transformers {transformers.__version__} has no model {named[0]!r}{near}"
        )
    return found


def _usual_class(model_type: str | None, name: str) -> str:
    from transformers.models.auto import modeling_auto

    for table in _FALLBACKS:
        found = getattr(modeling_auto, table).get(model_type)
        if found:
            return found if isinstance(found, str) else found[0]
    what = f"transformers has no language model of type {model_type!r}" if model_type else "it has neither"
    raise ModelFileError(f"{name}: without architectures the class comes from model_type, and {what}")


def _model_names() -> list[str]:
    from transformers.models.auto import modeling_auto

    tables = [table for key, table in vars(modeling_auto).items() if key.endswith("_MAPPING_NAMES")]
    entries = [entry for table in tables for entry in table.values()]
    return sorted({n for e in entries for n in ([e] if isinstance(e, str) else e)})


def _near(word: str, known: Iterable[str]) -> str:
    spelled = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(str(word).lower(), list(spelled), n=3)
    return f"; did you mean {', '.join(spelled[m] for m in matches)}?" if matches else ""


def _make(config_class: Any, data: dict[str, Any], name: str) -> Any:
    try:
        return config_class.from_dict(data)
    except Exception as error:  # whatever the class's own validation raises
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{name}: {config_class.__name__} refuses these fields: {reason}") from error
