"""Rows for reductions, softmax, norms, losses, pooling; see `rule_rows`."""

from __future__ import annotations

import sympy as sp
from rule_rows import IDS, OUT, PAIR, TABLE, G, X, Y, row, t

# sums and their like: 30 elements
row(
    """
        _is_all_true _is_any_true all amax amin any argmax argmin argsort bincount count_nonzero cummax
        cummin cumprod cumsum equal histc kthvalue mean median mode msort nanmedian nonzero prod sort
        sum topk unique_consecutive unique_dim _unique2 max min
    """, {"self": X}, t("o", 2), reduction=30)
row("max min", PAIR, OUT, elementwise=30)
row("aminmax", {"self": X}, (t("a"), t("b")), reduction=60)
row("nansum", {"self": X}, t("o"), elementwise=30, reduction=30)
row("trace", {"self": t("x", 3, 5)}, t("o"), reduction=3, read=12)
row("logcumsumexp", {"self": X}, OUT, elementwise=90, reduction=30, transcendental=60)
row("searchsorted", {"sorted_sequence": t("s", 9), "self": X}, OUT, elementwise=30)
row("bucketize", {"self": X, "boundaries": t("s", 9)}, OUT, elementwise=30)
row("var var_mean", {"self": X}, (t("o", 2), t("m", 2)), elementwise=60, reduction=60)
row("std std_mean", {"self": X}, (t("o", 2), t("m", 2)), elementwise=60, reduction=60, transcendental=2)
row("linalg_vector_norm norm", {"self": X}, t("o", 2), elementwise=30, reduction=30, transcendental=2)
row("linalg_vector_norm", {"self": X, "ord": 1}, t("o", 2), elementwise=30, reduction=30)
row("linalg_vector_norm", {"self": X, "ord": float("inf")}, t("o", 2), elementwise=30, reduction=30)
row("norm", {"self": X, "p": 3.0}, t("o", 2), elementwise=30, reduction=30, transcendental=32)
row("dist", PAIR, t("o"), elementwise=60, reduction=30, transcendental=1)
row("renorm embedding_renorm_", {"self": TABLE}, TABLE, elementwise=1600, reduction=800, transcendental=100)
row("_cdist_forward", {"x1": t("a", 4, 3), "x2": t("b", 5, 3)}, t("o", 4, 5), elementwise=120, reduction=60,
    transcendental=20)
row("_cdist_backward", {"x1": t("a", 4, 3), "cdist": t("d", 4, 5)}, t("o", 4, 3), elementwise=180,
    reduction=60)
row("_pdist_forward", {"self": t("a", 4, 3)}, t("o", 6), elementwise=36, reduction=18, transcendental=6)
row("_pdist_backward", {"self": t("a", 4, 3), "pdist": t("d", 6)}, t("o", 4, 3), elementwise=54, reduction=36)
BAGS = {"weight": TABLE, "indices": IDS, "offsets": t("n", 2, dtype="int64")}
row("_embedding_bag _embedding_bag_forward_only", BAGS, (t("o", 2, 8),), reduction=32, read=128 + 32 + 16)
row("_embedding_bag_backward _embedding_bag_dense_backward", {"grad": t("g", 2, 8), "indices": IDS}, TABLE,
    elementwise=32)

# softmax over 5: 6 rows
row("_softmax _masked_softmax", {"self": X, "dim": -1}, OUT, elementwise=60, reduction=60, transcendental=30)
row("_safe_softmax", {"self": X, "dim": -1}, OUT, elementwise=90, reduction=90, transcendental=30)
row("_log_softmax", {"self": X, "dim": -1}, OUT, elementwise=60, reduction=60, transcendental=36)
GY = {"grad_output": G, "output": Y, "dim": sp.Integer(1)}
row("_softmax_backward_data _masked_softmax_backward", GY, OUT, elementwise=90, reduction=30)
row("_log_softmax_backward_data", GY, OUT, elementwise=60, reduction=30, transcendental=30)
row("logsumexp", {"self": X}, t("o", 6), elementwise=36, reduction=60, transcendental=36)

# norms: 6 rows of 5, or 3 channels of 10
ROW, STAT, CH = t("w", 5), t("r", 2, 3, 1), t("c", 3)
LN_OUT = (OUT, t("m", 2, 3, 1), STAT)
row("native_layer_norm native_group_norm", {"input": X, "weight": ROW, "bias": t("b", 5)}, LN_OUT,
    elementwise=5 * 30 + 6, reduction=60, transcendental=6)
