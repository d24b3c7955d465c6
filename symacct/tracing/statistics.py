"""Second results of CUDA's kernels where they are other tensors than the CPU's: a norm's statistics, a random state."""

from __future__ import annotations

from typing import Any

import torch

_HALF = (torch.float16, torch.bfloat16)


def _norm_statistics(first: int) -> Any:
    """CUDA keeps a norm's mean and reciprocal deviation in float32 whatever the activations are."""

    def widen(args: Any, result: Any) -> Any:
        if args[0].dtype not in _HALF:
            return result
        wide = [torch.empty_like(part, dtype=torch.float32) for part in result[first:]]
        return (*result[:first], *wide)

    return widen


def _without_random_state(first: int) -> Any:
    """Fused attention also returns the state of the random generator, a few bytes a call: the kernel's bookkeeping."""

    def drop(_: Any, result: Any) -> Any:
        return tuple(part.new_empty(0) if k >= first and isinstance(part, torch.Tensor) else part for k, part in enumerate(result))

    return drop


STATISTICS = {
    "aten.native_layer_norm": _norm_statistics(1),
    "aten.native_group_norm": _norm_statistics(1),
    "aten._scaled_dot_product_flash_attention": _without_random_state(6),
    "aten._scaled_dot_product_efficient_attention": _without_random_state(2),
}
