"""The rules' costs by hand: a row an op or family, at sizes small enough to count on paper.

A row is (op, arguments, output, expected). What a row leaves out is 0; `read` and `written` are left out
where they are every operand once and every output once.
"""

from __future__ import annotations

import sympy as sp

from symacct.graph import Tensor

ROWS: list = []


def t(name, *shape, dtype="float32"):
    return Tensor(name, tuple(map(sp.sympify, shape)), dtype, name)


def row(ops, values, out, **expected):
    ROWS.extend((f"aten.{op}", values, out, expected) for op in ops.split())


X, Y, G = t("x", 2, 3, 5), t("y", 2, 3, 5), t("g", 2, 3, 5)      # 30 elements, 120 bytes
OUT, MASK = t("out", 2, 3, 5), t("mask", 2, 3, 5, dtype="bool")
PAIR = {"self": X, "other": Y}

# pointwise: (elementwise, transcendental) for each of 30 elements
COUNTED = {
    (1, 0): """
        mul reciprocal deg2rad rad2deg abs neg sign sgn floor ceil round trunc copysign nextafter
        positive maximum minimum fmax fmin clamp_min clamp_max relu threshold eq ne lt le gt ge isnan
        isinf isposinf isneginf signbit threshold_backward logical_and logical_or logical_xor
        logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
        bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__ __and__ __or__ __xor__ add sub
        rsub div
    """,
    (2, 0): """
        frac floor_divide heaviside hardtanh hardtanh_backward hardshrink hardshrink_backward
        softshrink_backward leaky_relu leaky_relu_backward _prelu_kernel rrelu_with_noise
        rrelu_with_noise_backward addcmul addcdiv
    """,
    (3, 0): """
        nan_to_num softshrink lerp linalg_cross logit_backward sigmoid_backward tanh_backward
        hardsigmoid_backward
    """,
    (4, 0): "remainder fmod hardsigmoid",
    (5, 0): "hardswish hardswish_backward",
    (0, 1): """
        exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh
        asinh acosh atanh angle sigmoid erf erfc erfinv lgamma digamma polygamma mvlgamma igamma igammac
        gcd lcm i0 special_i0e special_i1 special_i1e special_erfcx special_log_ndtr special_ndtri
        special_zeta special_bessel_j0 special_bessel_j1 pow
    """,
    (1, 1): "xlogy special_xlog1py ldexp silu glu",
    (2, 1): "special_entr sinc logit",
    (2, 2): "polar",
    (3, 1): "hypot elu celu selu hann_window hamming_window",
    (3, 2): "softplus",
    (4, 1): "gelu elu_backward",
    (4, 2): "log_sigmoid_forward",
    (5, 1): "silu_backward softplus_backward",
    (5, 2): "logaddexp logaddexp2",
    (8, 1): "log_sigmoid_backward",
    (9, 2): "gelu_backward",
    (1, 3): "mish",
    (6, 4): "mish_backward",
}
for (elementwise, transcendental), ops in COUNTED.items():
    row(ops, PAIR, OUT, elementwise=30 * elementwise, transcendental=30 * transcendental)

row("add sub rsub", {**PAIR, "alpha": 0.5}, OUT, elementwise=60)
row("add", {**PAIR, "alpha": sp.Integer(1)}, OUT, elementwise=30)
row("add", {"self": X, "other": X}, OUT, elementwise=30, read=120)  # x once
row("add_", PAIR, X, elementwise=30)
row("addcmul addcdiv", {"self": X, "tensor1": Y, "tensor2": G, "value": -0.1}, OUT, elementwise=90)
row("div", {**PAIR, "rounding_mode": "floor"}, OUT, elementwise=60)
row("clamp", {"self": X, "min": 0.0}, OUT, elementwise=30)
row("clamp", {"self": X, "min": 0.0, "max": sp.Integer(1)}, OUT, elementwise=60)
row("pow", {"self": X, "exponent": 2}, OUT, elementwise=30)
row("pow", {"self": X, "exponent": sp.Float(3.0)}, OUT, elementwise=60)
row("pow", {"self": X, "exponent": -1}, OUT, elementwise=30)
row("pow", {"self": X, "exponent": -2}, OUT, elementwise=60)
row("pow", {"self": X, "exponent": 1}, OUT)
row("pow", {"self": X, "exponent": t("e")}, OUT, transcendental=30)
row("gelu", {"self": X, "approximate": "tanh"}, OUT, elementwise=240, transcendental=30)
row("gelu_backward", {"grad_output": G, "self": X, "approximate": "tanh"}, OUT, elementwise=510,
    transcendental=30)
