"""What users get wrong, and the one sentence that says what, where and what next."""

from __future__ import annotations

import json

import pytest
import torch
from small_models import Call, linear, randn
from torch import nn

import symacct
from symacct.errors import (
    FormulaError,
    GraphError,
    ModelFileError,
    SizeError,
    SymacctError,
    TraceError,
    UnknownOps,
)
from symacct.storage import VERSION, dumps, loads
from symacct.symbols import symbol

GOOD = """
import torch
from torch import nn

dims = {"B": 2, "d": 8, "h": 2}


def model(d, h):
    return nn.Sequential(nn.Linear(d, d), nn.Unflatten(1, (h, d // h)))


def inputs(B, d):
    return torch.randn(B, d)
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refused(target, error=ModelFileError, **more):
    """The message of the error that deriving the target raises; one line, and no other kind of exception."""
    with pytest.raises(error) as caught:
        symacct.derive(target, **more) if isinstance(target, str) else symacct.derive(**target, **more)
    assert isinstance(caught.value, SymacctError)
    return str(caught.value)


# Model files


def test_the_good_file_is_good(written):
    assert symacct.derive(written(GOOD)).at(B=3, d=8, h=4)["params.total"] == 72


@pytest.mark.parametrize("part", ["dims", "model", "inputs"])
def test_a_part_is_missing(written, part):
    path = written(GOOD.replace(f"def {part}(", f"def my_{part}(").replace(f"{part} =", f"my_{part} ="))
    message = refused(path)
    assert path in message and f"needs {part}" in message


def test_a_parameter_is_not_in_dims(written):
    message = refused(written(GOOD.replace("def model(d, h)", "def model(d, dd, h)")))
    assert "model(dd) is not in dims; did you mean 'd'; dims names B, d, h" in message


def test_a_default_is_no_size(written):
    text = GOOD.replace("def model(d, h)", "def model(d, h, bias=True)")
    assert symacct.derive(written(text)).at(B=3, d=8, h=4)["params.total"] == 72


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ('["B", "d", "h"]', "dims must map"),
        ('{"B": 2, "d": 8.0, "h": 2}', r"dims['d'] is 8.0"),
        ('{"B": 2, "d": -8, "h": 2}', r"dims['d'] is -8"),
        ('{"B": 2, "d": True, "h": 2}', r"dims['d'] is True"),
        ('{"B": 2, "d": 8, "h": 2, "d model": 4}', "'d model'"),
        ('{"B": 2, "d": 8, "h": 2, "i1": 4}', "'i1'"),
    ],
)
def test_dims_are_names_and_positive_integers(written, dims, said):
    assert said in refused(written(GOOD.replace('{"B": 2, "d": 8, "h": 2}', dims)))


def test_a_size_used_inconsistently(written):
    """A shape error in the user's code: which call, which error, which line."""
    message = refused(written(GOOD.replace("torch.randn(B, d)", "torch.randn(B, d + 1)")))
    assert "the forward pass raised" in message and "mine.py" in message


def test_examples_that_break_a_divisibility_of_the_model(written):
    message = refused(written(GOOD.replace('"h": 2', '"h": 3')))
    assert "raised" in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    return nn.Seq", "    raise KeyError('nothing')\n    return nn.Seq", "model(...) raised KeyError"),
        ("    return torch.randn", "    undefined\n    return torch.randn", "inputs(...) raised NameError"),
        ("import torch\n", "import torch\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def model(d, h):", "def model(d, h:", "SyntaxError"),
        ("    return torch.randn(B, d)", "    return None", "NoneType"),
        ("    return nn.Sequential(", "    return str(", "model"),
    ],
)
def test_code_that_raises(written, old, new, said):
    assert said in refused(written(GOOD.replace(old, new, 1)))