row("native_layer_norm", {"input": X}, LN_OUT, elementwise=3 * 30 + 6, reduction=60, transcendental=6)
row("_fused_rms_norm", {"input": X, "weight": ROW}, (OUT, STAT), elementwise=3 * 30 + 6, reduction=30,
    transcendental=6)
LN_BACK = {"grad_out": G, "input": X, "mean": t("m", 2, 3, 1), "rstd": STAT, "weight": ROW}
row("native_layer_norm_backward native_group_norm_backward", {**LN_BACK, "output_mask": (True, True, True)},
    (OUT, ROW, t("b", 5)), elementwise=(2 + 6 + 1) * 30, reduction=4 * 30)
row("native_layer_norm_backward", {**LN_BACK, "output_mask": (False, False, True)}, (None, None, t("b", 5)),
    reduction=30)
row("_fused_rms_norm_backward", {"grad_out": G, "input": X, "rstd": STAT, "weight": ROW, "output_mask": (True,
    True)},
    (OUT, ROW), elementwise=(1 + 5 + 1) * 30, reduction=2 * 30)
RUN = {"running_mean": t("rm", 3), "running_var": t("rv", 3)}
BN, BN_OUT = {"input": X, "weight": CH, "bias": t("b", 3)}, (OUT, t("m", 3), t("s", 3))
row("native_batch_norm _native_batch_norm_legit cudnn_batch_norm", {**BN, **RUN, "training": True}, BN_OUT,
    elementwise=5 * 30 + 3 + 18, reduction=60, transcendental=3, written=144 + 24)
row("native_batch_norm", {**BN, **RUN, "training": False}, BN_OUT, elementwise=4 * 30 + 3, transcendental=3)
row("_native_batch_norm_legit", {**BN, "training": True}, BN_OUT, elementwise=5 * 30 + 3, reduction=60,
    transcendental=3)
row("_batch_norm_with_update", {**BN, **RUN}, BN_OUT, elementwise=5 * 30 + 3 + 18, reduction=60,
    transcendental=3,
    written=144 + 24)
row("_native_batch_norm_legit_no_training _batch_norm_no_update", {**BN, **RUN}, BN_OUT,
    elementwise=4 * 30 + 3,
    transcendental=3)
BN_BACK = {"grad_out": G, "input": X, "weight": CH, "output_mask": (True, True, True)}
row("native_batch_norm_backward", {**BN_BACK, "train": True}, (OUT, CH, t("db", 3)), elementwise=270,
    reduction=120)
row("native_batch_norm_backward", {**BN_BACK, "train": False}, (OUT, CH, t("b", 3)), elementwise=(2 + 3) * 30,
    reduction=60)
row("batch_norm_backward", {**BN_BACK, "update": True}, (OUT, CH, t("b", 3)), elementwise=270, reduction=120)
row("cudnn_batch_norm_backward", {"input": X, "grad_output": G, "weight": CH}, (OUT, CH, t("b", 3)),
    elementwise=270,
    reduction=120)
row("_weight_norm_interface", {"v": t("v", 4, 5), "g": t("g", 4, 1)}, (t("o", 4, 5), t("n", 4, 1)),
    elementwise=44,
    reduction=20, transcendental=4)
row("_weight_norm_interface_backward", {"saved_v": t("v", 4, 5), "saved_g": t("g", 4, 1)}, (t("o", 4, 5),
    t("n", 4, 1)),
    elementwise=96, reduction=20)

# losses: 30 elements; 6 samples of 5 classes
XY = {"self": X, "target": Y}
row("mse_loss", XY, t("o"), elementwise=60, reduction=30)
row("mse_loss", {**XY, "reduction": 0}, OUT, elementwise=60)
row("huber_loss", XY, t("o"), elementwise=150, reduction=30)
row("smooth_l1_loss", XY, t("o"), elementwise=180, reduction=30)
row("binary_cross_entropy", XY, t("o"), elementwise=240, reduction=30, transcendental=60)
row("binary_cross_entropy_with_logits", {**XY, "pos_weight": t("w", 5)}, t("o"), elementwise=300,
    reduction=30,
    transcendental=60)
row("soft_margin_loss", XY, t("o"), elementwise=60, reduction=30, transcendental=60)
GXY = {"grad_output": t("g"), **XY}
row("mse_loss_backward", GXY, OUT, elementwise=90)
row("huber_loss_backward smooth_l1_loss_backward", GXY, OUT, elementwise=150)
row("binary_cross_entropy_backward", GXY, OUT, elementwise=180)
row("soft_margin_loss_backward", GXY, OUT, elementwise=210, transcendental=30)
LOGITS, LABELS = t("x", 6, 5), t("y", 6, dtype="int64")
row("nll_loss_forward nll_loss2d_forward", {"self": LOGITS, "target": LABELS}, (t("o"), t("n")),
    elementwise=6,
    reduction=6, read=48 + 24)
