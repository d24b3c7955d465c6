"""Elementwise counts against formulas run on a scalar that counts.

Each formula must give torch's own value, so it is the op's formula, and the operations that it makes are what
the rule says.
"""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from counting_scalar import (  # noqa: E402
    Scalar,
    erf,
    exp,
    expm1,
    floor,
    larger,
    largest,
    log,
    log1p,
    rsqrt,
    sigmoid,
    sin,
    smaller,
    sqrt,
    tanh,
    total,
    trunc,
)
from pricing import described, priced  # noqa: E402

from symacct.graph import Tensor  # noqa: E402
from symacct.rules import price  # noqa: E402


def gelu_tanh_gradient(g, x):
    k, c = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    t = tanh(k * (x + c * (square * x)))
    left, right = 0.5 * x, 1 + t
    inner = k * (1 + 3 * c * square)
    return g * (0.5 * right + left * (1 - t * t) * inner)


def mish_gradient(g, x):
    t, s = tanh(log1p(exp(x))), sigmoid(x)
    return g * (t + x * s * (1 - t * t))


def silu_gradient(g, x):
    s = sigmoid(x)
    return g * s * (1 + x * (1 - s))


def log_sigmoid_gradient(g, x, _buffer):
    z = exp(-abs(x))
    m, s = (1, 1) if x < 0 else (0, -1)
    return g * (m - s * (z / (1 + z)))


def softplus(x):
    scaled = x * 1
    log_term = log1p(exp(scaled)) / 1
    return x if scaled > 20 else log_term


def softplus_gradient(g, x):
    scaled = x * 1
    z = exp(scaled)
    inside = g * z / (z + 1)
    return g if scaled > 20 else inside


def huber(x, y):
    z = abs(x - y)
    return 0.5 * z * z if z < 1 else 1 * (z - 0.5)


def soft_margin_gradient(g, x, y):
    minus = -y
    z = exp(minus * x)
    return minus * z / (1 + z) * 1 * g


def sinc(x):
    scaled = math.pi * x
    return sin(scaled) / scaled


def elu_gradient(g, x):
    inside = g * 1 * exp(x * 1)
    return inside if x <= 0 else g


