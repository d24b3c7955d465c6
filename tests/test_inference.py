"""Prefill and decode with the model's real cache: bytes cached, products, bytes read, against real runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import sympy as sp
from hf_configs import PUBLISHED

from symacct import cli
from symacct.account import Ledger
from symacct.dtypes import width
from symacct.errors import GraphError, ModelFileError, Unsupported
from symacct.oracles import measure
from symacct.symbols import symbol
from symacct.targets import graph_of
from symacct.tracing.build import Builder
from symacct.tracing.inference import in_mode, tensors_of
from symacct.tracing.model_file import load_model_file, model_source
from symacct.tracing.preparation import prepared
from symacct.tracing.run import trace_concrete
from symacct.tracing.source import ModelSource

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[1] / "examples"
B, T, V, L, d, h, h_kv, d_h, f = map(symbol, "B T V L d h h_kv d_h f".split())
LLAMA_MATMUL = V * d + L * (2 * d * d_h * (h + h_kv) + 3 * d * f)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A published config, or one given as a dict, as a model source."""
    from symacct.tracing.hf import load_config

    def load(given: str | dict[str, Any]) -> ModelSource:
        path = tmp_path_factory.mktemp("config") / "config.json"
        path.write_text(json.dumps(PUBLISHED[given][0] if isinstance(given, str) else given))
        return load_config(path)

    return load


@cache
def example(name: str, mode: str) -> Ledger:
    """The ledger of an example, symbolic in every size."""
    return Ledger(graph_of(str(EXAMPLES / f"{name}.py"), mode))


def narrowed(source: ModelSource, free: str, fixed: Mapping[str, int]) -> ModelSource:
    """The source with symbols for the `free` sizes; the rest are the example's numbers unless `fixed`."""
    sizes = {**source.dims, **fixed}
    known = {name: n for name, n in sizes.items() if name not in free.split()}
    make, prompt = source.cache, source.prompt or source.inputs
    step = source.step
    return replace(
        source,
        dims={name: sizes[name] for name in free.split()},
        values={},
        model=lambda now: source.model(known | dict(now)),
        inputs=lambda now: source.inputs(known | dict(now)),
        prompt=lambda now: prompt(known | dict(now)),
        step=None if step is None else lambda now: step(known | dict(now)),
        cache=lambda model, now: make(model, known | dict(now)),
    )


def derived(source: ModelSource, mode: str, device: str = "cuda") -> Ledger:
    return Ledger(Builder(source, mode, device).graph("model"))


def equal(a: sp.Expr, b: sp.Expr) -> bool:
    return sp.expand(a - b) == 0


# Formulas


def test_a_llama_caches_keys_and_values_of_every_token():
    assert equal(example("llama", "prefill").formulas["bytes.kv_cache"], 2 * L * h_kv * d_h * T * B * 4)
    assert equal(example("llama", "decode").formulas["bytes.kv_cache"], 2 * L * h_kv * d_h * (T + 1) * B * 4)


def test_a_prompt_costs_the_products_of_a_forward_pass():
    assert equal(
        example("llama", "prefill").formulas["flops.forward"],
        Ledger(graph_of("llama")).formulas["flops.forward"],
    )


def test_a_token_costs_each_weight_once_and_attention_to_itself_and_all_before():
    expected = 2 * LLAMA_MATMUL * B + 4 * B * L * h * d_h * (T + 1)
    assert equal(example("llama", "decode").formulas["flops.forward"], expected)


def test_a_token_reads_each_weight_once_and_what_is_cached_twice():
    read = sp.Poly(example("llama", "decode").formulas["bytes.read"], B, T)
    norms_and_one_row = L * 2 * d + d
    assert equal(read.coeff_monomial(B * T), 2 * (2 * L * h_kv * d_h) * 4)  # to append, and to attend
    weights = 4 * (LLAMA_MATMUL + norms_and_one_row)
    rest = sp.expand(read.coeff_monomial(1) - weights)
    assert rest.free_symbols <= {L, d_h}  # the rotary tables


