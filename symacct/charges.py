"""What some authors charge beside products: FLOPs an element of a lookup, a softmax, a norm, a dropout.

A charge has a name and a number; a convention holds some. A lookup's is per row of its
table and element found, as if the table were multiplied with rows that are 0 but for a 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy as sp
from sympy import Expr

from symacct.graph import Placed, Ref, Tensor, total_over

# The forward ops that each charge is for, without a trailing underscore for in place.
CHARGED: Mapping[str, str] = {
    "lookup": "embedding",
    "bias": "addmm baddbmm addmv addbmm",
    "addition": "add sub",
    "scaling": "mul div",
    "softmax": "_softmax _safe_softmax",
    "log-softmax": "_log_softmax",
    "norm": "native_layer_norm native_group_norm _fused_rms_norm",
    "batch norm": "native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update",
    "running norm": "_native_batch_norm_legit_no_training _batch_norm_no_update",
    "mean pooling": "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    "nearest": "upsample_nearest2d",
    "bilinear": "upsample_bilinear2d",
    "dropout": "native_dropout",
    "activation": "gelu relu silu tanh sigmoid elu leaky_relu mish hardswish",
    "target": "nll_loss_forward",
}
_BY_OP = {f"aten.{op}": name for name, ops in CHARGED.items() for op in ops.split()}
_FUSED = "aten._scaled_dot_product"
_IN_FUSED = ("scaling", "softmax", "dropout")


def charged(place: Placed, tensors: Mapping[str, Tensor], charges: Mapping[str, int]) -> Expr:
    """What a node costs by these charges, over all its repetitions; 0 for one that none of them is for."""
    node = place.node
    op = node.op.removesuffix("_")
    if op.startswith(_FUSED) and "backward" not in op:
        each = sum(charges.get(name, 0) for name in _IN_FUSED if name != "dropout" or _drops(place))
        return sp.expand(total_over(each * _scores(place, tensors), place.loops)) if each else sp.Integer(0)
    name = _name(place)
    number = charges.get(name, 0)
    if not number or not node.outputs:
        return sp.Integer(0)
    if name.endswith("norm") and not isinstance(dict(node.arguments).get("weight"), Ref):
        number += charges.get("norm without weights", 0)
    return sp.expand(total_over(number * _elements(place, name, tensors), place.loops))


def _name(place: Placed) -> str:
    """The charge that is for a node, "" for none. ATen's pooling to 1 by 1 is a mean that keeps the image."""
    given = dict(place.node.arguments)
    op = place.node.op.removesuffix("_")
    if op == "aten.mean":
        return "mean pooling" if given.get("keepdim") and given.get("dim") == (-1, -2) else ""
    name = _BY_OP.get(op, "")
    return "running norm" if name == "batch norm" and given.get("training") is False else name


def _elements(place: Placed, name: str, tensors: Mapping[str, Tensor]) -> Expr:
    """The elements that a charge is for: the result's, for each row of a table; the scores'; the image's."""
    found = place.node.outputs[0].numel
    first = next(place.node.refs)
    shape = first.shape if first.shape is not None else tensors[first.value].shape
    if name == "lookup":
        return found * shape[0]
    return sp.Mul(*shape) if name in ("target", "mean pooling") else found


def _scores(place: Placed, tensors: Mapping[str, Tensor]) -> Expr:
    """The query-key pairs of fused attention, in all heads."""
    query, key = (
        ref.shape if ref.shape is not None else tensors[ref.value].shape
        for ref, _ in zip(place.node.refs, range(2), strict=False)
    )
    return sp.Mul(*query[:-1]) * key[-2]


def _drops(place: Placed) -> bool:
    return bool(dict(place.node.arguments).get("dropout_p"))
