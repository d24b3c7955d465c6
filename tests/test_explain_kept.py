"""What `explain` says is kept for backward, and by which ops, of tensors brought in as of those made.

The truth is what autograd's own hooks are shown in a real forward pass, and derivatives read off by hand.
"""

from __future__ import annotations

import json
import textwrap

import pytest
import sympy as sp
import torch

import symacct
from symacct.cli import main
from symacct.expressions import parse
from symacct.memory import kept
from symacct.report.answer import answer
from symacct.report.explained import as_json, lines
from symacct.symbols import symbol

CODE = """
import torch
from torch import nn

dims = {"B": 2, "C": 3, "H": 8, "k": 4}

class Net(nn.Module):
    def __init__(self, C, k):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(C, k, 3, padding=1), nn.BatchNorm2d(k)
        self.act, self.out = nn.LeakyReLU(0.1, inplace=True), nn.Linear(k, 5)
        self.register_buffer("scale", torch.ones(k))
        self.register_buffer("shift", torch.ones(k))
        self.plain = torch.full((k,), 2.0)

    def forward(self, x, added):
        y = self.act(self.norm(self.conv(x)))
        y = (y + added).mean((2, 3)) * self.scale + self.shift
        return self.out(y * self.plain)

def model(C, k): return Net(C, k)
def inputs(B, C, H, k): return torch.randn(B, C, H, H), torch.randn(B, k, H, H)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "net.py"
    path.write_text(CODE, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def nodes(file):
    told = answer(symacct.derive(file, device="cpu"), [])
    return json.loads(as_json(told, lines(told.ledger)))["nodes"]


def brought(nodes):
    return {node["label"]: node["tensors"][0] for node in nodes if node["op"] in ("parameter", "buffer")}


def seen_by_hooks(made, given):
    """The names of parameters, buffers, plain tensors and inputs whose storages autograd keeps."""
    seen = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.add(t.untyped_storage().data_ptr()) or t, lambda t: t):
        made.train()(*given).sum()
    named = dict([*made.named_parameters(), *made.named_buffers(), ("plain", made.plain)])
    named |= dict(zip(("input.0", "input.1"), given, strict=True))
    return {name for name, tensor in named.items() if tensor.untyped_storage().data_ptr() in seen}


def test_what_is_brought_in_and_kept_is_what_hooks_see(nodes):
    space = {}
    exec(CODE, space)
    sizes = space["dims"]
    expected = seen_by_hooks(space["Net"](sizes["C"], sizes["k"]), space["inputs"](**sizes))
    assert expected == {"conv.weight", "norm.weight", "norm.running_mean", "norm.running_var", "scale", "plain", "out.weight", "input.0"}
    inputs = iter(("input.0", "input.1"))
    told = set()
    for node in nodes:
        name = next(inputs) if node["op"] == "input" else "plain" if node["op"] == "constant" else node.get("label")
        if name and node["tensors"][0]["kept"]:
            told.add(name)
    assert told == expected


def test_each_says_which_ops_read_it(nodes):
    """By hand: a convolution's derivative reads its input and weight, a batch norm's its scale and statistics, a
    product's the other factor, whose gradient alone is wanted."""
    read = {name: [place["op"] for place in tensor["kept"]["read_by"]] for name, tensor in brought(nodes).items() if tensor["kept"]}
    assert read["conv.weight"] == ["aten.convolution_backward"]
    assert read["norm.running_mean"] == read["norm.running_var"] == read["norm.weight"] == ["aten.native_batch_norm_backward"]
    assert read["scale"] == ["aten.mul"] and read["out.weight"] == ["aten.mm"]
    first = next(node for node in nodes if node["op"] == "input")["tensors"][0]["kept"]
    assert [place["op"] for place in first["read_by"]] == ["aten.convolution_backward"]
    assert (first["times"], first["counted_in"], first["held_by_model"]) == ("1", "bytes.saved", False)
    constant = next(node for node in nodes if node["op"] == "constant")["tensors"][0]["kept"]
    assert (constant["counted_in"], constant["held_by_model"]) == ("bytes.saved_buffers", True)


