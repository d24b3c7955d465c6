"""Fused attention. N queries of width e and C keys in each head, values of width v.

Forward: scores (e), softmax, mix (v). Backward: the scores again (e, counted as `recomputed`), then the
gradients of value (v), of the weights (v), of query (e) and of key (e): without the first, twice the forward.
Query heads set the count: several of them may share one key and value head.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from symacct.graph import Tensor
from symacct.rules.pointwise import GELU_ERF
from symacct.rules.table import Cost, Expr, given, numel, rule


def pairs(query: Tensor, key: Tensor) -> Expr:
    """Query-key pairs of all heads, masked ones included."""
    return sp.Mul(*query.shape[:-1]) * key.shape[-2]


def unmasked(query: Tensor, key: Tensor, is_causal: Any) -> Expr:
    """Pairs in which the query at i may see the key at j <= i: N C - N (N - 1) / 2 when N = C is square.

    ATen aligns the mask at the first key, so queries beyond the last key see all of them. In place of True,
    `is_causal` may be a number of ranks that divide the queries so that each has as many pairs as the others.
    """
    ranks = sp.Integer(1) if is_causal is True else is_causal
    heads, n, c = sp.Mul(*query.shape[:-2]), query.shape[-2] * ranks, key.shape[-2]
    m = sp.Min(n, c)
    return heads * (m * (m + 1) / 2 + (n - m) * c) / ranks


def weighing(count: Expr, masked: int, dropped: bool) -> Cost:
    """Scale, mask, softmax and dropout of each score."""
    return Cost(elementwise=(3 + masked + 3 * dropped) * count, reduction=2 * count, transcendental=count)


def forward(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout_p: Any, is_causal: Any) -> Cost:
    """Two sweeps over the pairs: one of width e, one of width v."""
    each = 2 * (query.shape[-1] + value.shape[-1])
    count = pairs(query, key)
    cost = weighing(count, given(mask), bool(dropout_p))
    causal = each * unmasked(query, key, is_causal) if is_causal else None
    return Cost(each * count, cost.elementwise, cost.reduction, cost.transcendental, causal=causal)


def backward(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout_p: Any, is_causal: Any) -> Cost:
    """Five sweeps over the pairs, three of width e and two of width v; the first repeats the scores."""
    e, v = query.shape[-1], value.shape[-1]
    count = pairs(query, key)
    each = 2 * (3 * e + 2 * v)
    results = sp.Mul(*query.shape[:-1]) * v
    return Cost(
        product=each * count,
        elementwise=(5 + given(mask) + 4 * bool(dropout_p)) * count + results,
        reduction=results,
        transcendental=count,
        recomputed=2 * e * count,
        causal=each * unmasked(query, key, is_causal) if is_causal else None,
    )


def mask_of(mask: Tensor | None) -> Tensor | None:
    """The mask, unless the trace holds an empty tensor in its place."""
    return None if mask is None or numel(mask) == 0 else mask


@rule("aten._scaled_dot_product_flash_attention")
def flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: Any, is_causal: Any) -> Cost:
    """(b,h,n,e) against (b,h,c,e) and (b,h,c,v): a multiply-add for each pair and each of e + v."""
    return forward(query, key, value, None, dropout_p, is_causal)


@rule("aten._scaled_dot_product_flash_attention_backward")
def flash_backward(query: Tensor, key: Tensor, value: Tensor, dropout_p: Any, is_causal: Any) -> Cost:
    """A multiply-add for each pair and each of 3e + 2v, of which e repeats the forward."""
    return backward(query, key, value, None, dropout_p, is_causal)


@rule("aten._scaled_dot_product_flash_attention_for_cpu")
def flash_for_cpu(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: Any, is_causal: Any
) -> Cost:
    """(b,h,n,e) against (b,h,c,e) and (b,h,c,v): a multiply-add for each pair and each of e + v."""
    return forward(query, key, value, mask_of(attn_mask), dropout_p, is_causal)


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def flash_for_cpu_backward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: Any, is_causal: Any
) -> Cost:
    """A multiply-add for each pair and each of 3e + 2v, of which e repeats the forward."""
    return backward(query, key, value, mask_of(attn_mask), dropout_p, is_causal)


@rule(
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
)
def biased(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, dropout_p: Any, is_causal: Any
) -> Cost:
    """(b,h,n,e) against (b,h,c,e) and (b,h,c,v), biased: a multiply-add for each pair and each of e + v."""
    return forward(query, key, value, mask_of(attn_bias), dropout_p, is_causal)


@rule(
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
)
def biased_backward(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, dropout_p: Any, is_causal: Any
) -> Cost:
    """A multiply-add for each pair and each of 3e + 2v, of which e repeats the forward."""
    return backward(query, key, value, mask_of(attn_bias), dropout_p, is_causal)


def attended(query: Tensor, key: Tensor, embed_dim: Expr, num_head: Expr, mask: Any) -> Cost:
    """The two products of attention between (b,n,d) and (b,c,d) in `num_head` heads, and its weights."""
    b, n, _ = query.shape
    count = b * n * key.shape[-2]
    weights = weighing(count * num_head, given(mask), False)
    return weights + Cost(product=4 * count * embed_dim)


def projected(rows: Tensor, weight: Tensor) -> Cost:
    """(b,n,i) by (o,i) with a bias: a multiply-add for each (b,n,i,o), an addition for each (b,n,o)."""
    results = sp.Mul(*rows.shape[:-1]) * weight.shape[0]
    return Cost(product=2 * results * weight.shape[1], elementwise=results)


@rule("aten._native_multi_head_attention")
def multi_head(
    query: Tensor, key: Tensor, embed_dim: Any, num_head: Any, proj_weight: Tensor, mask: Any
) -> Cost:
    """Projections of query, key and value, attention, and the output's projection, each with its bias."""
    third = Cost(
        product=2 * (numel(query) + 2 * numel(key)) * embed_dim, elementwise=numel(query) + 2 * numel(key)
    )
    return third + attended(query, key, embed_dim, num_head, mask) + projected(query, proj_weight)


@rule("aten._transformer_encoder_layer_fwd")
def encoder_layer(
    src: Tensor,
    embed_dim: Any,
    num_heads: Any,
    qkv_weight: Tensor,
    proj_weight: Tensor,
    use_gelu: Any,
    ffn_weight_1: Tensor,
    mask: Any,
) -> Cost:
    """A whole layer: projections, attention, two linear maps and an activation, two norms, two sums."""
    n, rows = numel(src), sp.Mul(*src.shape[:-1])
    inner = rows * ffn_weight_1.shape[0]
    activation, calls = GELU_ERF if use_gelu else (1, 0)
    norms = Cost(elementwise=10 * n + 2 * rows, reduction=4 * n, transcendental=2 * rows)
    hidden = Cost(
        product=4 * inner * embed_dim,
        elementwise=inner + n + activation * inner,
        transcendental=calls * inner,
    )
    attention = (
        projected(src, qkv_weight)
        + attended(src, src, embed_dim, num_heads, mask)
        + projected(src, proj_weight)
    )
    return attention + hidden + norms + Cost(elementwise=2 * n)