def test_the_line_that_raised_is_named(written):
    text = GOOD.replace("    return torch.randn(B, d)", "    x = torch.randn(B, d)\n    return x.no_such_method()")
    line = text.splitlines().index("    return x.no_such_method()") + 1
    assert f"mine.py:{line}" in refused(written(text))


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("x[: int(x.sum().item()) % 3]", "needs a number that only the values of tensors tell"),
        ("torch.from_numpy(x.detach().numpy())", "hands a tensor to numpy"),
    ],
)
def test_what_leaves_sizes_or_torch_is_told_with_what_to_do(written, forward, said):
    text = GOOD.replace("nn.Unflatten(1, (h, d // h))", "Leaves()") + (
        f"\n\nclass Leaves(nn.Module):\n    def forward(self, x):\n        return {forward}\n"
    )
    line = text.splitlines().index(f"        return {forward}") + 1
    with pytest.raises(SymacctError) as error:
        symacct.derive(written(text))
    assert said in str(error.value) and f"mine.py:{line}" in str(error.value) and "raised" not in str(error.value)


def test_equal_sizes_between_two_strict_comparisons_are_refused_with_what_to_write(written):
    text = GOOD.replace("nn.Unflatten(1, (h, d // h))", "Ways()") + (
        "\n\nclass Ways(nn.Module):\n    def forward(self, x):\n        if x.shape[0] > x.shape[1]:\n            return x.exp()\n"
        "        return x.tanh() if x.shape[1] > x.shape[0] else x\n"
    )
    with pytest.raises(SizeError, match=r"for d = B write one size for both in the model file|for B = d write one size for both"):
        symacct.derive(written(text)).at(B=8, d=8, h=4)
    assert symacct.derive(written(text)).at(B=4, d=8, h=4)["params.total"] == 72


def test_an_output_without_a_loss(written):
    text = GOOD.replace("nn.Unflatten(1, (h, d // h))", "Longs()") + (
        "\n\nclass Longs(nn.Module):\n    def forward(self, x):\n        return x.argmax(-1)\n"
    )
    assert "define loss(output)" in refused(written(text))


@pytest.mark.parametrize("name", ["missing.py", "missing.json", "missing", "no/such/folder"])
def test_no_such_target(name):
    with pytest.raises(SymacctError, match=r"missing|no/such") as caught:
        symacct.derive(name)
    assert isinstance(caught.value, (ModelFileError, GraphError))


def test_a_stored_graph_that_is_misspelled():
    assert "no stored graph" in refused("gpt22")


def test_an_unknown_architecture(written):
    pytest.importorskip("transformers")
    config = {"architectures": ["NoSuchForCausalLM"], "model_type": "llama", "hidden_size": 8}
    assert "NoSuchForCausalLM" in refused(written(json.dumps(config), "config.json"))
    config["model_type"] = "nosuch"
    assert "nosuch" in refused(written(json.dumps(config), "config.json"))


# Graphs


@pytest.fixture(scope="module")
def ledger():
    return symacct.derive(
        model=lambda d, h: Call(lambda m, x: m.inner(x).view(-1, h, d // h), inner=linear(d, d)),
        inputs=lambda B, d: randn(B, d), dims={"B": 2, "d": 8, "h": 2},
    )  # fmt: skip


def test_a_graph_of_another_version(ledger, written):
    text = dumps(ledger.graph).replace(f'"symacct": {VERSION}', '"symacct": 99', 1)
    message = refused(written(text, "old.json"), GraphError)
    assert "old.json: a graph of version 99" in message and "build it again" in message


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_graph_cut_short(ledger, written, share):
    text = dumps(ledger.graph)
    message = refused(written(text[: int(len(text) * share)], "half.json"), GraphError)
    assert "half.json: no complete JSON" in message


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("items"),
        lambda data: data.pop("symbols"),
        lambda data: data.update(items=[["n0"]]),
        lambda data: data["symbols"].pop("d"),
        lambda data: data["items"].pop(0),
        lambda data: data.update(storages={"n0": "B *"}),
        lambda data: data.update(items=3),
        lambda data: data.update(symbols=[]),
    ],
)
def test_a_damaged_graph(ledger, damage):
    data = json.loads(dumps(ledger.graph))
    damage(data)
    with pytest.raises(GraphError):
        loads(json.dumps(data), "damaged.json")


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"a": 1}', "\x00"])
def test_json_that_is_no_graph(text):
    with pytest.raises(GraphError, match=r"thing\.json"):
        loads(text, "thing.json")