row("elu_backward", {"grad_output": G, "self_or_result": X, "is_result": True}, OUT, elementwise=120)
row("glu_backward", {"grad_output": G, "self": t("w", 2, 3, 10)}, t("o", 2, 3, 10), elementwise=150,
    transcendental=30)
row("_prelu_kernel_backward", {"grad_output": G, "self": X, "weight": t("w", 1)}, (OUT, t("dw", 2, 3, 5)),
    elementwise=90)
row("isin", {"elements": X, "test_elements": t("s", 7)}, MASK, elementwise=210)
row("isin", {"elements": X, "test_element": 3}, MASK, elementwise=30)

# views, allocations, questions
row(
    """
        _conj _neg_view _reshape_alias _unsafe_view alias as_strided detach diagonal expand imag
        lift_fresh narrow permute real reshape select slice squeeze t transpose unfold unsqueeze view
        view_as_complex view_as_real
    """,
    {"self": X}, OUT, read=0, written=0)
row("split split_with_sizes unbind unsafe_split unsafe_split_with_sizes", {"self": X}, (t("a", 15), t("b",
    15)),
    read=0, written=0)
row("transpose_ unsqueeze_", {"self": X}, X, read=0, written=0)
row(
    """
        empty empty_like empty_permuted empty_strided new_empty new_empty_strided _efficientzerotensor
        resize_ set_
    """,
    {"self": X}, OUT, read=0, written=0)
row(
    """
        _assert_async _assert_scalar _assert_tensor_metadata is_same_size sym_constrain_range
        promote_types sym_constrain_range_for_size sym_numel sym_size sym_storage_offset sym_stride
    """, {"self": X}, None,
    read=0, written=0)
row("_local_scalar_dense item", {"self": t("s", dtype="int64")}, None, read=8, written=0)

# copies
row(
    """
        _pin_memory _to_copy channel_shuffle clone contiguous constant_pad_nd diag_embed
        diagonal_backward diagonal_copy flip im2col lift lift_fresh_copy masked_scatter_backward
        max_unpool2d max_unpool3d native_channel_shuffle pixel_shuffle pixel_unshuffle reflection_pad1d
        reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d
        replication_pad3d roll rot90 select_backward slice_backward tril triu upsample_nearest1d
        upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d _pack_padded_sequence
    """, {"self": X}, t("o", 7, 10, dtype="bfloat16"), read=120,
    written=140)
row("cat stack block_diag", {"tensors": (X, Y, X)}, t("o", 90), read=360, written=360)
row("_foreach_clone", {"self": (X, Y)}, (t("a", 30), t("b", 30)), read=240, written=240)
row("where", {"condition": MASK, "self": X, "other": Y}, OUT, read=30 + 240)
row("masked_fill masked_scatter", {"self": X, "mask": MASK}, OUT, read=120 + 30)
row("complex", {"real": X, "imag": Y}, t("o", 30, dtype="complex64"), written=240)
row(
    """
        arange eye full full_like linspace logspace new_full new_ones new_zeros ones ones_like
        scalar_tensor tril_indices triu_indices zeros zeros_like
    """, {"self": X}, OUT, read=0)
row("zero zero_", {"self": X}, X, read=0)
row("_foreach_zero_", {"self": (X, Y)}, None, read=0, written=240)
row("fill fill_", {"self": X, "value": 1.0}, X, read=0)
row("fill", {"self": X, "value": t("v")}, X, read=4)
row("copy copy_", {"self": X, "src": t("src", 2, 3, 5, dtype="bfloat16")}, X, read=60)
row("_foreach_copy _foreach_copy_", {"self": (X, Y), "src": (G, OUT)}, (X, Y), read=240)

# lookups: 4 of 100 rows of 8
TABLE, IDS, ROWS_OUT = t("w", 100, 8), t("i", 4, dtype="int64"), t("o", 4, 8)
row("embedding", {"weight": TABLE, "indices": IDS}, ROWS_OUT, read=32 + 128)
row("index", {"self": TABLE, "indices": (None, IDS)}, ROWS_OUT, read=32 + 128)
row("index_select", {"self": TABLE, "dim": 0, "index": IDS}, ROWS_OUT, read=32 + 128)
row("gather take", {"self": TABLE, "index": IDS}, t("o", 4), read=32 + 16)
row("masked_select", {"self": X, "mask": MASK}, t("o", 7), read=30 + 28)
row("slice_scatter select_scatter diagonal_scatter as_strided_scatter", {"self": X, "src": t("s", 2, 5)}, OUT,
    read=120)