def test_every_tensor_says_whether_it_is_a_view_and_whether_it_is_kept(nodes):
    tensors = {tensor["value"]: tensor for node in nodes for tensor in node["tensors"]}
    assert all({"view", "kept"} <= tensor.keys() for tensor in tensors.values())
    views = [tensor["view"] for tensor in tensors.values() if tensor["view"]]
    assert all(view["of"] in tensors and tensors[view["of"]]["view"] is None for view in views)
    acted = next(node for node in nodes if node["op"] == "aten.leaky_relu_")["tensors"][0]
    norm = next(node for node in nodes if node["op"] == "aten.native_batch_norm")
    assert acted["view"]["of"] == norm["tensors"][0]["value"] and acted["view"]["op"] == norm["op"]
    counted = next(node for node in nodes if node["op"] == "aten.add_" and node["phase"] == "forward")
    assert counted["tensors"][0]["view"]["label"] == "norm.num_batches_tracked"


@pytest.mark.parametrize("target", ["gpt2", "t5", "mixtral", "resnet50", None])
def test_bytes_kept_add_up_to_the_formulas(target, file):
    told = answer(symacct.derive(target) if target else symacct.derive(file, device="cpu"), [])
    sums = {"bytes.saved": sp.Integer(0), "bytes.saved_buffers": sp.Integer(0)}
    for node in json.loads(as_json(told, lines(told.ledger)))["nodes"]:
        for tensor in node["tensors"]:
            if tensor["kept"] and tensor["kept"]["counted_in"]:
                sums[tensor["kept"]["counted_in"]] += parse(tensor["kept"]["bytes"])
    for key, total in sums.items():
        assert sp.expand(total - told.ledger.formulas.get(key, 0)) == 0, key


def test_text_says_it_for_sources_and_for_each_of_several_results(file, capsys):
    """By hand: mean and inverse deviation of each of k channels are kept, 4 bytes each, and both say so."""
    assert main(["explain", file, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert "4·B·C·H² bytes kept 4·B·C·H² bytes for backward, read by aten.convolution_backward (conv" in said
    assert "norm.running_mean (k) float32, 4·k bytes kept for backward, held by the model anyway, read by aten.native_batch_norm_backward" in said
    assert "out.weight (5, k) float32, 20·k bytes kept for backward, held by the model anyway, read by aten.mm" in said
    assert "view of the parameter out.weight" in said and "view of the buffer norm.num_batches_tracked" in said
    assert "out.bias (5) float32, 20 bytes kept" not in said and "shift (k) float32, 4·k bytes kept" not in said
    norm = textwrap.dedent(out[out.index("\naten.native_batch_norm  ") :].split("\n\n")[0])
    assert norm.count("kept     4·k bytes for backward") == 2
    labels = [line.split()[0] for line in norm.splitlines()[2:] if not line.startswith("   ")]
    assert [label for label in labels if label in ("makes", "kept", "dies")] == ["makes", "kept", "dies"] * 3


def test_a_parameter_of_every_layer_is_there_as_often_as_layers():
    found = {place.node.label: kept for place, kept in _of_parameters(symacct.derive("gpt2").graph)}
    L, d, f = map(symbol, "Ldf")
    up = found["blocks.*.mlp.up.weight"]
    assert (up.times, up.counted_in, up.held) == (L, "", True) and sp.expand(up.bytes - 4 * L * d * f) == 0
    assert "blocks.*.mlp.up.bias" not in found


def _of_parameters(graph):
    told = kept(graph)
    return [(place, told[out.value]) for place in graph.sources("parameter") for out in place.node.outputs if out.value in told]


def test_a_forward_pass_keeps_nothing(file):
    told = answer(symacct.derive(file, mode="forward", device="cpu"), [])
    nodes = json.loads(as_json(told, lines(told.ledger)))["nodes"]
    assert all(tensor["kept"] is None for node in nodes for tensor in node["tensors"])