def test_a_graph_runs_no_code(ledger):
    text = dumps(ledger.graph).replace('"B"', '"__import__(\'os\').abort()"')
    with pytest.raises((GraphError, FormulaError)):
        loads(text, "evil.json")


def test_a_stored_graph_of_another_mode(ledger, written):
    path = written(dumps(ledger.graph), "train.json")
    assert "mode train, not forward" in refused(path, GraphError, mode="forward")


# Ops without a rule


@torch.library.custom_op("symacct_tests::mixed", mutates_args=())
def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@torch.library.custom_op("symacct_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


mixed.register_fake(lambda x, w: x.new_empty(x.shape[0], w.shape[1]))
shifted.register_fake(lambda x: torch.empty_like(x))


def unknown(d, L):
    def call(m, x):
        for layer in m.layers:
            x = torch.ops.symacct_tests.mixed(layer(x), m.w)
        return torch.ops.symacct_tests.shifted(x)

    return Call(call, layers=nn.ModuleList(linear(d, d) for _ in range(L)), w=nn.Parameter(randn(d, d)))


UNKNOWN = {"model": unknown, "inputs": lambda B, d: randn(B, d), "dims": {"B": 2, "d": 8, "L": 2}, "mode": "forward"}


def test_unknown_ops_are_listed_all_at_once():
    with pytest.raises(UnknownOps) as caught:
        symacct.derive(**UNKNOWN).formulas
    message = str(caught.value)
    assert "no rule for 2 ops" in message and "--allow-unknown" in message
    assert "symacct_tests.mixed" in message and "symacct_tests.shifted" in message
    assert message.count("test_bad_input.py:") == 2
    assert {op.op for op in caught.value.ops} == {"symacct_tests.mixed", "symacct_tests.shifted"}


def test_an_allowed_unknown_op_is_a_symbol_in_the_total():
    ledger = symacct.derive(**UNKNOWN, allow_unknown=True)
    forward = ledger.formulas["flops.forward"]
    known = 2 * symbol("B") * symbol("d") ** 2 * symbol("L")
    rest = (forward - known).expand()
    costs = {s.name: s for s in rest.free_symbols if s.name.startswith("W_")}
    assert len(costs) == 2
    assert rest.coeff(next(s for n, s in costs.items() if "mixed" in n)) == symbol("L")
    with pytest.raises(SizeError, match="W_"):
        ledger.at(B=2, d=8, L=2)
    numbers = dict.fromkeys(costs, 100)
    assert ledger.at(B=2, d=8, L=2, **numbers)["flops.forward"] == 2 * 2 * 64 * 2 + 300


def test_a_ready_model_with_an_unknown_op():
    """BP-13: https://github.com/pytorch/pytorch/pull/169876: named, never 0."""
    model = Call(lambda m, x: torch.ops.symacct_tests.mixed(x, m.w), w=nn.Parameter(randn(8, 16)))
    with pytest.raises(UnknownOps, match=r"symacct_tests\.mixed"):
        symacct.derive(model=model, inputs=randn(4, 8), dims={}, mode="forward").formulas


# Sizes


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"B": 2, "d": 8}, "leaves out h"),  # in no formula, but without it a divisibility cannot be checked
        ({"B": 2}, "leaves out d"),
        ({"B": 2, "d": 8, "h": 2, "Q": 4}, "Q: not a size of the model; it has B, d, h"),
        ({"B": 2, "d": -8, "h": 2}, "d = -8: a size is a positive integer"),
        ({"B": 0, "d": 8, "h": 2}, "B = 0"),
        ({"B": 2, "d": 8.5, "h": 2}, "d = 8.5"),
        ({"B": True, "d": 8, "h": 2}, "B = True"),
        ({"B": 2, "d": 9, "h": 2}, "breaks Mod(d, h) = 0"),
        ({"B": 1, "d": 1, "h": 1}, None),
        ({"B": 10**12, "d": 10**12, "h": 10**6}, None),
    ],
)
def test_sizes(ledger, sizes, said):
    if said is None:
        assert ledger.at(**sizes)["params.total"] == sizes["d"] ** 2
        return
    with pytest.raises(SizeError) as caught:
        ledger.at(**sizes)
    assert said in str(caught.value)


