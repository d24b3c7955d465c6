"""One rank of a model whose sequence ranks divide, with torch's ring attention, in its fake process group.

The model runs on its part of the tokens, as under torch's `context_parallel`; each call of
`scaled_dot_product_attention` becomes the template that torch calls for the kernels of CUDA, forward and
backward, here with the kernel of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from symacct.errors import Unsupported
from symacct.oracles_parallel import Loss, Rank, fake_ranks, step

METHODS = {"allgather": "gathers keys and values", "alltoall": "passes keys and values on"}
_SEQUENCE = 2  # of (batch, heads, sequence, width)
_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True)
class Block:
    """A call of the kernel in forward: heads of all the batch, rows of queries and of keys, the widths of a
    key and of a value together, and whether keys behind a query are masked.
    """

    heads: int
    queries: int
    keys: int
    widths: int
    causal: bool

    @property
    def behind(self) -> int:
        """FLOPs of both products for pairs behind the mask, which lies along the diagonal of a square."""
        pairs = self.heads * self.queries * (self.queries - 1) // 2
        return 2 * self.widths * pairs if self.causal else 0


def ring_rank(
    model: nn.Module,
    inputs: Any,
    loss: Loss | None,
    ranks: int,
    rank: int,
    method: str = "allgather",
    balanced: bool = False,
) -> tuple[Rank, tuple[Block, ...]]:
    """What a rank holds, does and sends in a step, and the blocks of attention of its forward pass.

    `inputs` are the rank's part. `balanced`: each rank has a piece of both ends of the sequence, which torch
    takes where all attention is causal. Raises Unsupported for attention that torch's ring does not take.
    """
    blocks: list[Block] = []
    with (
        fake_ranks(1, ranks, rank=rank) as mesh,
        _options(method, balanced),
        _Ring(mesh["tensor"].get_group(), blocks),
    ):
        return step(model, inputs, loss), tuple(blocks)


@contextmanager
def _options(method: str, balanced: bool) -> Iterator[None]:
    options = ring._cp_options
    before = options.rotate_method, options.enable_load_balance
    ring.set_rotate_method(method)
    options.enable_load_balance = balanced
    try:
        yield
    finally:
        options.rotate_method, options.enable_load_balance = before


class _Ring(TorchFunctionMode):
    """Runs attention as torch's ring, and writes down its blocks."""

    def __init__(self, group: Any, blocks: list[Block]) -> None:
        super().__init__()
        self.group, self.blocks = group, blocks

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if attn_mask is not None:
            raise Unsupported("torch's ring attention takes no mask but the causal one")
        if dropout_p:
            raise Unsupported("the kernel of a CPU, with which torch's ring is run here, has no dropout")
        out: Tensor = _Attention.apply(query, key, value, self.group, self.blocks, is_causal, scale)
        return out


class _Attention(torch.autograd.Function):
    """Torch's templates as one differentiable function; it keeps what the kernel keeps."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        group: Any,
        blocks: list[Block],
        causal: bool,
        scale: Any,
    ) -> Tensor:
        def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            widths = k.shape[-1] + v.shape[-1]
            blocks.append(Block(prod(q.shape[:-2]), q.shape[-2], k.shape[-2], widths, options["is_causal"]))
            return _KERNEL(q, k, v, **options)

        given = {"is_causal": causal, "dropout_p": 0.0, "scale": scale}
        out, logsumexp, *_ = ring._templated_ring_attention(
            group, _SEQUENCE, kernel, query, key, value, **given
        )
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.group, ctx.given = group, given
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        grads = ring._templated_ring_attention_backward(
            ctx.group, _SEQUENCE, _BACKWARD, grad, "grad_out", query, key, value, out, logsumexp, **ctx.given
        )
        return (*grads[:3], None, None, None, None)
