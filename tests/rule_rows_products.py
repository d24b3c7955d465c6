"""Rows for products, attention, recurrence and optimizers; see `rule_rows`."""

from __future__ import annotations

from rule_rows import X, Y, row, t

# products: (m,k) by (k,n) = (2,3) by (3,5)
A, B, MN = t("a", 2, 3), t("b", 3, 5), t("o", 2, 5)
BA, BB, BMN = t("a", 7, 2, 3), t("b", 7, 3, 5), t("o", 7, 2, 5)
V3 = t("v", 3)
row("mm matmul", {"self": A, "mat2": B}, MN, product=2 * 2 * 3 * 5)
row("_int_mm", {"self": t("a", 2, 3, dtype="int8"), "mat2": t("b", 3, 5, dtype="int8")}, MN, product=60)
row("bmm matmul", {"self": BA, "mat2": BB}, BMN, product=7 * 60)
# k = 1 still counts
row("bmm", {"self": t("a", 7, 2, 1), "mat2": t("b", 7, 1, 5)}, BMN, product=7 * 2 * 2 * 5)
row("mv", {"self": A, "vec": V3}, t("o", 2), product=12)
row("dot vdot", {"self": V3, "tensor": t("w", 3)}, t("o"), product=6)
row("linear", {"input": BA, "weight": t("w", 5, 3), "bias": t("b", 5)}, BMN, product=420, elementwise=70)
row("linear", {"input": BA, "weight": t("w", 5, 3)}, BMN, product=420)
row("addmm", {"self": t("c", 5), "mat1": A, "mat2": B}, MN, product=60, elementwise=10)
row("addmm", {"self": t("c", 5), "mat1": A, "mat2": B, "beta": 0, "alpha": 2}, MN, product=60, elementwise=10)
row("addmm", {"self": t("c", 5), "mat1": A, "mat2": B, "beta": 0.5, "alpha": 2}, MN, product=60,
    elementwise=30)
row("_addmm_activation", {"self": t("c", 5), "mat1": A, "mat2": B}, MN, product=60, elementwise=20)
row("_addmm_activation", {"self": t("c", 5), "mat1": A, "mat2": B, "use_gelu": True}, MN, product=60,
    elementwise=90,
    transcendental=10)
row("baddbmm", {"self": t("c", 7, 2, 5), "batch1": BA, "batch2": BB}, BMN, product=420, elementwise=70)
row("addbmm", {"self": t("c", 2, 5), "batch1": BA, "batch2": BB}, MN, product=420, elementwise=10)
row("addmv", {"self": t("c", 2), "mat": A, "vec": V3}, t("o", 2), product=12, elementwise=2)
row("addr", {"self": t("c", 2, 5), "vec1": t("v", 2), "vec2": t("w", 5)}, MN, elementwise=20)
GROUPS = t("offs", 7, dtype="int32")
# each row in one group
row("_grouped_mm", {"self": A, "mat2": BB, "offs": GROUPS}, MN, product=60)
# each column in one
row("_grouped_mm", {"self": BA, "mat2": B, "offs": GROUPS}, MN, product=420)
# each k in one
row("_grouped_mm", {"self": A, "mat2": B, "offs": GROUPS}, BMN, product=60)
row("_grouped_mm", {"self": BA, "mat2": BB, "bias": t("c", 5)}, BMN, product=420, elementwise=70)
row("_scaled_grouped_mm _scaled_grouped_mm_v2", {"self": A, "mat2": BB, "offs": GROUPS}, MN, product=60,
    elementwise=20)
row("_scaled_mm _scaled_mm_v2", {"self": A, "mat2": B, "bias": t("c", 5)}, MN, product=60, elementwise=30)
row("_weight_int8pack_mm", {"self": A, "mat2": t("b", 5, 3, dtype="int8")}, MN, product=60, elementwise=10)
row("_weight_int4pack_mm _weight_int4pack_mm_for_cpu", {"self": A, "mat2": t("b", 5, 2, dtype="uint8")}, MN,
    product=60, elementwise=2 * 3 * 5)
