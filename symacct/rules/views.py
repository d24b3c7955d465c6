"""Ops that move nothing: views of a storage, allocations, and questions that Python asks of a tensor."""

from __future__ import annotations

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.table import ZERO, Cost, rule


@rule(
    "aten._conj",
    "aten._neg_view",
    "aten._reshape_alias",
    "aten._unsafe_view",
    "aten.alias",
    "aten.as_strided",
    "aten.detach",
    "aten.diagonal",
    "aten.expand",
    "aten.imag",
    "aten.lift_fresh",
    "aten.narrow",
    "aten.permute",
    "aten.real",
    "aten.reshape",
    "aten.select",
    "aten.slice",
    "aten.split",
    "aten.split_with_sizes",
    "aten.squeeze",
    "aten.t",
    "aten.transpose",
    "aten.unbind",
    "aten.unfold",
    "aten.unsafe_split",
    "aten.unsafe_split_with_sizes",
    "aten.unsqueeze",
    "aten.view",
    "aten.view_as_complex",
    "aten.view_as_real",
    view=True,
)
def view() -> Cost:
    """The same storage under other sizes and strides: nothing is computed, read or written."""
    return Cost()


@rule(
    "aten.empty",
    "aten.empty_like",
    "aten.empty_permuted",
    "aten.empty_strided",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten._efficientzerotensor",
    "aten.resize_",
    "aten.set_",
)
def allocation() -> Cost:
    """A storage without values: nothing is computed, read or written."""
    return Cost(read=ZERO, written=ZERO)


@rule(
    "aten._assert_async",
    "aten._assert_scalar",
    "aten._assert_tensor_metadata",
    "aten.is_same_size",
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
    "aten.sym_numel",
    "aten.sym_size",
    "aten.sym_storage_offset",
    "aten.sym_stride",
    "aten.promote_types",
)
def question() -> Cost:
    """A question about sizes or types: nothing is computed, read or written."""
    return Cost(read=ZERO, written=ZERO)


@rule("aten._local_scalar_dense", "aten.item")
def scalar(self: Tensor) -> Cost:
    """One element goes to Python."""
    return Cost(read=sp.Integer(1) * self.width, written=ZERO)
