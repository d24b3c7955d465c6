"""Why a model has no formula of a name: another mode has it, or nothing of the kind is there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from symacct.graph import Graph

_TRAINED = (
    "flops.backward flops.step flops.hardware flops.optimizer bytes.grads bytes.optimizer bytes.master "
    "bytes.saved bytes.saved_buffers"
)
_MODES = dict.fromkeys(_TRAINED.split(), ("train",)) | {"bytes.kv_cache": ("prefill", "decode")}
_NOTHING = {
    "bytes.master": "only a recipe that keeps master weights has it, as in --recipe mixed",
    "bytes.saved_buffers": "no buffer is kept for backward",
    "params.active": "it has no sizes E (experts) and k (experts per token)",
    "params.embedding": "it looks up no table",
}


def why_absent(key: str, graph: Graph, keys: Iterable[str]) -> str:
    """A clause on a key that the graph lacks: the modes that have it, the reason, or the key meant."""
    modes = _MODES.get(key, ())
    if modes and graph.mode not in modes:
        return f"--mode {graph.mode} has none: it is there in --mode {' and '.join(modes)}"
    if key in _NOTHING:
        return _NOTHING[key]
    near = get_close_matches(key[:40], list(keys), 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(keys)}"


def unknown_active(graph: Graph, keys: Iterable[str]) -> str:
    """Why active parameters cannot be told: experts are picked under names that are not known; or empty."""
    picks = next((p.node for p in graph.ops if p.node.op == "aten.topk"), None)
    if "params.active" in keys or picks is None:
        return ""
    return (
        f"which parameters of {graph.target} work on one token is not known: it picks by topk "
        f"({picks.source}), and no sizes are named E (experts) and k (experts per token)"
    )
