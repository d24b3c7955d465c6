"""The networkx view at work: ancestors, and the longest chain, against hand counts."""

from __future__ import annotations

import pytest

import symacct
from symacct.errors import SizeError
from symacct.paths import ancestors, critical_path


@pytest.fixture(scope="module")
def mlp():
    return symacct.derive("mlp")


def test_the_first_product_comes_from_its_weight_its_bias_and_the_input_alone(mlp):
    first = next(p.node for p in mlp.graph.ops if p.node.op == "aten.addmm")
    kinds = sorted(p.node.op for p in ancestors(mlp.graph, first.name))
    assert kinds == ["aten.t", "input", "parameter", "parameter"]


def test_an_unknown_node_is_an_error(mlp):
    with pytest.raises(SizeError, match="no node is named nowhere"):
        ancestors(mlp.graph, "nowhere")


# Two layers, d -> f -> c: forward 2Bdf and 2Bfc; back through the second layer 2Bfc (the input's gradient), then
# the first weight's gradient 2Bdf. The second weight's gradient, 2Bfc, can run beside that.
def test_the_longest_chain_of_two_layers_leaves_out_what_can_run_beside_it(mlp):
    sizes = {"B": 8, "d": 64, "f": 32, "c": 10}
    chain, flops = critical_path(mlp, sizes)
    B, d, f, c = sizes.values()
    assert flops == 2 * B * d * f + 2 * B * f * c + 2 * B * f * c + 2 * B * d * f
    assert flops == mlp.at(**sizes)["flops.step"] - 2 * B * f * c
    assert [p.node.op for p in chain if p.node.op in ("aten.addmm", "aten.mm")] == ["aten.addmm", "aten.addmm", "aten.mm", "aten.mm"]


def test_explain_shows_a_chain_and_asks_for_sizes(capsys):
    from symacct.cli import main

    assert main(["explain", "mlp", "--critical-path", "--at", "B=8,d=64,f=32,c=10"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("aten.addmm") == 2 and "aten.native_layer_norm" not in shown
    assert main(["explain", "mlp", "--critical-path"]) == 2
    assert main(["explain", "mlp", "--ancestors", "nowhere"]) == 2