row("_foreach_mm", {"self": (A, A), "mat2": (B, t("c", 3, 4))}, (MN, t("p", 2, 4)), product=60 + 48)
row("_trilinear", {"i1": t("x", 2, 3), "i2": t("w", 5, 3, 4), "i3": t("y", 2, 4)}, t("o", 2, 5),
    product=2 * 2 * 5 * 3 * 4 + 2 * 2 * 5 * 4)
SOLVE = {"self": t("a", 4, 4), "B": t("b", 4, 3)}
# 3·(1+2+3) multiply-adds and 12 divisions
row("linalg_solve_triangular", SOLVE, t("o", 4, 3), elementwise=12 * 4)
row("linalg_solve_triangular", {**SOLVE, "unitriangular": True}, t("o", 4, 3), elementwise=12 * 3)
row("affine_grid_generator", {"theta": t("a", 2, 2, 3)}, t("o", 2, 4, 5, 2), product=2 * 2 * 20 * 2 * 3)

# convolution: 4 channels in 2 groups to 6, 3 by 3, 5 by 5 to 3 by 3
IMG, KER, FEAT = t("x", 2, 4, 5, 5), t("w", 6, 2, 3, 3), t("y", 2, 6, 3, 3)
SWEEP = 2 * (2 * 3 * 3) * 6 * 2 * 9
row("convolution", {"input": IMG, "weight": KER, "bias": t("b", 6), "transposed": False}, FEAT, product=SWEEP,
    elementwise=108)
BACK = {"grad_output": FEAT, "input": IMG, "weight": KER, "transposed": False}
row("convolution_backward", {**BACK, "output_mask": (True, True, True)}, (IMG, KER, t("b", 6)),
    product=2 * SWEEP,
    reduction=108)
row("convolution_backward", {**BACK, "output_mask": (False, True, False)}, (None, KER, None), product=SWEEP,
    read=432 + 800)
UP = t("w", 4, 3, 3, 3)      # 4 channels in 2 groups to 6, transposed
row("convolution", {"input": IMG, "weight": UP, "transposed": True}, t("y", 2, 6, 7, 7),
    product=2 * 200 * 3 * 9)
row("convolution_backward", {"grad_output": t("g", 2, 6, 7, 7), "input": IMG, "weight": UP,
    "transposed": True,
                             "output_mask": (True, False, False)}, (IMG, None, None), product=2 * 200 * 3 * 9,
    read=588 * 4 + 108 * 4)

# attention: 2 · 3 heads, 5 queries, 7 keys, widths 4 and 6
Q, K, VALUE = t("q", 2, 3, 5, 4), t("k", 2, 3, 7, 4), t("v", 2, 3, 7, 6)
ATT, LSE, GRAD = t("o", 2, 3, 5, 6), t("lse", 2, 3, 5), t("g", 2, 3, 5, 6)
PAIRS = 6 * 5 * 7
QKV = {"query": Q, "key": K, "value": VALUE}
FORWARD = {"product": 2 * PAIRS * 10, "elementwise": 3 * PAIRS, "reduction": 2 * PAIRS, "transcendental": PAIRS}
row(
    """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_fused_attention_overrideable
    """, QKV, (ATT, LSE), **FORWARD)
row("_scaled_dot_product_flash_attention_for_cpu", {**QKV, "attn_mask": t("m", 5, 7), "dropout_p": 0.0}, (ATT,
    LSE),
    **{**FORWARD, "elementwise": 4 * PAIRS})
row("_scaled_dot_product_efficient_attention", {**QKV, "dropout_p": 0.1}, (ATT, LSE),
    **{**FORWARD, "elementwise": 6 * PAIRS})
row("_scaled_dot_product_efficient_attention", {**QKV, "attn_bias": t("m", 0)}, (ATT, LSE), **FORWARD)
row("_scaled_dot_product_efficient_attention", {**QKV, "attn_bias": t("m", 1)}, (ATT, LSE),
    **{**FORWARD, "elementwise": 4 * PAIRS})
SQUARE = {name: t(name, 2, 3, 5, 4) for name in ("query", "key", "value")}
row("_scaled_dot_product_flash_attention", {**SQUARE, "is_causal": True}, (Q, LSE), product=2 * 150 * 8,
    elementwise=450,
    reduction=300, transcendental=150, causal=2 * 6 * 15 * 8)
