"""Inference with the model's own cache: a prompt of T tokens (prefill), or one more token behind T cached ones (decode).

A cache is any object that the model's forward takes by keyword, empty, and fills in place: transformers' DynamicCache,
or what a model file's `cache(...)` returns. Its tensors are found in its lists, dicts and public attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from symacct.errors import ModelFileError, Unsupported
from symacct.tracing.source import ModelSource

CACHED = ("prefill", "decode")
TOKENS = "T"
_MEANINGS = {
    "prefill": "tokens of the prompt, all in the cache at its end",
    "decode": "tokens in the cache before the step; attention reads T + 1",
}


def in_mode(source: ModelSource, mode: str) -> ModelSource:
    """The source whose inputs are those of a step in this mode, and whose T means what it means there.

    In decode that is one token a sequence: the inputs at T = 1. Raises Unsupported when there is no cache to run with.
    """
    if mode not in CACHED:
        return source
    if source.cache is None:
        raise Unsupported(
            f"{source.name}: mode {mode} runs a model with its cache, and this one has none: a model file defines "
            "cache(...), a config names a decoder that takes past_key_values"
        )
    if TOKENS not in source.dims:
        raise Unsupported(f"{source.name}: mode {mode} needs the size T, the tokens of a sequence")
    prompt, length = source.prompt or source.inputs, {TOKENS: 1} if mode == "decode" else {}

    def inputs(sizes: Mapping[str, Any]) -> Any:
        return prompt({**sizes, **length})

    meanings = {**source.meanings, TOKENS: _MEANINGS[mode]}
    return replace(source, inputs=inputs, prompt=prompt, meanings=meanings)


def tensors_of(cache: Any, name: str = "", seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with elements in a cache, by its path.

    The tensors of a list that holds nothing else are named a, b, …, so that those of one layer differ in name.
    """
    if isinstance(cache, torch.Tensor):
        if cache.dim() > 1:
            yield name, cache
        return
    if id(cache) in seen or isinstance(cache, type | str | torch.nn.Module):
        return
    for key, part in _parts(cache):
        yield from tensors_of(part, f"{name}.{key}" if name else key, seen | {id(cache)})


def _parts(cache: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(cache, Mapping):
        yield from ((str(key), part) for key, part in cache.items())
    elif isinstance(cache, list | tuple):
        leaf = all(isinstance(part, torch.Tensor) for part in cache) and len(cache) <= 26
        yield from ((chr(ord("a") + k) if leaf else str(k), part) for k, part in enumerate(cache))
    else:
        own = vars(cache) if hasattr(cache, "__dict__") else {}
        yield from ((key, part) for key, part in own.items() if not key.startswith("_") and "config" not in key)


def checked(source: ModelSource, cache: Any) -> Any:
    """The cache once the prompt is in it. Raises ModelFileError if it is still empty."""
    if next(tensors_of(cache), None) is None:
        raise ModelFileError(f"{source.name}: after the prompt the cache holds no tensor; the model's forward must fill it in place")
    return cache
