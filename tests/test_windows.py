"""Sliding windows below and beyond their width: the way that code takes there, against real runs."""

from __future__ import annotations

import json
from functools import cache

import pytest
import sympy as sp
from hf_configs import PUBLISHED

import symacct
from symacct import cli, targets
from symacct.account import Ledger
from symacct.comparisons import excludes, implies, plain, told, weaker
from symacct.errors import FormulaError, SizeError
from symacct.regions import Region, comparison, examples
from symacct.report.answer import answer
from symacct.report.derived import notes
from symacct.report.relations import agreeing, relations
from symacct.symbols import symbol

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_inference import confirm, narrowed  # noqa: E402

from symacct.tracing.inference import tensors_of  # noqa: E402
from symacct.tracing.variation import graph_of  # noqa: E402
from symacct.verify import verify  # noqa: E402
from symacct.verify_runs import build  # noqa: E402

B, T, W = map(symbol, "B T W".split())
SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEAD = {"d_h": 16, "h": 4, "h_kv": 2}  # the sizes that a narrowed config keeps


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A small Mistral with symbols for B, T, W alone, and its ledgers by mode and region."""
    from symacct.tracing.hf import load_config

    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(PUBLISHED["mistral-7b-v0.1"][0]))
    source = narrowed(load_config(path), "B T W", {"V": 40, "d": 32, "f": 24})

    @cache
    def ledger(mode, beyond):
        sizes = {"T": 20, "W": 8} if beyond else {"T": 5, "W": 8}
        return Ledger(graph_of(source, "windowed", mode, "cuda", region=Region((), sizes)))

    return source, ledger


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("tokens", [5, 8, 20])
def test_a_window_of_8_equals_a_real_run(windowed, mode, tokens):
    source, ledger = windowed
    confirm(ledger(mode, tokens >= 8), source, {"B": 2, "T": tokens, "W": 8})


def test_a_full_window_keeps_a_token_less_and_attends_to_itself_beside(windowed):
    """transformers keeps W - 1 tokens; the step reads these and its own."""
    _, ledger = windowed
    found = ledger("decode", True)
    per_token = 2 * 2 * HEAD["h_kv"] * HEAD["d_h"] * 4  # keys and values, two layers
    assert sp.expand(found.formulas["bytes.kv_cache"] - per_token * B * (W - 1)) == 0
    attention = sp.Poly(found.formulas["flops.forward"], W, B).coeff_monomial(W * B)
    assert attention == 2 * 4 * HEAD["h"] * HEAD["d_h"]
    assert T not in found.formulas["flops.forward"].free_symbols


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_window_that_is_cut_from_longer_tensors_is_told(windowed, mode):
    """Truth: the storages of transformers' cache after a real step, beside the elements in it."""
    source, ledger = windowed
    sizes = {"B": 2, "T": 20, "W": 8}
    real = build(source, sizes, mode)
    tensors = [tensor for _, tensor in tensors_of(real.model.step(real.inputs))]
    held = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
    elements = sum(t.numel() * t.element_size() for t in tensors)
    assert elements == ledger(mode, True).at(**sizes)["bytes.kv_cache"] < held
    assert any("parts of longer tensors" in remark for remark in ledger(mode, True).graph.remarks)
    assert not any("parts of longer tensors" in remark for remark in ledger(mode, False).graph.remarks)


def test_a_prompt_beyond_the_window_multiplies_whole_squares(windowed):
    _, ledger = windowed
    below, beyond = (ledger("prefill", side).formulas["flops.forward"] for side in (False, True))
    assert sp.expand(below - beyond) == 0


def test_numbers_of_the_other_region_are_refused_where_nothing_can_be_traced(windowed):
    _, ledger = windowed
    with pytest.raises(SizeError, match="breaks T"):
        ledger("decode", False).at(B=1, T=20, W=8)
    with pytest.raises(SizeError, match="contradicts T"):
        agreeing(relations(["T >= W"], ["T", "W"]), ledger("decode", False).graph.assumptions)


class Tail(torch.nn.Module):
    """The mean of the last w of T tokens."""

    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x):
        return x[:, -self.w :].exp().sum()