row("embedding_dense_backward", {"grad_output": ROWS_OUT, "indices": IDS}, TABLE, elementwise=32,
    read=128 + 32)

# scatters: 4 rows of 8 into 100 rows
SRC = t("src", 4, 8)
INTO = {"self": TABLE, "dim": 0, "index": IDS, "source": SRC}
row("index_add index_reduce", INTO, t("o", 100, 8), elementwise=32, read=3200 + 32 + 128)
row("index_add_ index_reduce_", INTO, TABLE, elementwise=32, read=128 + 32 + 128, written=128)
row("index_copy", INTO, t("o", 100, 8), read=3200 + 32 + 128)
row("index_copy_", INTO, TABLE, read=32 + 128, written=128)
row("index_fill", {"self": TABLE, "dim": 0, "index": IDS, "value": 0}, t("o", 100, 8), read=3200 + 32)
row("index_fill_", {"self": TABLE, "dim": -2, "index": IDS, "value": 0}, TABLE, read=32, written=4 * 8 * 4)
AT = {"self": TABLE, "indices": (IDS,), "values": SRC}
row("index_put _unsafe_index_put", {**AT, "accumulate": True}, t("o", 100, 8), elementwise=32,
    read=3200 + 32 + 128)
row("index_put_ _index_put_impl_", {**AT, "accumulate": True}, TABLE, elementwise=32, read=32 + 128 + 128,
    written=128)
row("index_put_", AT, TABLE, read=32 + 128, written=128)
row("index_put_", {"self": X, "indices": (MASK,), "values": t("v")}, X, read=30 + 4, written=120)
row("index_put_", {"self": X, "indices": (None, t("i", 4, dtype="int64"), t("j", 1, dtype="int64")),
    "values": t("v")},
    X, read=32 + 8 + 4, written=2 * 4 * 4)
PLACES = {"self": TABLE, "index": t("i", 4, 8, dtype="int64"), "src": SRC, "source": SRC}
SCATTER = {name: PLACES[name] for name in ("self", "index", "src")}
row("scatter", SCATTER, t("o", 100, 8), read=3200 + 256 + 128)
row("scatter", {"self": TABLE, "index": PLACES["index"], "value": 1.0}, t("o", 100, 8), read=3200 + 256)
row("scatter_", SCATTER, TABLE, read=256 + 128, written=128)
row("scatter_add scatter_reduce", SCATTER, t("o", 100, 8), elementwise=32, read=3200 + 256 + 128)
row("scatter_add_ scatter_reduce_", SCATTER, TABLE, elementwise=32, read=256 + 128 + 128, written=128)
PUT = {name: PLACES[name] for name in ("self", "index", "source")}
row("put", PUT, t("o", 100, 8), read=3200 + 256 + 128)
row("put_", {**PUT, "accumulate": True}, TABLE, elementwise=32, read=256 + 128 + 128, written=128)
row("col2im", {"self": X}, t("o", 9), elementwise=30)
row("unfold_backward", {"grad_in": G}, t("o", 9), elementwise=30)
row(
    """
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward
    """,
    {"grad_output": G}, t("o", 9), elementwise=30)
row(
    """
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    """, {"grad_output": G, "self": Y}, t("o", 9),
    elementwise=30, read=120)

# draws
row("rand rand_like randint randint_like randn randn_like randperm", {"self": X}, OUT, read=0)
row("cauchy exponential geometric log_normal random uniform normal_ uniform_ exponential_", {"self": X}, X,
    read=0)
row("normal", {"mean": X, "std": 1.0}, OUT)
row("poisson multinomial", {"self": X}, OUT)
row("bernoulli", {"self": X}, OUT, elementwise=30)
row("bernoulli_", {"self": X, "p": 0.5}, X, elementwise=30, read=0)
row("native_dropout", {"input": X, "p": 0.1, "train": True}, (OUT, MASK), elementwise=90, written=120 + 30)
row("native_dropout", {"input": X, "p": 0.1, "train": False}, (OUT, MASK))
row("native_dropout_backward", {"grad_output": G, "mask": MASK, "scale": 2.0}, OUT, elementwise=60,
    read=120 + 30)