def test_what_is_cached_before_and_after_a_step_are_sources_of_the_graph():
    def bytes_of(after: bool) -> sp.Expr:
        parts = example("llama", "decode").graph.sources("cache")
        found = [p for p in parts if ("after" in p.node.notes) == after]
        return sp.Add(*(p.times * out.bytes for p in found for out in p.node.outputs))

    assert equal(bytes_of(after=False), 8 * B * L * T * h_kv * d_h)
    assert equal(bytes_of(after=True), 8 * B * L * (T + 1) * h_kv * d_h)
    assert "attention reads T + 1" in example("llama", "decode").graph.symbols["T"].meaning


def test_only_inference_has_a_cache():
    train = Ledger(graph_of("llama")).formulas
    assert "bytes.kv_cache" not in train
    decode = example("llama", "decode").formulas
    assert not {"bytes.saved", "bytes.grads", "flops.step", "flops.backward"} & set(decode)


# Published figures, from runs on tensors without data at the models' own sizes

LLAMA = {
    "Llama-2-7B": ({"L": 32, "h": 32, "h_kv": 32, "d_h": 128}, 524_288),
    "Llama-3-8B": ({"L": 32, "h": 32, "h_kv": 8, "d_h": 128}, 131_072),
}
LATENT = {"h": 128, "d_h": 128, "d_r": 64, "d_v": 128, "d_c": 512, "d_q": 1536, "V": 8, "f": 8, "B": 1}


def cached_bytes(source: ModelSource, mode: str, **sizes: int) -> int:
    """Bytes that a prompt or a step leaves in the cache."""
    trace = trace_concrete(source, mode, "cuda", source.dims | {"B": 1} | sizes)
    left = [out for record in trace.records if "after" in record.notes for out in record.outputs]
    return sum(prod(out.shape) * width(out.dtype) for out in left)


def per_token(source: ModelSource, **sizes: int) -> int:
    """Bytes that a decoded token adds to those of a prompt, which holds as many for each of its own."""
    prompt, more = (cached_bytes(source, mode, T=11, **sizes) for mode in ("prefill", "decode"))
    assert 12 * prompt == 11 * more
    return more - prompt


@pytest.mark.parametrize("name", LLAMA)
def test_llamas_cache_the_published_bytes_a_token(name):
    sizes, published = LLAMA[name]
    source = prepared(load_model_file(EXAMPLES / "llama.py"), "bf16")
    assert per_token(source, **sizes) == published


def test_a_config_caches_the_published_bytes_a_token(config):
    loaded = config("llama3-8b")
    assert per_token(prepared(loaded, "bf16"), **loaded.values) == 131_072


@pytest.mark.parametrize(("depth", "d_model", "elements"), [(60, 5120, 34_560), (61, 7168, 35_136)])
def test_deepseek_caches_a_latent_and_one_rotary_key(depth, d_model, elements):
    source = load_model_file(EXAMPLES / "deepseek_mla.py")
    assert per_token(source, **LATENT, L=depth, d=d_model) == 4 * elements


def test_the_latent_cache_of_transformers_deepseek_is_the_same(config):
    source = config("deepseek-v3")
    assert per_token(source) == 4 * source.dims["L"] * (source.dims["d_c"] + source.dims["d_r"])


@pytest.mark.parametrize(("tokens", "kept"), [(5, 5), (11, 11), (12, 11), (30, 11)])
def test_a_window_of_12_bounds_what_is_cached(config, tokens, kept):
    source = config("mistral-7b-v0.1")  # transformers keeps one token less: the next one fills it
    bytes_a_token = 8 * source.dims["L"] * source.dims["h_kv"] * source.dims["d_h"]
    assert cached_bytes(source, "prefill", T=tokens, W=12) == bytes_a_token * kept
    assert cached_bytes(source, "decode", T=tokens, W=12) == bytes_a_token * min(kept + 1, 11)


# Real runs


class Step(torch.nn.Module):
    """A model that meets the same cache each time that it is called."""

    def __init__(self, model: torch.nn.Module, kept: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.kept = model, kept

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs, **copy.deepcopy(self.kept))


def call(model: torch.nn.Module, given: Any, **kept: Any) -> Any:
    return model(**given, **kept) if isinstance(given, Mapping) else model(given, **kept)


