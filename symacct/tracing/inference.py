"""Inference with the model's own cache: T tokens of a prompt (prefill), or one behind T cached ones (decode).

A cache is any object that the model's forward takes by keyword, empty, and fills in place: the DynamicCache
of transformers, or what a model file's `cache(...)` returns. An encoder-decoder's prompt runs the encoder on S tokens
and the decoder on T; a step of decode runs the decoder alone, beside the S keys and values that were kept. A cache's tensors are those in its lists, dicts and
public attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import sympy as sp
import torch

from symacct.dtypes import width
from symacct.errors import ModelFileError, Unsupported
from symacct.records import Trace
from symacct.tracing.source import ModelSource

CACHED = ("prefill", "decode")
TOKENS = "T"
# what holds no part of a cache; a size that is a symbol would lead to all that torch knows of it
_WITHOUT = (type, str, torch.nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)
_MEANINGS = {
    "prefill": "tokens of the prompt, all of them cached at its end",
    "decode": "tokens cached before the step; attention reads T + 1",
}


def in_mode(source: ModelSource, mode: str) -> ModelSource:
    """The source whose inputs are those of a step in this mode, and whose T means what it means there.

    A step of decode reads one token a sequence: the prompt at T = 1, or what the source says a step reads. Raises Unsupported for a source that has
    no cache to run with.
    """
    if mode not in CACHED:
        return source
    if source.cache is None:
        raise Unsupported(
            f"{source.name}: mode {mode} runs a model with its cache, and this one has none: "
            "a model file defines cache(...), a config names a decoder that keeps keys and values; "
            "--mode forward runs it once, which is all that an encoder does with a prompt"
        )
    if TOKENS not in source.dims:
        raise Unsupported(f"{source.name}: mode {mode} needs a size T, the tokens of a sequence")
    prompt, length = source.prompt or source.inputs, {TOKENS: 1} if mode == "decode" else {}
    read = source.step or prompt if mode == "decode" else prompt

    def inputs(sizes: Mapping[str, Any]) -> Any:
        return read({**sizes, **length})

    meanings = {**source.meanings, TOKENS: _MEANINGS[mode]}
    return replace(source, inputs=inputs, prompt=prompt, meanings=meanings)


def tensors_of(
    cache: Any, name: str = "", around: frozenset[int] = frozenset(), layered: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a cache that has more than one dimension, with its path.

    In a list of nothing but tensors that stands in a list of layers these are named a, b, …, for paths are aligned
    without their indices; any other list is one of layers itself.
    """
    if isinstance(cache, torch.Tensor):
        if cache.dim() > 1:
            yield name, cache
        return
    if id(cache) in around or isinstance(cache, _WITHOUT):
        return
    for key, part in _parts(cache, layered):
        inside = layered or isinstance(cache, list | tuple)
        yield from tensors_of(part, f"{name}.{key}" if name else key, around | {id(cache)}, inside)


def parts_of_longer(trace: Trace) -> list[str]:
    """A remark where what the cache holds after the step is less than the storages that it keeps alive."""
    held = [out for r in trace.records if r.op == "cache" and "after" in r.notes for out in r.outputs]
    kept = sum(trace.storages[storage] for storage in {out.storage for out in held})
    elements = sum(prod(out.shape) * width(out.dtype) for out in held)
    if sp.expand(kept - elements) == 0:
        return []
    return [
        "the cache holds parts of longer tensors, which stay in memory with it: bytes.kv_cache counts its elements, "
        "the peak the whole, in decode as a prompt of T tokens left them"
    ]


def _parts(cache: Any, layered: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(cache, Mapping):
        yield from ((str(key), part) for key, part in cache.items())
    elif isinstance(cache, list | tuple):
        lettered = layered and len(cache) <= 26 and all(isinstance(part, torch.Tensor) for part in cache)
        yield from ((chr(ord("a") + k) if lettered else str(k), part) for k, part in enumerate(cache))
    else:
        own = getattr(cache, "__dict__", {})
        yield from ((key, part) for key, part in own.items() if not key.startswith("_"))


def checked(source: ModelSource, cache: Any) -> Any:
    """The cache with the prompt in it. Raises ModelFileError if it is still empty."""
    if next(tensors_of(cache), None) is None:
        raise ModelFileError(
            f"{source.name}: after the prompt the cache holds no tensor; "
            "the model's forward must fill the one it is given, in place"
        )
    return cache
