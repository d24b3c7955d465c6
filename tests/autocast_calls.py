"""A call of each op on CUDA's autocast lists: what torch prints for the dtype of its result is the list's."""

from __future__ import annotations

import torch

_I = torch.zeros(2, dtype=torch.int64)


def sample(*shape, dtype):
    return torch.rand(*shape).mul(0.5).add(0.2).to(dtype)


# op -> arguments, from a function that makes a tensor of the dtype under test
def _cell(gates):
    return lambda t: (t(2, 3), (t(2, 4), t(2, 4)) if gates == 4 else t(2, 4), t(4 * gates, 3), t(4 * gates, 4))


_UNARY = lambda t: (t(2, 3),)  # noqa: E731
_PAIR = lambda t: (t(2, 3), t(2, 3))  # noqa: E731
_SQUARE = lambda t: (t(3, 3), t(3, 3))  # noqa: E731
_VECTORS = lambda t: (t(3), t(3))  # noqa: E731
_BATCHES = lambda t: (t(2, 3, 3), t(2, 3, 3))  # noqa: E731
_HEADS = lambda t: (t(1, 2, 4, 8),) * 3  # noqa: E731
_TRIPLE = lambda t: (t(2, 3), t(2, 3), t(2, 3))  # noqa: E731


def _conv(n):
    return lambda t: (t(1, 2, *[5] * n), t(2, 2, *[3] * n))