def test_a_slice_that_is_cut_short_says_so():
    made = symacct.derive(
        model=Tail, inputs=lambda B, T: torch.ones(B, T), dims={"B": 3, "T": 7, "w": 4}, mode="forward"
    )
    assert [a.text for a in made.graph.assumptions] == ["T >= w"]
    # exp writes what it reads, and the sum writes one number
    assert made.at(B=2, T=9, w=5)["bytes.written"] == 4 * (2 * 5 + 1)
    assert made.at(B=2, T=3, w=5)["bytes.written"] == 4 * (2 * 3 + 1)
    other = symacct.derive(
        model=Tail, inputs=lambda B, T: torch.ones(B, T), dims={"B": 3, "T": 7, "w": 4}, mode="forward", given="T < w"
    )
    assert "w" not in {s.name for s in other.formulas["bytes.written"].free_symbols}


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_every_second_layer_with_a_window_equals_a_real_run(tmp_path, mode):
    """Gemma 2: of two layers one keeps W - 1 tokens, the other all of them."""
    from symacct.tracing.hf import load_config

    path = tmp_path / "config.json"
    layers = ["sliding_attention", "full_attention"] * 13
    path.write_text(json.dumps(PUBLISHED["gemma2-2b"][0] | {"layer_types": layers}))
    source = narrowed(load_config(path), "B T W", {"V": 40, "d": 32, "f": 24})
    ledger = Ledger(graph_of(source, "windowed", mode, "cuda", region=Region((), {"T": 20, "W": 8})))
    per_token = 2 * HEAD["h_kv"] * HEAD["d_h"] * 4  # keys and values of a layer
    kept = {"prefill": T + W - 1, "decode": T + 1 + W - 1}[mode]
    assert sp.expand(ledger.formulas["bytes.kv_cache"] - per_token * B * kept) == 0
    for tokens in (8, 20):
        confirm(ledger, source, {"B": 2, "T": tokens, "W": 8})