BACKWARD = {"product": 2 * PAIRS * (3 * 4 + 2 * 6), "recomputed": 2 * PAIRS * 4, "elementwise": 5 * PAIRS + 180,
                "reduction": 180, "transcendental": PAIRS}
SAVED = {"grad_out": GRAD, **QKV, "out": ATT, "logsumexp": LSE}
row(
    """
        _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_fused_attention_overrideable_backward
    """, SAVED, (Q, K, VALUE), **BACKWARD)
MHA = {"query": t("x", 2, 5, 8), "key": t("x", 2, 5, 8), "value": t("x", 2, 5, 8), "embed_dim": 8,
    "num_head": 2}
SCORES = 2 * 2 * 25
row("_native_multi_head_attention", {**MHA, "proj_weight": t("p", 8, 8)}, (t("o", 2, 5, 8),),
    product=2 * 10 * 8 * 24 + 4 * 2 * 25 * 8 + 2 * 10 * 8 * 8, elementwise=240 + 3 * SCORES + 80,
    reduction=2 * SCORES,
    transcendental=SCORES)
LAYER = {"src": t("x", 2, 5, 8), "embed_dim": 8, "num_heads": 2, "qkv_weight": t("qkv", 24, 8),
         "proj_weight": t("p", 8, 8), "ffn_weight_1": t("f", 16, 8)}
row("_transformer_encoder_layer_fwd", LAYER, t("o", 2, 5, 8),
    product=2 * 10 * 8 * (24 + 8 + 16 + 16) + 4 * 2 * 25 * 8,
    elementwise=240 + 3 * SCORES + 80 + (160 + 80) + 160 + 2 * (5 * 80 + 10) + 2 * 80,
    reduction=2 * SCORES + 4 * 80, transcendental=SCORES + 2 * 10)

# recurrence: 5 steps of 3 sequences, 4 in, 6 hidden
SEQ, CELL = t("x", 5, 3, 4), t("c", 3, 6)
LSTM = {"input": SEQ, "mode": 2, "hidden_size": 6, "has_biases": True}
row("mkldnn_rnn_layer", {**LSTM, "weight0": t("wi", 24, 4), "weight1": t("wh", 24, 6)}, (t("o", 5, 3, 6),),
    product=2 * 15 * 24 * 10, elementwise=90 * 16, transcendental=90 * 5)
row("mkldnn_rnn_layer_backward", {**LSTM, "weight1": t("wi", 24, 4), "weight2": t("wh", 24, 6)}, (SEQ,),
    product=4 * 15 * 24 * 10, elementwise=90 * 21, reduction=90 * 8)
STACK = {"input": SEQ, "weight": (t("a", 18, 4), t("b", 18, 6), t("c", 18), t("d", 18)), "mode": 3,
    "hidden_size": 6,
         "num_layers": 1, "bidirectional": False}
row("_cudnn_rnn", STACK, (t("o", 5, 3, 6),), product=2 * 15 * 18 * 10, elementwise=90 * 15,
    transcendental=90 * 3)
row("_cudnn_rnn_backward", STACK, (SEQ,), product=4 * 15 * 18 * 10, elementwise=90 * 16, reduction=90 * 6)
PLAIN = {**LSTM, "weight0": t("wi", 6, 4), "weight1": t("wh", 6, 6), "has_biases": False}
row("mkldnn_rnn_layer", {**PLAIN, "mode": 0}, (t("o", 5, 3, 6),), product=2 * 15 * 6 * 10, elementwise=90 * 2)
row("mkldnn_rnn_layer", {**PLAIN, "mode": 1}, (t("o", 5, 3, 6),), product=2 * 15 * 6 * 10, elementwise=90,
    transcendental=90)
row("_cudnn_rnn", {**STACK, "bidirectional": True, "num_layers": 2}, (t("o", 5, 3, 12),),
    product=2 * 15 * 18 * 10,
    elementwise=4 * 90 * 15, transcendental=4 * 90 * 3)
row("_thnn_fused_lstm_cell", {"input_gates": t("i", 3, 24), "hidden_gates": t("h", 3, 24), "cx": CELL,
                              "input_bias": t("b", 24)}, (CELL,), elementwise=18 * 16, transcendental=18 * 5)
