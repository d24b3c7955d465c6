"""What some authors charge beside products: so many FLOPs an element for a lookup, a softmax, a norm, a dropout.

A charge has a name and a number; a convention holds some of them. A lookup's is per row of its table and element
found: as if the table were multiplied with rows that are 0 but for a 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy as sp

from symacct.graph import Placed, Tensor, total_over

Expr = sp.Expr

# The forward ops that each charge is for, without a trailing underscore for in place.
CHARGED: Mapping[str, str] = {
    "lookup": "embedding",
    "bias": "addmm baddbmm addmv addbmm",
    "addition": "add sub",
    "scaling": "mul div",
    "softmax": "_softmax _safe_softmax",
    "log-softmax": "_log_softmax",
    "norm": "native_layer_norm native_group_norm _fused_rms_norm",
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
    number = charges.get(_BY_OP.get(op, ""), 0)
    if not number or not node.outputs:
        return sp.Integer(0)
    return sp.expand(total_over(number * _elements(place, tensors), place.loops))


def _elements(place: Placed, tensors: Mapping[str, Tensor]) -> Expr:
    """The elements that a charge is for: the op's result; those of its table for each looked up; the loss's scores."""
    found = place.node.outputs[0].numel
    name = _BY_OP[place.node.op.removesuffix("_")]
    first = next(place.node.refs)
    shape = first.shape if first.shape is not None else tensors[first.value].shape
    if name == "lookup":
        return found * shape[0]
    return sp.Mul(*shape) if name == "target" else found


def _scores(place: Placed, tensors: Mapping[str, Tensor]) -> Expr:
    """The query-key pairs of fused attention, in all heads."""
    query, key = (
        ref.shape if ref.shape is not None else tensors[ref.value].shape
        for ref, _ in zip(place.node.refs, range(2), strict=False)
    )
    return sp.Mul(*query[:-1]) * key[-2]


def _drops(place: Placed) -> bool:
    return bool(dict(place.node.arguments).get("dropout_p"))