def test_a_broken_divisibility_names_the_line_that_asked(ledger):
    with pytest.raises(SizeError, match=r"d = 9, h = 2 breaks Mod\(d, h\) = 0 \(asked at .*test_bad_input\.py:\d+\)"):
        ledger.at(B=2, d=9, h=2)


def test_switches_of_a_convention_that_do_not_exist(ledger):
    with pytest.raises(SizeError, match="did you mean 'kaplan'"):
        symacct.derive(**UNKNOWN, convention="kaplen")
    with pytest.raises(SizeError, match="choose from FLOP, MAC"):
        symacct.derive(**UNKNOWN, unit="FLOPS")
    with pytest.raises(SizeError, match=r"no switch|colour"):
        symacct.derive(**UNKNOWN, colour="red")


def test_modes_and_devices_that_do_not_exist():
    for bad in ({"mode": "trian"}, {"device": "tpu"}):
        with pytest.raises(SymacctError):
            symacct.derive(**UNKNOWN | bad, allow_unknown=True)


def test_derive_without_anything():
    with pytest.raises(SymacctError):
        symacct.derive()


# What cannot be exact is refused


@pytest.mark.parametrize("layers", [lambda d: int(d) * int(d) % 7 + 1, lambda d: len(bin(d)), lambda d: 1 + (d > 9)])
def test_ops_that_depend_on_a_size_in_no_regular_way(layers):
    def model(d):
        return nn.Sequential(*(linear(d, d) for _ in range(layers(d))))

    try:
        ledger = symacct.derive(model=model, inputs=lambda B, d: randn(B, d), dims={"B": 2, "d": 8})
    except (TraceError, ModelFileError):
        return
    answers = 0
    for d in range(2, 20):
        try:
            at = ledger.at(B=3, d=d)
        except SizeError:
            continue
        answers += 1
        assert at["flops.forward"] == 6 * d * d * layers(d), f"d = {d}: {ledger.formulas['flops.forward']}"
    assert answers


UNLIKE = {
    "a layer": (lambda m, x: m.w(x), {"w": linear(4, 4).bfloat16()}),
    "a product": (lambda m, x: x @ m.w.weight, {"w": linear(4, 4).bfloat16()}),
    "a convolution": (lambda m, x: m.w(x[None]), {"w": nn.Conv1d(3, 2, 1).bfloat16()}),
    "a vector": (lambda m, x: x @ m.w.bias, {"w": nn.Linear(4, 4).bfloat16()}),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_operands_of_unlike_dtypes_are_refused_as_torch_does(name):
    """torch's shape functions let float32 times bfloat16 pass; the kernels, run here, do not."""
    code, modules = UNLIKE[name]
    with pytest.raises(RuntimeError):
        Call(code, **modules)(torch.ones(3, 4))
    with pytest.raises(ModelFileError, match=r"test_bad_input.py:\d+"):
        symacct.derive(model=lambda: Call(code, **modules), inputs=lambda B: torch.ones(3, 4), dims={"B": 3})


def test_names_that_a_star_import_brings_along_are_no_functions_of_the_file(written, tmp_path, monkeypatch):
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "__init__.py").write_text("from . import loss\n__all__ = ['loss']\n")
    (tmp_path / "brought" / "loss.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert symacct.derive(written("from brought import *\n" + GOOD)).formulas["params.total"] is not None
    with pytest.raises(ModelFileError, match="loss is a int, no function; name it otherwise, or leave it out"):
        symacct.derive(written(GOOD + "\nloss = 3\n"))
