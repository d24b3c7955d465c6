"""The recorded step as a `torch.fx.Graph`: it lints, prints, and its execution is a real training step."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from small_models import Call
from torch import nn

from symacct.tracing.fx import fx_graph
from symacct.tracing.model_file import load_model_file, model_source
from symacct.tracing.run import trace_concrete, trace_symbolic

GPT = Path(__file__).parents[1] / "examples" / "gpt.py"


def convolutions(c):
    return nn.Sequential(
        nn.Conv2d(3, c, 3, stride=2, padding=1),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.ConvTranspose2d(c, 2 * c, 2, stride=2),
        nn.MaxPool2d(2),
        Call(lambda self, x: self.head(x.mean((2, 3))), head=nn.Linear(2 * c, 5)),
    )


def sources():
    images = model_source(
        "convolutions",
        dims={"B": 2, "H": 9, "c": 4},
        model=convolutions,
        inputs=lambda B, H: torch.randn(B, 3, H, H),
        loss=lambda output: output.square().mean(),
    )
    return {"gpt": load_model_file(GPT), "convolutions": images}


# Other sizes than the ones traced at; depth is a number in one recorded run.
ELSEWHERE = {
    "gpt": {"B": 3, "T": 7, "V": 41, "L": 2, "d": 30, "h": 5, "f": 44},
    "convolutions": {"B": 5, "H": 14, "c": 3},
}


def recorded(name, symbolic):
    """The source, one recorded step of it as a graph, and sizes to execute that at."""
    source = sources()[name]
    if symbolic:
        return source, fx_graph(trace_symbolic(source, "train", "cpu"), True), ELSEWHERE[name]
    return source, fx_graph(trace_concrete(source, "train", "cpu", source.dims), False), source.dims


def placed(graph, sizes, model, inputs):
    """What the placeholders stand for: sizes by name, tensors in the model's order, an optimizer's zeros."""
    tensors = {
        "parameter": iter([p.detach().clone() for p in model.parameters()]),
        "buffer": iter([b.detach().clone() for b in model.buffers()]),
        "input": iter([inputs]),
        "state": (
            torch.zeros(()) if key == "step" else torch.zeros_like(p)
            for p in model.parameters()
            for key in ("step", "exp_avg", "exp_avg_sq")
        ),
    }
    return [
        sizes[node.meta["size"]] if "size" in node.meta else next(tensors[node.target.rpartition("_")[0]])
        for node in graph.nodes
        if node.op == "placeholder"
    ]


def stepped(source, sizes, model, inputs):
    """The output of a real training step, and AdamW's moments after it."""
    optimizer = torch.optim.AdamW(model.parameters())
    output = model(inputs)
    source.loss(output, sizes, inputs).backward()
    optimizer.step()
    return output, [m for s in optimizer.state.values() for m in (s["exp_avg"], s["exp_avg_sq"])]


@pytest.mark.parametrize("symbolic", [False, True], ids=["concrete", "symbolic"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_its_execution_is_a_real_step(name, symbolic):
    source, graph, sizes = recorded(name, symbolic)
    torch.manual_seed(0)
    model, inputs = source.model(sizes), source.inputs(sizes)
    arguments = placed(graph, sizes, model, inputs)
    (output,) = torch.fx.Interpreter(torch.fx.GraphModule(nn.Module(), graph)).run(*arguments)
    expected, moments = stepped(source, sizes, model, inputs)
    torch.testing.assert_close(output, expected.detach())
    states = arguments[-3 * len(list(model.parameters())) :]
    found = [state for number, state in enumerate(states) if number % 3]
    assert all(state.any() for state in found)
    torch.testing.assert_close(found, moments)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_it_lints_and_prints(name, capsys):
    _, graph, _ = recorded(name, True)
    graph.lint()
    assert "aten.native_layer_norm_backward" in str(graph) or "aten.convolution_backward" in str(graph)
    if importlib.util.find_spec("tabulate"):
        graph.print_tabular()
        assert "call_function" in capsys.readouterr().out


def test_nodes_say_what_they_are():
    _, graph, _ = recorded("gpt", True)
    node = next(node for node in graph.nodes if node.target is torch.ops.aten.gelu.default)
    assert node.meta["phase"] == "forward"
    assert node.meta["module"] == "blocks.0.mlp"
    assert str(node.meta["shapes"][0]) == "(B, T, f)"
    assert node.meta["source"].startswith("examples/gpt.py:")
    assert {"forward", "loss", "backward", "optimizer"} <= {n.meta.get("phase") for n in graph.nodes}
