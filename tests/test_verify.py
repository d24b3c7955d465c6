"""Certificates: formulas of real models pass, and each kind of mistake makes them fail at its op and line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import sympy as sp
import torch

import symacct
from symacct.account import Ledger
from symacct.certificate import Certificate, Check
from symacct.errors import Unsupported
from symacct.graph import Loop
from symacct.rules import table
from symacct.symbols import symbol
from symacct.targets import source_of
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.verify import verify
from symacct.verify_points import countable, degenerate_points, generic_points
from symacct.verify_shapes import Call, align, comparable, unfold

EXAMPLES = Path(__file__).parents[1] / "examples"


def derived(name, device="cuda", mode="train"):
    source = source_of(str(EXAMPLES / f"{name}.py"))
    return source, Builder(source, mode, device).graph(f"examples/{name}.py")


@pytest.fixture(scope="module")
def mlp():
    return derived("mlp")


@pytest.fixture(scope="module")
def gpt():
    return derived("gpt")


def failures(certificate):
    return [(c.quantity, dict(c.point), c.observed, c.expected, c.where) for c in certificate.failures]


def changed(items, op, change):
    """The items with every node of this op changed."""
    return tuple(
        replace(item, items=changed(item.items, op, change)) if isinstance(item, Loop) else change(item) if item.op == op else item
        for item in items
    )


# What holds is certified


def test_mlp_passes_every_check_and_lifting_agrees(mlp):
    source, graph = mlp
    certificate = verify(source, graph=graph, points=5)
    assert certificate.verified, failures(certificate)
    assert len(certificate.points) >= 5 + 1  # one more with B = 1
    assert len({tuple(p.items()) for p in certificate.points}) == len(certificate.points)
    quantities = {c.quantity for c in certificate.checks}
    assert quantities >= {
        "params.total", "params.trainable", "flops.forward", "flops.backward", "flops.hardware",
        "bytes.params", "bytes.grads", "bytes.optimizer", "shapes",
    }
    assert [c.quantity for c in certificate.checks if c.oracle.startswith("lifting")] == [
        "params.total", "flops.forward", "flops.backward",
    ]


def test_gpt_passes_at_generic_and_degenerate_points(gpt):
    source, graph = gpt
    certificate = verify(source, graph=graph, points=2, lifting=False)
    assert certificate.verified, failures(certificate)
    assert {p["B"] for p in certificate.points} & {1} and {p["T"] for p in certificate.points} & {1}
    assert any("flash_attention_for_cpu" in note for note in certificate.notes)


def test_lstm_passes_with_its_unrolled_time():
    source = model_source(
        "a recurrent layer",
        dims={"B": 2, "T": 5, "d": 6},
        model=lambda d: torch.nn.LSTM(d, d, batch_first=True),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        loss=lambda output: output[0].sum(),
    )
    certificate = verify(source, points=2, lifting=False)
    assert certificate.verified, failures(certificate)
    assert any("oneDNN" in note for note in certificate.notes)


def test_forward_mode_has_no_backward_checks():
    source, graph = derived("mlp", mode="forward")
    certificate = verify(source, mode="forward", graph=graph, points=1, lifting=False)
    assert certificate.verified, failures(certificate)
    assert not [c for c in certificate.checks if "backward" in c.quantity or "grads" in c.quantity]


def test_the_same_seed_gives_the_same_certificate(mlp):
    source, graph = mlp
    one, two = (verify(source, graph=graph, points=1, seed=3, lifting=False).as_json() for _ in range(2))
    assert json.dumps(one) == json.dumps(two)


def test_json_has_the_contract_s_keys(mlp):
    source, graph = mlp
    made = verify(source, graph=graph, points=1, lifting=False).as_json()
    assert made["verified"] is True
    assert {"quantity", "oracle", "point", "formula", "observed", "equal"} <= set(made["checks"][0])
    json.dumps(made)


# A mistake fails, at its op, module and line


def test_a_wrong_coefficient_in_a_rule_names_the_op_the_module_and_the_line(mlp, monkeypatch):
    source, graph = mlp
    right = table._RULES["aten.mm"]
    wrong = replace(right, price=lambda self, out: right.price(self, out) + table.Cost(product=table.numel(out)))
    monkeypatch.setitem(table._RULES, "aten.mm", replace(wrong, wants=("self", "out")))
    certificate = verify(source, graph=graph, points=1, lifting=False)
    assert not certificate.verified
    assert {c.quantity for c in certificate.failures} == {"flops.backward", "flops.hardware"}
    failed = certificate.failures[0]
    assert failed.expected > failed.observed
    assert "aten.mm in " in failed.where and "derived" in failed.where and "counted" in failed.where


def test_a_wrong_addmm_fails_forward_alone(gpt, monkeypatch):
    source, graph = gpt
    right = table._RULES["aten.addmm"]
    wrong = replace(right, price=lambda **k: replace(right.price(**k), product=right.price(**k).product / 2))
    monkeypatch.setitem(table._RULES, "aten.addmm", wrong)
    certificate = verify(source, graph=graph, points=1, lifting=False)
    assert {c.quantity for c in certificate.failures} == {"flops.forward", "flops.hardware"}
    assert "aten.addmm in blocks.*.mlp." in certificate.failures[0].where and "gpt.py:" in certificate.failures[0].where


def test_a_wrong_attention_rule_is_found_behind_the_swapped_kernel(gpt, monkeypatch):
    source, graph = gpt
    op = "aten._scaled_dot_product_flash_attention"
    right = table._RULES[op]
    wrong = replace(right, price=lambda **k: replace(right.price(**k), product=2 * right.price(**k).product))
    monkeypatch.setitem(table._RULES, op, wrong)
    certificate = verify(source, graph=graph, points=1, lifting=False)
    assert op in certificate.failures[0].where and "blocks.*.attn" in certificate.failures[0].where


def test_a_wrong_shape_in_the_graph_fails_at_its_node(mlp):
    source, graph = mlp

    def widen(node):
        out = node.outputs[0]
        return replace(node, outputs=(replace(out, shape=(out.shape[0], out.shape[1] + 1)),))

    certificate = verify(source, graph=replace(graph, items=changed(graph.items, "aten.gelu", widen)), points=1, lifting=False)
    shapes = [c for c in certificate.failures if c.quantity == "shapes"]
    assert len(shapes) == 2 and all("aten.gelu in " in c.where and " foretold, " in c.where for c in shapes)


def test_a_wrong_parameter_is_named(mlp):
    source, graph = mlp

    def double(node):
        out = node.outputs[0]
        return replace(node, outputs=(replace(out, shape=tuple(2 * s for s in out.shape)),)) if node.label.endswith(".bias") else node

    certificate = verify(source, graph=replace(graph, items=changed(graph.items, "parameter", double)), points=1, lifting=False)
    where = {c.quantity: c.where for c in certificate.failures}
    assert ".bias: " in where["params.total"] and ".bias: " in where["bytes.params"]


def test_a_missing_op_breaks_the_alignment(mlp):
    _source, graph = mlp
    items = tuple(item for item in graph.items if isinstance(item, Loop) or item.op != "aten.gelu_backward")
    steps = comparable(unfold(replace(graph, items=tuple(_without_users(graph, items))), {"B": 2, "d": 3, "f": 5, "c": 4}))
    calls = [Call(s.node.op, s.node.phase, tuple(shape for shape, _ in s.outputs)) for s in comparable(unfold(graph, {"B": 2, "d": 3, "f": 5, "c": 4}))]
    assert "the run has aten.gelu_backward there" in align(steps, calls).broken
    assert not align(comparable(unfold(graph, {"B": 2, "d": 3, "f": 5, "c": 4})), calls).broken


def _without_users(graph, items):
    """Items whose operands are all made by some item: a graph must not name values that nobody makes."""
    made = {out.value for item in items for out in item.outputs}
    keep = next(item for item in items if item.outputs).outputs[0].value
    for item in items:
        yield replace(item, arguments=tuple((n, _bound(a, made, keep)) for n, a in item.arguments))


def _bound(argument, made, keep):
    if isinstance(argument, tuple):
        return tuple(_bound(part, made, keep) for part in argument)
    return replace(argument, value=keep) if hasattr(argument, "value") and argument.value not in made else argument


# Points, and what cannot be verified


def test_points_meet_assumptions_and_whole_repetitions(gpt):
    source, graph = gpt
    names = tuple(source.dims)
    found = [point for point, _ in zip(generic_points(graph, names, 0), range(20), strict=False)]
    assert all(p.sizes["d"] % p.sizes["h"] == 0 and countable(graph, p.sizes) for p in found)
    assert {p.sizes["L"] for p in found} <= {1, 2, 3, 4} and any(p.generic for p in found)
    ones = [next(points).sizes for points in degenerate_points(graph, names, 0)]
    assert ones[0]["B"] == 1 and ones[1]["T"] == 1


def test_a_certificate_without_checks_proves_nothing():
    assert not Certificate("x", "train", "cuda", (), ()).verified
    bad = Check("params.total", "o", {}, "1", 1, 2, False, "here")
    assert Certificate("x", "train", "cuda", (), (bad,)).failures == (bad,)


def test_a_model_without_a_cache_has_no_step_of_inference_to_compare():
    with pytest.raises(Unsupported, match="prefill"):
        verify("examples/mlp.py", mode="prefill")


class Attending(torch.nn.Module):
    """One head that keeps its keys and values in a list that it is given."""

    def __init__(self, d):
        super().__init__()
        self.qkv = torch.nn.Linear(d, 3 * d)

    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            cache[:] = [torch.cat([old, new], 1) for old, new in zip(cache, (k, v), strict=True)] if cache else [k, v]
            k, v = cache
        return (q @ k.transpose(1, 2)).softmax(-1) @ v


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_step_with_a_cache_is_compared_with_a_real_one(mode):
    source = model_source(
        "attending", dims={"B": 2, "T": 5, "d": 6}, model=Attending, inputs=lambda B, T, d: torch.randn(B, T, d), cache=list
    )
    certificate = verify(source, mode=mode, device="cpu", points=3, lifting=False)
    assert certificate.verified, failures(certificate)
    seen = {(c.quantity, c.oracle) for c in certificate.checks}
    assert ("bytes.kv_cache", "the cache after a real step") in seen
    assert ("bytes.peak", "births and deaths of storages in a real run") in seen
    assert {"flops.forward", "shapes"} <= {quantity for quantity, _ in seen}


def test_a_cache_of_another_size_is_found_out():
    source = model_source(
        "attending", dims={"B": 2, "T": 5, "d": 6}, model=Attending, inputs=lambda B, T, d: torch.randn(B, T, d), cache=list
    )
    graph = Builder(source, "decode", "cpu").graph("attending")

    def shorter(node):
        out = node.outputs[0]
        return replace(node, outputs=(replace(out, shape=(out.shape[0], out.shape[1] - 1, out.shape[2])),)) if "after" in node.notes else node

    certificate = verify(source, mode="decode", graph=replace(graph, items=changed(graph.items, "cache", shorter)), points=1, lifting=False)
    assert "bytes.kv_cache" in {c.quantity for c in certificate.failures}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_kept_bytes_and_the_peak_equal_a_real_run_at_five_points(dtype):
    source = source_of(str(EXAMPLES / "mlp.py"))
    certificate = verify(source, device="cpu", points=5, dtype=dtype, lifting=False)
    assert certificate.verified, failures(certificate)
    compared = {
        "bytes.saved": "tensors that autograd's hooks saw in a real run",
        "bytes.peak": "births and deaths of storages in a real run",
        "bytes.peak, first step": "births and deaths of storages in a real first step",
    }
    for key, oracle in compared.items():
        assert sum((c.quantity, c.oracle) == (key, oracle) for c in certificate.checks) >= 5


def test_what_a_gpu_alone_could_tell_is_said(mlp):
    source, graph = mlp
    certificate = verify(source, graph=graph, points=1, lifting=False)
    here = torch.cuda.is_available()
    assert any("no GPU here" in note for note in certificate.notes) is not here
    assert any("blocks of 512" in note for note in certificate.notes) is here


def test_a_formula_in_data_dependent_counts_is_skipped_aloud(mlp, monkeypatch):
    source, graph = mlp
    ledger_formulas = Ledger.formulas.func
    stray = lambda self: ledger_formulas(self) | {"flops.forward": symbol("u0") * sp.Integer(2)}  # noqa: E731
    monkeypatch.setattr(Ledger, "formulas", property(stray))
    certificate = verify(source, graph=graph, points=1, lifting=False)
    assert any("u0" in note for note in certificate.notes)
    assert "flops.forward" not in {c.quantity for c in certificate.checks}


def test_a_ledger_verifies_itself():
    ledger = symacct.derive(
        model=lambda d, f: torch.nn.Sequential(torch.nn.Linear(d, f), torch.nn.GELU(), torch.nn.Linear(f, d)),
        inputs=lambda B, d: torch.randn(B, d),
        dims={"B": 3, "d": 5, "f": 7},
    )
    certificate = ledger.verify(points=1)
    assert certificate.verified and {c.quantity for c in certificate.checks} >= {"params.total", "flops.backward"}
    assert symacct.derive("mlp").verify(points=1).verified  # a stored graph's own model file
    with pytest.raises(Unsupported, match="verify runs plain steps of one precision, none with --recipe mixed"):
        symacct.derive(str(EXAMPLES / "mlp.py"), recipe="mixed").verify()


def test_products_that_a_size_of_one_multiplies_elementwise_are_told_not_refuted(tmp_path):
    """`einsum` sums over one key by multiplying: torch's counter sees 2·B·T²·d FLOPs less there, and twice as many in backward."""
    model = tmp_path / "summed.py"
    model.write_text(EINSUM)
    certificate = verify(str(model), points=2, lifting=False)
    assert certificate.verified, failures(certificate)
    told = [note for note in certificate.notes if "multiplies elementwise" in note]
    sizes = [dict(p) for p in certificate.points if p["T"] == 1]
    assert len(sizes) == 1 and len(told) == 3 and all("summed.py:10" in note for note in told)
    once = 2 * sizes[0]["B"] * sizes[0]["d"]
    assert [f"sees {n * once:,} FLOPs less" in note for n, note in zip((1, 2, 3), told, strict=True)] == [True] * 3


EINSUM = '''
import torch

class Attention(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(d, d) for _ in range(3))
    def forward(self, x):
        scores = torch.einsum("bid,bjd->bij", self.q(x), self.k(x)).softmax(-1)
        return torch.einsum("bij,bjd->bid", scores, self.v(x))

dims = {"B": 2, "T": 5, "d": 6}
def model(d): return Attention(d)
def inputs(B, T, d): return torch.randn(B, T, d)
'''