A = torch.ops.aten
FORMULAS = {  # op: (what torch runs, the same by scalars, operands)
    "frac": (A.frac, lambda x: x - trunc(x), "x"),
    "floor_divide": (A.floor_divide, lambda x, y: floor(x / y), "xy"),
    "remainder": (A.remainder, lambda x, y: x - y * floor(x / y), "xy"),
    "fmod": (A.fmod, lambda x, y: x - y * trunc(x / y), "xy"),
    "lerp": (lambda x, y, w: torch.lerp(x, y, w), lambda x, y, w: x + w * (y - x), "xyp"),
    "addcmul": (A.addcmul, lambda x, y, z: x + y * z, "xyx"),
    "addcdiv": (A.addcdiv, lambda x, y, z: x + y / z, "xyx"),
    "hypot": (A.hypot, lambda x, y: sqrt(x * x + y * y), "xy"),
    "xlogy": (A.xlogy, lambda x, y: x * log(y), "xp"),
    "special_xlog1py": (A.special_xlog1py, lambda x, y: x * log1p(y), "xp"),
    "special_entr": (A.special_entr, lambda x: -x * log(x), "p"),
    "sinc": (A.sinc, sinc, "x"),
    "logit": (A.logit, lambda x: log(x / (1 - x)), "p"),
    "logit_backward": (A.logit_backward, lambda g, x: g / (x * (1 - x)), "gp"),
    "logaddexp": (A.logaddexp, lambda x, y: larger(x, y) + log1p(exp(-abs(x - y))), "xy"),
    "silu": (A.silu, lambda x: x * sigmoid(x), "x"),
    "silu_backward": (A.silu_backward, silu_gradient, "gx"),
    "sigmoid_backward": (A.sigmoid_backward, lambda g, y: g * y * (1 - y), "gx"),
    "tanh_backward": (A.tanh_backward, lambda g, y: g * (1 - y * y), "gx"),
    "celu": (A.celu, lambda x: x if x > 0 else 1 * expm1(x / 1), "n"),
    "elu_backward": (lambda g, x: A.elu_backward(g, 1, 1, 1, False, x), elu_gradient, "gx"),
    "softplus": (A.softplus, softplus, "x"),
    "softplus_backward": (lambda g, x: A.softplus_backward(g, x, 1, 20), softplus_gradient, "gx"),
    "log_sigmoid_forward": (A.log_sigmoid_forward, lambda x: smaller(0, x) - log1p(exp(-abs(x))), "x"),
    "log_sigmoid_backward": (
        lambda g, x, z: A.log_sigmoid_backward(g, x, torch.exp(-abs(x))),
        log_sigmoid_gradient,
        "gxx",
    ),
    "mish": (A.mish, lambda x: x * tanh(log1p(exp(x))), "x"),
    "mish_backward": (A.mish_backward, mish_gradient, "gx"),
    "hardsigmoid": (A.hardsigmoid, lambda x: smaller(larger(x + 3, 0), 6) / 6, "x"),
    "hardswish": (A.hardswish, lambda x: x * smaller(larger(x + 3, 0), 6) / 6, "x"),
    "gelu": (A.gelu, lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5))), "x"),
    "gelu tanh": (
        lambda x: A.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))),
        "x",
    ),
    "gelu_backward": (
        A.gelu_backward,
        lambda g, x: (
            g * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * (exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))))
        ),
        "gx",
    ),
    "gelu_backward tanh": (lambda g, x: A.gelu_backward(g, x, approximate="tanh"), gelu_tanh_gradient, "gx"),
    "mse_loss": (lambda x, y: A.mse_loss(x, y, 0), lambda x, y: square_of(x - y), "xy"),
    "mse_loss_backward": (
        lambda g, x, y: A.mse_loss_backward(g, x, y, 0),
        lambda g, x, y: 2 * (x - y) * g,
        "gxy",
    ),
    "huber_loss": (lambda x, y: A.huber_loss(x, y, 0), huber, "xy"),
    "binary_cross_entropy": (
        lambda x, y: A.binary_cross_entropy(x, y, None, 0),
        lambda x, y: -(y * larger(log(x), -100) + (1 - y) * larger(log(1 - x), -100)),
        "pp",
    ),
    "binary_cross_entropy_backward": (
        lambda g, x, y: A.binary_cross_entropy_backward(g, x, y, None, 0),
        lambda g, x, y: g * (x - y) / larger((1 - x) * x, 1e-12),
        "gpp",
    ),
    "binary_cross_entropy_with_logits": (
        lambda x, y: A.binary_cross_entropy_with_logits(x, y, None, None, 0),
        lambda x, y: (1 - y) * x - (smaller(0, x) - log1p(exp(-abs(x)))),
        "xp",
    ),
    "soft_margin_loss": (lambda x, y: A.soft_margin_loss(x, y, 0), lambda x, y: log1p(exp(-y * x)), "xy"),
    "soft_margin_loss_backward": (
        lambda g, x, y: A.soft_margin_loss_backward(g, x, y, 0),
        soft_margin_gradient,
        "gxy",
    ),
}


def square_of(x):
    return x * x


RANGES = {"x": (-2, 2), "y": (0.5, 1.5), "n": (-2, -0.1), "p": (0.1, 0.9), "g": (0.5, 1.5)}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_gives_torchs_value_and_the_rules_counts(name):
    run, formula, operands = FORMULAS[name]
    numbers = random.Random(name)
    values = [numbers.uniform(*RANGES[kind]) for kind in operands]
    results = []
    mode = priced_last(lambda: results.append(run(*(torch.tensor([v], dtype=torch.float64) for v in values))))
    Scalar.fresh()
    ours = formula(*map(Scalar, values))
    result = results[0][0] if isinstance(results[0], tuple) else results[0]
    assert ours.value == pytest.approx(float(result), rel=1e-6)
    assert {kind: getattr(mode, kind) for kind in Scalar.counts} == Scalar.counts


def priced_last(run):
    return priced(run).costs[-1][1]


# --- rows: the same for ops that reduce


def softmax(x):
    top = largest(x)
    e = [exp(a - top) for a in x]
    s = total(e)
    return [a / s for a in e]


def log_softmax(x):
    top = largest(x)
    shifted = [a - top for a in x]
    s = log(total([exp(a) for a in shifted]))
    return [a - s for a in shifted]


def softmax_gradient(g, y):
    products = [a * b for a, b in zip(g, y, strict=True)]
    s = total(products)
    return [p - b * s for p, b in zip(products, y, strict=True)]


def log_softmax_gradient(g, y):
    s = total(g)
    return [a - exp(b) * s for a, b in zip(g, y, strict=True)]


def mean(x):
    return Scalar(total(x).value / len(x))


def layer_norm(x, w, b):
    m = mean(x)
    centred = [a - m for a in x]
    r = rsqrt(mean([a * a for a in centred]) + 1e-5)
    return [a * r * c + d for a, c, d in zip(centred, w, b, strict=True)]


