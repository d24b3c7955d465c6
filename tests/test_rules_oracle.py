"""The rules against torch: names against its schemas, products against its counter, fused against unfused.

Where torch's counter has no formula, or a wrong one, loops over scalars count the multiply-adds and must also
give torch's values.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from pricing import priced  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count  # noqa: E402

from symacct.graph import Tensor  # noqa: E402
from symacct.rules import RULES, Cost, price  # noqa: E402

# --- names


def schema_arguments(op):
    packet = op.removeprefix("aten.")
    found = set()
    for name in (packet, f"{packet}_"):
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            found |= {argument.name for argument in schema.arguments}
    return found


@pytest.mark.parametrize("op", sorted(op for op in RULES if not op.startswith("c10d.")))  # these are our own names
def test_rule_names_an_op_of_torch_and_its_arguments(op):
    known = schema_arguments(op)
    assert known, f"torch has no {op}"
    assert set(RULES[op].wants) - {"out"} <= known


# --- products


def counted_by_torch(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def rand(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


SIZES = random.Random(0)


def draw(count):
    return [SIZES.randint(2, 6) for _ in range(count)]


def matrix_step():
    m, k, n = draw(3)
    torch.addmm(rand(n), rand(m, k), rand(k, n)).mul(2).sum().backward()


def linear_step():
    b, m, k, n = draw(4)
    F.linear(rand(b, m, k), rand(n, k), rand(n)).sum().backward()


def batch_step():
    b, m, k, n = draw(4)
    torch.baddbmm(rand(b, m, n), rand(b, m, k), rand(b, k, n)).sum().backward()


def einsum_step():
    b, h, q, k, d = draw(5)
    torch.einsum("bhqd,bhkd->bhqk", rand(b, h, q, d), rand(b, h, k, d)).sum().backward()


def broadcast_step():
    a, b, m, k, n = draw(5)
    (rand(a, 1, m, k) @ rand(b, k, n)).sum().backward()


def convolution_step(rank):
    n, c, o = draw(3)
    sizes = [length + 3 for length in draw(rank)]
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    conv(rand(n, c, *sizes), rand(o, c, *(2,) * rank), rand(o), stride=2, padding=1).sum().backward()


def transposed_forward():
    n, c, o, h, w = draw(5)
    with torch.no_grad():
        F.conv_transpose2d(rand(n, c, h, w), rand(c, o, 3, 2), rand(o), stride=2)


STEPS = {
    "addmm": matrix_step,
    "linear": linear_step,
    "baddbmm": batch_step,
    "einsum": einsum_step,
    "broadcast": broadcast_step,
    "conv1d": lambda: convolution_step(1),
    "conv2d": lambda: convolution_step(2),
    "conv3d": lambda: convolution_step(3),
    "transposed": transposed_forward,
}


@pytest.mark.parametrize("step", STEPS)
def test_products_equal_torchs_counter(step):
    for seed in range(3):
        SIZES.seed(seed)
        ours = priced(STEPS[step]).total("product")
        SIZES.seed(seed)
        assert ours == counted_by_torch(STEPS[step]) > 0


ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable")


@pytest.mark.parametrize("name", ATTENTION)
def test_fused_attention_equals_torchs_formula(name):
    q, k, v = (2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 4)
    grad = (2, 3, 5, 4)
    values = {
        n: Tensor(n, s, "float16", n) for n, s in zip(("query", "key", "value", "grad_out"), (q, k, v, grad), strict=True)
    }
    out = Tensor("out", grad, "float16", "out")
    assert price(f"aten._scaled_dot_product_{name}", values, (out,)).product == sdpa_flop_count(q, k, v)
    backward = price(f"aten._scaled_dot_product_{name}_backward", values, (out,))
    assert backward.product == sdpa_backward_flop_count(grad, q, k, v)
    assert backward.product - backward.recomputed == 2 * sdpa_flop_count(q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_cpu_attention_equals_its_unfused_form(causal):
    """The math backend spells the products out; its backward has no recomputation."""
    q, k, v = (rand(2, 4, 6, 8) for _ in range(3))

    def step():
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

    with sdpa_kernel(SDPBackend.MATH):
        unfused = counted_by_torch(step)
    fused = priced(step)
    assert fused.total("product") - fused.total("recomputed") == unfused == 3 * 4 * 2 * 4 * 6 * 6 * 8
    assert fused.total("recomputed") * 2 == unfused // 3


@pytest.mark.parametrize(("n", "c"), [(5, 5), (3, 7), (7, 3)])
def test_causal_pairs_equal_those_of_the_mask_that_torch_applies(n, c):
    values = {
        name: Tensor(name, (2, 3, length, 4), "float16", name)
        for name, length in (("query", n), ("key", c), ("value", c))
    }
    cost = price("aten._scaled_dot_product_flash_attention", values | {"is_causal": True}, values["query"])
    visible = int(torch.ones(n, c).tril().sum())
    assert cost.causal == 2 * 3 * visible * 2 * (4 + 4)
    q, k = torch.randn(1, 1, n, 4), torch.randn(1, 1, c, 4)
    masked = F.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(n, c).tril().bool())
    assert torch.allclose(F.scaled_dot_product_attention(q, k, k, is_causal=True), masked, atol=1e-6)


# --- products that torch's counter misses or gets wrong: loops


def convolve(x, w, groups, stride, padding, dilation):
    """Grouped 1-d convolution by scalars. Returns the output and the number of multiply-adds."""
    (n, _, length), (o, each, taps) = x.shape, w.shape
    padded = F.pad(x, (padding, padding))
    positions = (length + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    out, count = torch.zeros(n, o, positions, dtype=x.dtype), 0
    for b, j, p, i, t in itertools.product(range(n), range(o), range(positions), range(each), range(taps)):
        channel = j // (o // groups) * each + i
        out[b, j, p] += padded[b, channel, p * stride + t * dilation] * w[j, i, t]
        count += 1
    return out, count


def test_grouped_convolution_and_both_gradients_equal_a_loop():
    x, w = torch.randn(2, 4, 9, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    expected, count = convolve(x, w, 2, 2, 1, 2)
    x.requires_grad_(), w.requires_grad_()
    outs = []
    forward = priced(lambda: outs.append(F.conv1d(x, w, stride=2, padding=1, dilation=2, groups=2)))
    assert torch.allclose(outs[0], expected)
    assert forward.total("product") == 2 * count
    backward = priced(lambda: outs[0].sum().backward())
    assert backward.total("product") == 2 * 2 * count


def test_transposed_convolution_and_both_gradients_equal_a_loop():
    x, w = torch.randn(2, 4, 5, dtype=torch.float64), torch.randn(4, 3, 3, dtype=torch.float64)
    groups, stride = 2, 2
    out, count = torch.zeros(2, 6, 11, dtype=torch.float64), 0
    for b, i, p, j, t in itertools.product(range(2), range(4), range(5), range(3), range(3)):
        out[b, i // 2 * 3 + j, p * stride + t] += x[b, i, p] * w[i, j, t]
        count += 1
    x.requires_grad_(), w.requires_grad_()
    outs = []
    forward = priced(lambda: outs.append(F.conv_transpose1d(x, w, stride=stride, groups=groups)))
    assert torch.allclose(outs[0], out)
    assert forward.total("product") == 2 * count
    assert priced(lambda: outs[0].sum().backward()).total("product") == 2 * 2 * count


def test_only_the_wanted_gradients_of_a_convolution_count():
    w = rand(5, 3, 2)
    out = F.conv1d(torch.randn(2, 3, 7), w)
    assert priced(lambda: out.sum().backward()).total("product") == 2 * (2 * 6) * 5 * 3 * 2


def test_products_of_vectors_and_sums_over_a_batch_equal_a_loop():
    a, b = torch.randn(3, 4, 5), torch.randn(3, 5, 2)
    m, v = torch.randn(4, 5), torch.randn(5)
    out, count = torch.zeros(4, 2), 0
    for batch, i, j, k in itertools.product(range(3), range(4), range(2), range(5)):
        out[i, j] += a[batch, i, k] * b[batch, k, j]
        count += 1
    assert torch.allclose(torch.addbmm(torch.zeros(4, 2), a, b), out, atol=1e-5)
    assert priced(lambda: torch.addbmm(torch.zeros(4, 2), a, b)).total("product") == 2 * count
    assert priced(lambda: torch.mv(m, v)).total("product") == 2 * 4 * 5
    assert priced(lambda: torch.addmv(torch.zeros(4), m, v)).total("product") == 2 * 4 * 5
    assert priced(lambda: torch.dot(v, v)).total("product") == 2 * 5
    assert priced(lambda: torch.outer(v, v)).total("product") == 0


def test_grouped_product_and_its_gradients_count_each_row_once():
    """Rows 0-2 meet the first matrix, rows 3-7 the second: 8 rows of 16 by 16, three times."""
    rows = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)
    experts = torch.randn(2, 16, 16, dtype=torch.bfloat16, requires_grad=True)
    offsets = torch.tensor([3, 8], dtype=torch.int32)

    def step():
        out = F.grouped_mm(rows, experts, offs=offsets)
        (out * out).sum().backward()

    loops = sum(2 * rows_of * 16 * 16 for rows_of in (3, 5))
    assert priced(step).total("product") == 3 * loops


def test_bilinear_contracts_one_index_after_the_other():
    out = priced(lambda: F.bilinear(torch.randn(2, 3), torch.randn(2, 4), torch.randn(5, 3, 4)))
    assert out.total("product") == 2 * 2 * 5 * 3 * 4 + 2 * 2 * 5 * 4


def test_lstm_layer_counts_what_its_cells_count():
    """One layer, by the fused kernel and unrolled by hand into cells."""
    layer = torch.nn.LSTM(4, 6)
    x = torch.randn(5, 3, 4)
    cell = torch.nn.LSTMCell(4, 6)

    def unrolled():
        state = None
        for row in x:
            state = cell(row, state)

    fused, cells = priced(lambda: layer(x)), priced(unrolled)
    assert fused.total("product") == cells.total("product") == 2 * 5 * 3 * 24 * (4 + 6)
    assert fused.total("transcendental") == cells.total("transcendental") == 5 * (5 * 3 * 6)


# --- optimizers


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {}),
        ("Adam", {"weight_decay": 0.1}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"weight_decay": 0.1}),
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "dampening": 0.1}),
        ("Adagrad", {}),
        ("Adagrad", {"weight_decay": 0.1}),
    ],
)
def test_fused_optimizer_counts_what_its_foreach_form_counts(name, options):
    totals = []
    forms = [{"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}]
    for form in forms:
        weight = torch.nn.Parameter(torch.randn(7, 11))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, **options, **form)
        for _ in range(2):
            weight.grad = torch.randn(7, 11)
            mode = priced(optimizer.step)
        scalars = sum(c.elementwise for op, c in mode.costs if c.elementwise == 1)
        totals.append([mode.total("elementwise") - scalars, mode.total("transcendental")])
    assert totals[0] == totals[1] == totals[2]


def test_costs_add_up_and_keep_the_bytes_of_the_first():
    cost = Cost(product=2, read=3) + Cost(product=5, elementwise=1, read=7)
    assert cost == replace(Cost(product=7, elementwise=1), read=3)
