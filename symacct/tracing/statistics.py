"""Second results of kernels where they are other tensors than torch's shape functions say: a norm's statistics, a random
state of CUDA's.
"""

from __future__ import annotations

from typing import Any

import torch

_HALF = (torch.float16, torch.bfloat16)


def _norm_statistics(weight: int) -> Any:
    """CUDA keeps a norm's mean and reciprocal deviation in float32 whatever the activations are; a CPU only if weights of
    float32, which are the argument at this place, norm narrower activations (ATen/native/cpu/mixed_data_type.h).
    """

    def widen(args: Any, result: Any, device: str) -> Any:
        weights = args[weight] if len(args) > weight else None
        mixed = weights is not None and weights.dtype == torch.float32
        if args[0].dtype not in _HALF or not (mixed or device == "cuda"):
            return result
        wide = [part if part.dtype == torch.float32 else torch.empty_like(part, dtype=torch.float32) for part in result[1:]]
        return (result[0], *wide)

    return widen


def _without_random_state(first: int) -> Any:
    """Fused attention also returns the state of the random generator, a few bytes a call: the kernel's bookkeeping."""

    def drop(_: Any, result: Any, device: str) -> Any:
        if device != "cuda":
            return result
        return tuple(part.new_empty(0) if k >= first and isinstance(part, torch.Tensor) else part for k, part in enumerate(result))

    return drop


STATISTICS = {
    "aten.native_layer_norm": _norm_statistics(2),
    "aten.native_group_norm": _norm_statistics(1),
    "aten.native_batch_norm": _norm_statistics(1),
    "aten._scaled_dot_product_flash_attention": _without_random_state(6),
    "aten._scaled_dot_product_efficient_attention": _without_random_state(2),
}