def real_step(source: ModelSource, mode: str, sizes: dict[str, int]) -> tuple[Any, Any, dict[str, Any]]:
    """Model, inputs and cache at the start of the step, on real tensors."""
    now = in_mode(source, mode)
    torch.manual_seed(0)
    model = now.model(sizes).eval()
    kept = now.cache(model, sizes)
    if mode == "decode":
        with torch.no_grad():
            call(model, now.prompt(sizes), **kept)
    return model, now.inputs(sizes), kept


def confirm(ledger: Ledger, source: ModelSource, sizes: dict[str, int]) -> None:
    """Parameters, products and bytes cached equal those of a real execution."""
    model, given, kept = real_step(source, ledger.graph.mode, sizes)
    run = measure(Step(model, kept), given, mode="forward")
    with torch.no_grad():
        call(model, given, **kept)
    cached = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors_of(kept))
    found = ledger.at(**sizes)
    assert found["flops.forward"] == run.flops_forward
    assert found["bytes.kv_cache"] == cached
    assert found["bytes.params"] == run.params_bytes


POINTS = [
    {"B": 3, "T": 7, "V": 40, "L": 3, "d": 24, "h": 4, "h_kv": 2, "d_h": 10, "f": 36},
    {"B": 2, "T": 19, "V": 56, "L": 4, "d": 16, "h": 6, "h_kv": 3, "d_h": 8, "f": 44},
]


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_model_file_equals_a_real_run(mode):
    source = load_model_file(EXAMPLES / "llama.py")
    for sizes in POINTS:
        confirm(example("llama", mode), source, sizes)


def test_a_config_equals_a_real_run(config):
    source = config({**PUBLISHED["llama3-8b"][0], "eos_token_id": 1, "bos_token_id": 1})
    narrow = narrowed(source, "B T L h_kv h", {})
    ledger = derived(narrow, "decode")
    confirm(ledger, narrow, {"B": 2, "T": 9, "L": 3, "h_kv": 2, "h": 6})
    confirm(ledger, narrow, {"B": 5, "T": 23, "L": 2, "h_kv": 3, "h": 9})


def test_an_encoder_decoder_keeps_its_own_keys_and_the_encoders(config):
    """A prompt runs the encoder on S tokens and the decoder on T; a step the decoder alone, on one token."""
    source = narrowed(config("t5-base"), "B S T", {"V": 40, "d": 24, "h": 3, "d_h": 8, "f": 20})
    S, kept = symbol("S"), 2 * 2 * 3 * 8 * 4  # keys and values of two layers, 3 heads of 8
    found = {mode: derived(source, mode) for mode in ("prefill", "decode")}
    assert equal(found["prefill"].formulas["bytes.kv_cache"], kept * B * (T + S))
    assert equal(found["decode"].formulas["bytes.kv_cache"], kept * B * (T + 1 + S))
    # of each layer: q, k, v, o of itself, q and o of the encoder's, the feed-forward; then scores and values of both
    weights = 2 * (6 * 24 * 24 + 2 * 24 * 20) + 24 * 40
    assert equal(found["decode"].formulas["flops.forward"], 2 * B * weights + 2 * 4 * 24 * B * (T + 1 + S))
    for ledger in found.values():
        confirm(ledger, source, {"B": 2, "S": 9, "T": 7})


