"""Ops that only put values somewhere: bytes and no FLOPs."""

from __future__ import annotations

from typing import Any

from symacct.graph import Tensor
from symacct.rules.table import ZERO, Cost, moved, rule


@rule(
    "aten._pack_padded_sequence",
    "aten._pin_memory",
    "aten._to_copy",
    "aten.block_diag",
    "aten.cat",
    "aten.channel_shuffle",
    "aten.clone",
    "aten.complex",
    "aten.constant_pad_nd",
    "aten.contiguous",
    "aten.diag_embed",
    "aten.diagonal_backward",
    "aten.diagonal_copy",
    "aten.flip",
    "aten.im2col",
    "aten.lift",
    "aten.lift_fresh_copy",
    "aten.masked_fill",
    "aten.masked_scatter",
    "aten.masked_scatter_backward",
    "aten.max_unpool2d",
    "aten.max_unpool3d",
    "aten.native_channel_shuffle",
    "aten.pixel_shuffle",
    "aten.pixel_unshuffle",
    "aten.reflection_pad1d",
    "aten.reflection_pad2d",
    "aten.reflection_pad3d",
    "aten.repeat",
    "aten.repeat_interleave",
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
    "aten.roll",
    "aten.rot90",
    "aten.select_backward",
    "aten.slice_backward",
    "aten.stack",
    "aten.tril",
    "aten.triu",
    "aten.upsample_nearest1d",
    "aten.upsample_nearest2d",
    "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact1d",
    "aten._upsample_nearest_exact2d",
    "aten._upsample_nearest_exact3d",
    "aten.where",
    "aten._foreach_clone",
)
def copy() -> Cost:
    """Values are moved, padded, repeated, selected or cast: operands read once, output written once."""
    return Cost()


@rule(
    "aten.arange",
    "aten.eye",
    "aten.full",
    "aten.full_like",
    "aten.linspace",
    "aten.logspace",
    "aten.new_full",
    "aten.new_ones",
    "aten.new_zeros",
    "aten.ones",
    "aten.ones_like",
    "aten.scalar_tensor",
    "aten.tril_indices",
    "aten.triu_indices",
    "aten.zero",
    "aten.zeros",
    "aten.zeros_like",
    "aten._foreach_zero",
)
def made() -> Cost:
    """Constants or a ramp: nothing is read, the output is written once."""
    return Cost(read=ZERO)


@rule("aten.fill")
def fill(value: Any) -> Cost:
    """One value everywhere: the output is written once."""
    return Cost(read=moved(value))


@rule("aten.copy", "aten.copy_", "aten._foreach_copy", "aten._foreach_copy_")
def copy_into(src: Any) -> Cost:
    """The source is read, the destination written; what it held is not read."""
    return Cost(read=moved((src,)))


@rule("aten.index")
def index(indices: Any, out: Tensor) -> Cost:
    """The indices and the chosen elements are read, the output is written."""
    return Cost(read=moved(indices) + out.bytes)


@rule("aten.gather", "aten.index_select", "aten.take")
def gather(index: Tensor, out: Tensor) -> Cost:
    """The index and the chosen elements are read, the output is written."""
    return Cost(read=moved(index) + out.bytes)


@rule("aten.embedding")
def embedding(indices: Tensor, out: Tensor) -> Cost:
    """(v,d) looked up: the indices and one row of d for each of them are read, the output is written."""
    return Cost(read=moved(indices) + out.bytes)


@rule("aten.masked_select")
def masked_select(mask: Tensor, out: Tensor) -> Cost:
    """The whole mask and the chosen elements are read, the output is written."""
    return Cost(read=moved(mask) + out.bytes)


@rule("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.as_strided_scatter")
def replaced(out: Tensor) -> Cost:
    """A copy with one region from elsewhere: each element is read from one of the two operands."""
    return Cost(read=out.bytes)