row("_thnn_fused_lstm_cell_backward_impl", {"cx": CELL, "has_bias": True}, (t("o", 3, 24),),
    elementwise=18 * 21,
    reduction=18 * 4, transcendental=18)
row("_thnn_fused_gru_cell", {"input_gates": t("i", 3, 18), "hx": CELL}, (CELL,), elementwise=18 * 9,
    transcendental=18 * 3)
row("_thnn_fused_gru_cell_backward", {"grad_hy": CELL, "has_bias": False}, (t("o", 3, 18),),
    elementwise=18 * 16)

# lists: 30 and 4 elements
SMALL = t("s", 4)
LIST, OTHER = (X, SMALL), (Y, t("u", 4))
for names, each in {
    "neg reciprocal abs sign ceil floor round trunc mul div add sub clamp_max clamp_min maximum minimum": (1,
    0),
    "frac": (2, 0), "lerp": (3, 0),
    "exp expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh erf erfc lgamma "
    "sigmoid": (0, 1),
}.items():
    row(" ".join(f"_foreach_{name}" for name in names.split()), {"self": LIST}, OTHER,
    elementwise=34 * each[0],
        transcendental=34 * each[1])
row("_foreach_add _foreach_sub", {"self": LIST, "other": OTHER, "alpha": 2}, LIST, elementwise=68)
row("_foreach_mul_", {"self": LIST, "scalar": 0.9}, None, elementwise=34, written=136)
row("_foreach_addcmul _foreach_addcdiv", {"self": LIST, "tensor1": OTHER, "tensor2": OTHER}, LIST,
    elementwise=68)
row("_foreach_addcdiv_", {"self": LIST, "tensor1": OTHER, "tensor2": OTHER, "scalars": (1.0, 2.0)}, None,
    elementwise=102, written=136)
row("_foreach_pow", {"self": LIST, "exponent": 2}, OTHER, elementwise=34)
row("_foreach_pow", {"self": 0.9, "exponent": LIST}, OTHER, transcendental=34)
row("_foreach_norm", {"self": LIST}, (t("a"), t("b")), elementwise=34, reduction=34, transcendental=2)
row("_foreach_max", {"self": LIST}, (t("a"), t("b")), reduction=34)
STEP = {"self": LIST, "grads": OTHER, "state_steps": (t("a"), t("b"))}
MOMENTS = {"exp_avgs": (t("m", 30), t("n", 4)), "exp_avg_sqs": (t("p", 30), t("r", 4)), "max_exp_avg_sqs": ()}
row("_fused_adam_ _fused_adam", {**STEP, **MOMENTS, "weight_decay": 0.0}, None, elementwise=34 * 12,
    transcendental=34,
    written=3 * 136)
row("_fused_adam_", {**STEP, **MOMENTS, "weight_decay": 0.1}, None, elementwise=34 * 14, transcendental=34,
    written=3 * 136)
row("_fused_adamw_ _fused_adamw", {**STEP, **MOMENTS, "weight_decay": 0.1}, None, elementwise=34 * 13,
    transcendental=34,
    written=3 * 136)
SGD = {"self": LIST, "grads": OTHER, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
row("_fused_sgd_ _fused_sgd", {**SGD, "momentum_buffer_list": ()}, None, elementwise=68, written=136)
row("_fused_sgd_", {**SGD, "momentum": 0.9, "nesterov": True, "momentum_buffer_list": MOMENTS["exp_avgs"]},
    None,
    elementwise=34 * 6, written=2 * 136)
row("_fused_adagrad_ _fused_adagrad", {**STEP, "state_sums": MOMENTS["exp_avgs"]}, None, elementwise=34 * 6,
    transcendental=34, written=2 * 136)
row("_amp_foreach_non_finite_check_and_unscale_", {"self": LIST, "found_inf": t("f", 1), "inv_scale": t("s",
    1)}, None,
    elementwise=68, written=136 + 4)
row("_amp_update_scale_", {"self": t("s", 1), "growth_tracker": t("n", 1, dtype="int32")}, t("s", 1),
    elementwise=2,
    written=8)