def test_an_answer_of_one_side_says_how_to_ask_for_the_other(windowed):
    _, ledger = windowed
    (below,) = notes(answer(ledger("decode", False)))
    assert below == "all this holds for T + 1 < W alone: --given 'T + 1 >= W' derives the other side of the window"
    (beyond,) = notes(answer(ledger("decode", True)))
    assert "holds for T >= W alone: --given 'T < W'" in beyond
    assert notes(answer(ledger("decode", True), given=["T >= W"])) == []


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two model files: the exponentials of the last w of T numbers, and of all of them."""
    folder = tmp_path_factory.mktemp("files")
    for name, part in (("tail", "-self.w :"), ("whole", ":")):
        (folder / f"{name}.py").write_text(
            "import torch\n\ndims = {'B': 3, 'T': 7, 'w': 4}\n\n\nclass Part(torch.nn.Module):\n"
            "    def __init__(self, w):\n        super().__init__()\n        self.w = w\n\n"
            f"    def forward(self, x):\n        return x[:, {part}].exp().sum()\n\n\n"
            "def model(w):\n    return Part(w)\n\n\ndef inputs(B, T):\n    return torch.ones(B, T)\n"
        )
    return str(folder / "tail.py"), str(folder / "whole.py")


def test_check_diff_and_verify_take_the_way_that_is_asked_for(files, capsys, tmp_path):
    tail, whole = files
    code = cli.main(["check", tail, "bytes.written = 4*B*T + 4", "--mode", "forward", "--given", "T < w"])
    assert code == 0 and "equal" in capsys.readouterr().out
    assert cli.main(["check", tail, "bytes.written = 4*B*T + 4", "--mode", "forward"]) == 1
    (tmp_path / "claims.toml").write_text(
        '[[claim]]\nformula = "bytes.written = 4*B*T + 4"\ngiven = ["T < w"]\n\n'
        '[[claim]]\nformula = "bytes.written = 4*B*w + 4"\n'
    )
    assert cli.main(["check", tail, "--file", str(tmp_path / "claims.toml"), "--mode", "forward"]) == 0
    capsys.readouterr()

    for given, verdict in (("T < w", "equal"), ("T >= w", "never more")):
        assert cli.main(["diff", tail, whole, "--mode", "forward", "--given", given, "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)["differences"]
        assert found["bytes.written"]["a_is"] == verdict

    certificate = verify(tail, "forward", points=2, given=("T < w",))
    assert certificate.verified and all(p["T"] < p["w"] for p in certificate.points)
    with pytest.raises(FormulaError, match="only a comparison"):
        verify(tail, "forward", given=("T = 2*w",))


def test_a_full_window_is_verified(windowed):
    """Keys kept, products and births of storages at random sizes there."""
    source, ledger = windowed
    made = ledger("decode", True).graph
    certificate = verify(source, "decode", points=1, graph=made, given=("T >= W",), lifting=False)
    assert certificate.verified and all(p["T"] + 1 >= p["W"] for p in certificate.points)
    assert {"bytes.kv_cache", "flops.forward"} <= {check.quantity for check in certificate.checks}
    with pytest.raises(SizeError, match="contradicts"):
        verify(source, "decode", graph=ledger("decode", True).graph, given=("T + 2 < W",))


# Comparisons


def test_comparisons_are_written_plainly():
    assert plain(1 - W < -T) == (T + 1 < W)
    assert plain(T - W + 1 >= 0) == (T + 1 >= W)
    assert plain(T <= W) == (T <= W)
    assert plain(-T >= -256) == (T <= 256)


def test_what_comparisons_say_of_each_other():
    assert implies(T + 1 < W, T < W) and not implies(T < W, T + 1 < W)
    assert excludes(T >= W, T < W) and not excludes(T >= W, T + 1 >= W)
    assert excludes(T >= W, T <= W - 1) and not excludes(T >= W, T <= W)
    assert not excludes(T < W, B < W)


def test_an_answer_rests_on_the_comparison_that_settles_it():
    both, hints = sp.And(W > 1, W <= T), {T: 5, W: 8}
    assert list(told(both, False, hints)) == [W > T]
    assert set(told(both, True, hints)) == {W > 1, W <= T}
    assert list(told(sp.Not(both), True, hints)) == [W > T]
    assert weaker(W > T) == (T <= W) and weaker(1 - W < 0) == (1 - W < 0)


def test_comparisons_are_read():
    assert comparison("T >= W") == (T >= W) and comparison("T+1<W") == (T + 1 < W)
    assert comparison("T << W") is None and comparison("T = W") is None and comparison("h | d") is None
    with pytest.raises(FormulaError, match="is true at all sizes"):
        comparison("T >= T")


def test_examples_meet_the_comparisons_with_room():
    dims = {"B": 3, "T": 14, "W": 48, "E": 12}
    found = examples(dims, [T >= W])
    assert found == {"B": 3, "T": 14, "W": 10, "E": 12}  # 12 is taken, and 14 would be no room
    assert examples(dims, [T < W]) == dims
    assert examples(dims, [symbol("x") < T]) is None


def test_a_quotient_that_leaves_no_column_is_excluded_not_counted(tmp_path, capsys):
    """Of d = 3 columns the first d // 4 are none: there torch runs no slice. Any other way than the condition would be wrong."""
    (tmp_path / "quarter.py").write_text(
        "import torch\n\ndims = {'B': 3, 'd': 34, 'h': 2}\n\n\nclass Part(torch.nn.Module):\n"
        "    def __init__(self, d, h):\n        super().__init__()\n        self.h, self.k = h, int(0.25 * (d // h))\n\n"
        "    def forward(self, x):\n        x = x.unflatten(1, (self.h, -1))\n"
        "        return torch.cat([x[..., : self.k].exp(), x[..., self.k :]], dim=2).sum()\n\n\n"
        "def model(d, h):\n    return Part(d, h)\n\n\ndef inputs(B, d):\n    return torch.ones(B, d)\n"
    )
    file = str(tmp_path / "quarter.py")
    found = symacct.derive(file, mode="forward")
    assert {a.short for a in found.graph.assumptions} == {"h | d", "d >= 4*h"}
    assert verify(file, "forward", points=4).verified
    assert cli.main(["derive", file, "--mode", "forward", "--at", "B=2,d=6,h=2"]) == 2
    assert "d >= 4*h" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "depth", "T"), [("decode", 2, 20), ("prefill", 3, 20), ("prefill", 5, 6)])
def test_layers_that_alternate_hold_at_depths_of_the_config_s_parity(tmp_path, mode, depth, T):
    """Gemma 2 of two or three layers: odd depths end with a window, even ones without; neither tells of the other."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": depth} | SMALL))
    ledger = Ledger(targets.graph_of(str(path), mode, "cpu", region=Region((), {"T": T})))
    source = targets.source_of(str(path))
    for layers in (depth, depth + 2):
        sizes = {**ledger.graph.values, "B": 2, "T": T, "L": layers}
        confirm(ledger, source, {name: sizes[name] for name in source.dims})
    with pytest.raises(SizeError, match=rf"L = {depth + 1} breaks "):
        ledger.at(**{**ledger.graph.values, "B": 2, "T": T, "L": depth + 1})