LOWER = {
    "_convolution.deprecated": lambda t: (t(1, 2, 5), t(2, 2, 3), None, [1], [0], [1], False, [0], 1, False, False, False),
    "_convolution": lambda t: (t(1, 2, 5), t(2, 2, 3), None, [1], [0], [1], False, [0], 1, False, False, False, False),
    "convolution": lambda t: (t(1, 2, 5), t(2, 2, 3), None, [1], [0], [1], False, [0], 1),
    "conv1d": _conv(1), "conv2d": _conv(2), "conv3d": _conv(3), "conv_transpose1d": _conv(1),
    "conv_transpose2d.input": _conv(2), "conv_transpose3d.input": _conv(3),
    "conv_tbc": lambda t: (t(5, 1, 2), t(3, 2, 2), t(2)),
    "prelu": lambda t: (t(2, 3), t(1)),
    "addmm": lambda t: (t(3, 3), *_SQUARE(t)), "addmv": lambda t: (t(3), t(3, 3), t(3)), "addr": lambda t: (t(3, 3), *_VECTORS(t)),
    "matmul": _SQUARE, "mm": _SQUARE, "mv": lambda t: (t(3, 3), t(3)), "linear": _SQUARE, "linalg_vecdot": _PAIR,
    "einsum": lambda t: ("ij,jk->ik", [*_SQUARE(t)]),
    "addbmm": lambda t: (t(3, 3), *_BATCHES(t)), "baddbmm": lambda t: (t(2, 3, 3), *_BATCHES(t)), "bmm": _BATCHES,
    "chain_matmul": lambda t: ([*_SQUARE(t)],), "linalg_multi_dot": lambda t: ([*_SQUARE(t)],),
    "lstm_cell": _cell(4), "gru_cell": _cell(3), "rnn_tanh_cell": _cell(1), "rnn_relu_cell": _cell(1),
    "scaled_dot_product_attention": _HEADS,
}
FLOAT32 = {
    **dict.fromkeys("acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus".split(), _UNARY),
    "pow.Tensor_Scalar": lambda t: (t(2, 3), 2), "pow.Tensor_Tensor": _PAIR, "pow.Scalar": lambda t: (2, t(2, 3)),
    "layer_norm": lambda t: (t(2, 3), [3]), "native_layer_norm": lambda t: (t(2, 3), [3], None, None, 1e-5),
    "rms_norm": lambda t: (t(2, 3), [3]), "group_norm": lambda t: (t(2, 4, 3), 2),
    "frobenius_norm.dim": lambda t: (t(2, 3), [1]), "nuclear_norm": _UNARY, "nuclear_norm.dim": lambda t: (t(2, 3), [0, 1]),
    "cosine_similarity": _PAIR, "poisson_nll_loss": lambda t: (*_PAIR(t), True, False, 1e-8, 1),
    "cosine_embedding_loss": lambda t: (*_PAIR(t), torch.ones(2)), "nll_loss": lambda t: (t(2, 3), _I),
    "nll_loss2d": lambda t: (t(2, 3, 1, 1), _I.view(2, 1, 1)), "hinge_embedding_loss": _PAIR, "kl_div": _PAIR, "l1_loss": _PAIR,
    "smooth_l1_loss": _PAIR, "huber_loss": _PAIR, "mse_loss": _PAIR, "margin_ranking_loss": _TRIPLE,
    "multilabel_margin_loss": lambda t: (t(2, 3), torch.zeros(2, 3, dtype=torch.int64)), "soft_margin_loss": _PAIR,
    "triplet_margin_loss": _TRIPLE, "multi_margin_loss": lambda t: (t(2, 3), _I), "binary_cross_entropy_with_logits": _PAIR,
    "dist": _PAIR, "pdist": _UNARY, "cdist": _PAIR, "renorm": lambda t: (t(2, 3), 2, 0, 1.0), "logsumexp": lambda t: (t(2, 3), [1]),
    "upsample_nearest1d": lambda t: (t(1, 1, 4), [8]), "_upsample_nearest_exact1d": lambda t: (t(1, 1, 4), [8]),
    "upsample_nearest2d": lambda t: (t(1, 1, 4, 4), [8, 8]), "_upsample_nearest_exact2d": lambda t: (t(1, 1, 4, 4), [8, 8]),
    "upsample_nearest3d": lambda t: (t(1, 1, 2, 2, 2), [4, 4, 4]), "_upsample_nearest_exact3d": lambda t: (t(1, 1, 2, 2, 2), [4, 4, 4]),
    "upsample_linear1d": lambda t: (t(1, 1, 4), [8], False), "upsample_bilinear2d": lambda t: (t(1, 1, 4, 4), [8, 8], False),
    "_upsample_bilinear2d_aa": lambda t: (t(1, 1, 4, 4), [8, 8], False), "upsample_trilinear3d": lambda t: (t(1, 1, 2, 2, 2), [4, 4, 4], False),
    "upsample_bicubic2d": lambda t: (t(1, 1, 4, 4), [8, 8], False), "_upsample_bicubic2d_aa": lambda t: (t(1, 1, 4, 4), [8, 8], False),
    # the two lists that set the dtype of the result
    "prod": _UNARY, "sum": _UNARY, "prod.dim_int": lambda t: (t(2, 3), 1), "sum.dim_IntList": lambda t: (t(2, 3), [1]),
    "softmax.int": lambda t: (t(2, 3), 1), "log_softmax.int": lambda t: (t(2, 3), 1), "cumprod": lambda t: (t(2, 3), 1),
    "cumsum": lambda t: (t(2, 3), 1), "linalg_vector_norm": _UNARY, "linalg_matrix_norm": lambda t: (t(2, 3), 1),
    "linalg_matrix_norm.str_ord": _UNARY, "norm.Scalar": _UNARY, "norm.ScalarOpt_dim": lambda t: (t(2, 3), 2, [1]),
}
# the second dtype is float32
WIDEST = {
    "addcdiv": lambda t, w: (t(2, 3), w(2, 3), t(2, 3)), "addcmul": lambda t, w: (t(2, 3), w(2, 3), t(2, 3)),
    "atan2": lambda t, w: (t(2, 3), w(2, 3)), "bilinear": lambda t, w: (t(2, 3), w(2, 3), t(4, 3, 3), None),
    "cross": lambda t, w: (t(2, 3), w(2, 3)), "dot": lambda t, w: (t(3), w(3)), "vdot": lambda t, w: (t(3), w(3)),
    "grid_sampler": lambda t, w: (t(1, 1, 4, 4), w(1, 2, 2, 2), 0, 0, False), "index_put": lambda t, w: (t(2, 3), [_I], w(2, 3)),
    "tensordot": lambda t, w: (t(2, 3), w(3, 2), [1], [0]), "scatter_add": lambda t, w: (t(2, 3), 0, torch.zeros(2, 3, dtype=torch.int64), w(2, 3)),
}
# kernels that a CPU does not have
GPU_ONLY = {"_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_scaled_dot_product_flash_attention"}