row("nll_loss_backward nll_loss2d_backward",
    {"grad_output": t("g"), "self": LOGITS, "target": LABELS, "total_weight": t("n")}, t("o", 6, 5),
    elementwise=12,
    read=4 + 48 + 4)
CLASSES = {"self": LOGITS, "target": LABELS}
row("multi_margin_loss", {**CLASSES, "p": 2}, t("o"), elementwise=120, reduction=30)
row("multi_margin_loss_backward", {"grad_output": t("g"), **CLASSES, "p": 1}, t("o", 6, 5), elementwise=120,
    reduction=30)
row("multilabel_margin_loss_forward multilabel_margin_loss_backward", CLASSES, t("o", 6, 5), elementwise=450,
    reduction=150)
ALPHA = t("alpha", 2, 10, 9)
row("_ctc_loss", {"log_probs": t("p", 10, 2, 5)}, (t("o", 2), ALPHA), elementwise=9 * 180,
    transcendental=4 * 180)
row("_ctc_loss_backward", {"log_probs": t("p", 10, 2, 5), "log_alpha": ALPHA}, t("o", 10, 2, 5),
    elementwise=14 * 180 + 300, transcendental=6 * 180 + 200)

# pooling 2 by 3 windows; interpolation; sampling
IMAGE, POOLED = t("x", 2, 3, 4, 6), t("o", 2, 3, 2, 2)      # 144 and 24 elements
WIN = {"self": IMAGE, "kernel_size": (2, 3)}
row("avg_pool2d max_pool2d_with_indices fractional_max_pool2d", WIN, POOLED, reduction=24 * 6)
row("avg_pool3d max_pool3d_with_indices fractional_max_pool3d", {"self": IMAGE, "kernel_size": (2,)}, POOLED,
    reduction=24 * 8)
row("avg_pool2d_backward", {"grad_output": POOLED, **WIN}, IMAGE, elementwise=24 * 7, read=96 + 576)
row("avg_pool3d_backward", {"grad_output": POOLED, "kernel_size": (1, 2, 3)}, IMAGE, elementwise=24 * 7)
row(
    """
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
    """,
    {"grad_output": POOLED, "self": IMAGE, "indices": t("i", 2, 3, 2, 2, dtype="int64")}, IMAGE,
    elementwise=24,
    read=96 + 192)
row("_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d", {"self": IMAGE},
    POOLED,
    reduction=144)
row("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", {"grad_output": POOLED, "self": IMAGE},
    t("o", 144),
    elementwise=24 + 144, read=96)
for name, points in {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}.items():
    row(f"upsample_{name}", {"self": POOLED}, IMAGE, elementwise=144 * (2 * points - 1))
    row(f"upsample_{name}_backward", {"grad_output": IMAGE}, POOLED, elementwise=144 * 2 * points)
GRID = t("grid", 2, 4, 5, 2)      # 40 samples
SAMPLED = t("o", 2, 3, 4, 5)
row("grid_sampler_2d", {"input": IMAGE, "grid": GRID, "interpolation_mode": 0}, SAMPLED,
    elementwise=120 * 7 + 40 * (8 + 4 + 4))
row("grid_sampler_2d", {"input": IMAGE, "grid": GRID, "interpolation_mode": 2}, SAMPLED,
    elementwise=120 * 31 + 40 * (8 + 4 + 16))
row("grid_sampler_3d", {"input": t("x", 2, 3, 4, 4, 4), "grid": t("g", 2, 4, 5, 3), "interpolation_mode": 0},
    SAMPLED,
    elementwise=120 * 15 + 40 * (12 + 6 + 16))
row("grid_sampler_2d_backward", {"grad_output": SAMPLED, "input": IMAGE, "grid": GRID,
    "interpolation_mode": 0,
                                 "output_mask": (True, True)}, (IMAGE, GRID),
                                 elementwise=120 * 4 * 8 + 40 * 16)
row("grid_sampler_3d_backward", {"grad_output": SAMPLED, "grid": t("g", 2, 4, 5, 3), "interpolation_mode": 1,
                                 "output_mask": (True, False)}, (IMAGE, None),
                                 elementwise=120 * 2 + 40 * (12 + 6 + 2))
