"""What a call gave back: the bytes that a new storage takes, and which parts of the result are tensors."""

from __future__ import annotations

from typing import Any

import torch

from symacct.tracing.private import expression_of


def bytes_of(tensor: torch.Tensor) -> Any:
    """Bytes of a new storage: those of the tensor that it was made for, without a kernel's padding."""
    total = tensor.element_size()
    for size in tensor.shape:
        total = total * expression_of(size)
    return total


def positions(result: Any) -> tuple[int, ...] | None:
    """Which parts of a result are tensors; None when the result is one tensor itself."""
    if isinstance(result, (list, tuple)):
        return tuple(k for k, part in enumerate(result) if isinstance(part, torch.Tensor))
    return None if isinstance(result, torch.Tensor) else ()