def rms_norm(x, w):
    r = rsqrt(mean([a * a for a in x]) + 1e-5)
    return [a * r * c for a, c in zip(x, w, strict=True)]


def statistics(x):
    m = sum(a.value for a in x) / len(x)
    return m, 1 / math.sqrt(sum((a.value - m) ** 2 for a in x) / len(x) + 1e-5)


def layer_norm_gradient(g, x, w):
    m, r = statistics(x)
    hats = [(a - m) * r for a in x]
    scaled = [a * c for a, c in zip(g, w, strict=True)]
    along = mean([a * h for a, h in zip(scaled, hats, strict=True)])
    level = mean(scaled)
    dx = [(a - (level + h * along)) * r for a, h in zip(scaled, hats, strict=True)]
    return dx, [accumulated(a * h) for a, h in zip(g, hats, strict=True)], [accumulated(a) for a in g]


def accumulated(scalar):
    Scalar.counts["reduction"] += 1
    return scalar


def layer_norm_step(g, x, w):
    m, r = statistics_of(x)
    return A.native_layer_norm_backward(g, x, [x.shape[-1]], m, r, w, torch.zeros_like(w), [True] * 3)


def statistics_of(x):
    m = x.mean(-1, keepdim=True)
    return m, (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()


ROWS = {
    "_softmax": (lambda x: A._softmax(x, -1, False), softmax, 1),
    "_log_softmax": (lambda x: A._log_softmax(x, -1, False), log_softmax, 1),
    "_softmax_backward_data": (
        lambda g, y: A._softmax_backward_data(g, y, -1, torch.float64),
        softmax_gradient,
        2,
    ),
    "_log_softmax_backward_data": (
        lambda g, y: A._log_softmax_backward_data(g, y, -1, torch.float64),
        log_softmax_gradient,
        2,
    ),
    "native_layer_norm": (
        lambda x, w, b: A.native_layer_norm(x, [x.shape[-1]], w, b, 1e-5)[0],
        layer_norm,
        3,
    ),
    "native_layer_norm_backward": (layer_norm_step, layer_norm_gradient, 3),
    "logsumexp": (
        lambda x: A.logsumexp(x, [-1]),
        lambda x: [(top := largest(x)) + log(total([exp(a - top) for a in x]))],
        1,
    ),
    "linalg_vector_norm": (
        lambda x: A.linalg_vector_norm(x, 2, [-1]),
        lambda x: [sqrt(total([a * a for a in x]))],
        1,
    ),
    "var": (
        lambda x: A.var.correction(x, [-1], correction=0),
        lambda x: (lambda m: [mean([square_of(a - m) for a in x])])(mean(x)),
        1,
    ),
}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [float(entry) for entry in value.flatten()]
    if isinstance(value, list | tuple):
        return [entry for part in value for entry in flat(part)]
    return [value.value]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_by_scalars_gives_torchs_values_and_the_rules_counts(name):
    run, formula, operands = ROWS[name]
    numbers = random.Random(name)
    rows = [[numbers.uniform(0.1, 0.9) for _ in range(5)] for _ in range(operands)]
    first, *rest = (torch.tensor(row, dtype=torch.float64) for row in rows)
    vectors = [first[None]] + [
        t[None] if "backward_data" in name or ("norm_backward" in name and i == 0) else t
        for i, t in enumerate(rest)
    ]
    results = []
    cost = priced_last(lambda: results.append(run(*vectors)))
    Scalar.fresh()
    ours = formula(*([Scalar(v) for v in row] for row in rows))
    assert flat(ours) == pytest.approx(flat(results[0]), rel=1e-6)
    assert {kind: getattr(cost, kind) for kind in Scalar.counts} == Scalar.counts


def test_rms_norm_by_scalars_gives_torchs_values_and_the_rules_counts():
    """On a CPU torch runs it in parts, so the rule is asked directly."""
    x, w = torch.rand(5), torch.rand(5)
    Scalar.fresh()
    ours = rms_norm([Scalar(v) for v in x], [Scalar(v) for v in w])
    assert flat(ours) == pytest.approx(flat(F.rms_norm(x, (5,), w, 1e-5)), rel=1e-5)
    out = (Tensor("out", (1, 5), "float32", "out"), Tensor("rstd", (1, 1), "float32", "rstd"))
    cost = price("aten._fused_rms_norm", {"input": described(x), "weight": described(w)}, out)
    assert {kind: getattr(cost, kind) for kind in Scalar.counts} == Scalar.counts