@pytest.mark.parametrize("name", ["llama", "deepseek_mla"])
def test_a_token_decoded_with_the_cache_is_the_one_a_forward_pass_gives(name):
    source = load_model_file(EXAMPLES / f"{name}.py")
    sizes = dict(source.dims)
    model, _, kept = real_step(source, "prefill", sizes)
    ids = torch.randint(sizes["V"], (sizes["B"], sizes["T"] + 1))
    with torch.no_grad():
        whole = model(ids)
        assert torch.allclose(model(ids[:, :-1], cache=kept["cache"]), whole[:, :-1], atol=1e-5)
        assert torch.allclose(model(ids[:, -1:], cache=kept["cache"])[:, 0], whole[:, -1], atol=1e-5)


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of the operands of every op that makes new tensors; a lookup reads the rows that it returns."""

    total = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple | list) else out
        operands = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(first.untyped_storage()._cdata == t.untyped_storage()._cdata for t in operands):
            return out
        if op is torch.ops.aten.embedding.default:
            operands = [first, args[1]]
        self.total += sum(t.numel() * t.element_size() for t in operands)
        return out


def test_bytes_read_equal_the_operands_of_a_real_run():
    free = "B T L h_kv"
    source = narrowed(load_model_file(EXAMPLES / "llama.py"), free, {})
    ledger = derived(source, "decode", "cpu")
    for sizes in ({"B": 3, "T": 7, "L": 3, "h_kv": 2}, {"B": 2, "T": 20, "L": 4, "h_kv": 3}):
        model, given, kept = real_step(source, "decode", sizes)
        with torch.no_grad(), Reads() as reads:
            model(given, **kept)
        assert ledger.at(**sizes)["bytes.read"] == reads.total


# What is said where it does not apply


def test_models_without_a_cache_say_so(config):
    for source in (load_model_file(EXAMPLES / "mlp.py"), config("bert-base-uncased, masked")):
        with pytest.raises(Unsupported, match="has none"):
            trace_concrete(source, "decode", "cuda", source.dims)


def test_a_cache_that_the_model_does_not_fill_is_refused():
    class Deaf(torch.nn.Linear):
        def forward(self, x: Any, cache: Any = None) -> Any:
            return super().forward(x)

    def ones(B: int, T: int, d: int) -> Any:
        return torch.ones(B, T, d)

    source = model_source(
        "deaf", dims={"B": 2, "T": 3, "d": 4}, model=lambda d: Deaf(d, d), inputs=ones, cache=list
    )
    with pytest.raises(ModelFileError, match="must fill the one it is given"):
        trace_concrete(source, "decode", "cuda", source.dims)


def test_stored_graphs_are_of_training():
    with pytest.raises(GraphError, match="of mode train, not decode"):
        graph_of("llama", "decode")


def test_the_command_line_takes_the_modes(capsys):
    assert cli.main(["derive", str(EXAMPLES / "mlp.py"), "--mode", "decode"]) == 2
    assert "has none" in capsys.readouterr().err
    assert cli.main(["derive", "llama", "--mode", "prefill"]) == 2
    assert "mode train, not prefill" in capsys.readouterr().err


class Lists:
    """A cache of two lists, as long as there are layers."""

    def __init__(self, L):
        self.k, self.v = [None] * L, [None] * L


class Keeps(torch.nn.Module):
    def __init__(self, L, d):
        super().__init__()
        self.key, self.value = (torch.nn.ModuleList(torch.nn.Linear(d, d) for _ in range(L)) for _ in range(2))

    def forward(self, x, cache=None):
        for k, (key, value) in enumerate(zip(self.key, self.value, strict=True)):
            keys, values = key(x), value(x)
            if cache is not None:
                if cache.k[k] is not None:
                    keys, values = torch.cat([cache.k[k], keys], 1), torch.cat([cache.v[k], values], 1)
                cache.k[k], cache.v[k] = keys, values
            x = x + (x @ keys.transpose(1, 2)).softmax(2) @ values
        return x


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("layers", [2, 3])
def test_a_cache_may_be_lists_of_layers_rather_than_a_list_of_pairs(mode, layers):
    source = model_source(
        "lists", dims={"B": 2, "T": 6, "L": layers, "d": 8}, model=Keeps, inputs=lambda B, T, d: torch.ones(B, T, d), cache=Lists
    )
    ledger = derived(source, mode)
    assert not [a for a in ledger.graph.assumptions if a.kind == "divides"]
    assert equal(ledger.formulas["bytes.kv_cache"], 8 * B * symbol("L") * symbol("d") * (T + int(mode == "decode")))
    confirm(ledger, source, {"B": 3, "T": 9, "L": 5, "d": 4})


def test_a_step_that_reads_experts_says_that_it_counts_them_all(tmp_path):
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    routed = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes | routed))
    said = [r for r in graph_of(str(tmp_path / "config.json"), "decode").remarks if "all E experts" in r]
    assert said == ["bytes.read takes the weights of all E experts as read; B tokens choose no more than B·k of them in a layer"]
