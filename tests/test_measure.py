"""Measured steps: arithmetic on a clock that says what it is told, the steps that run, and a real answer."""

from __future__ import annotations

import json
from fractions import Fraction
from io import StringIO

import pytest
import torch
from function_models import stored
from torch import nn

from symacct import measure as running
from symacct.account import Ledger
from symacct.cli import main
from symacct.devices import card
from symacct.errors import ModelFileError, Unsupported
from symacct.plan.speed import Product, Speed, Timing, timed
from symacct.report.answer import answer
from symacct.report.grids import Page
from symacct.report.measured import as_json, as_text
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source

GPT2 = {"B": 100, "T": 1024, "V": 50257, "L": 12, "d": 768, "h": 12, "f": 3072}
PRODUCT = Product(1000, "float32", 20_000_000)  # 2e9 FLOPs in 20 ms: 100 GFLOP/s


class Clock:
    """Says these nanoseconds, one after the other."""

    def __init__(self, *times):
        self.times = list(times)

    def __call__(self):
        return self.times.pop(0)


def speed(*seconds, **more):
    timing = Timing(tuple(round(s * 10**9) for s in seconds), 3, "cpu", "a CPU", PRODUCT)
    return Speed(stored("gpt2"), GPT2, timing, **more)


def test_only_the_steps_after_warmup_count_and_preparing_takes_no_time():
    seen = []
    clock = Clock(0, 100, 200, 350, 400, 650)  # begin and end of three steps

    def prepare():
        seen.append("prepare")
        return len(seen)

    found = timed(lambda given: seen.append(given), 2, 1, clock, prepare)
    assert found == (150, 250)
    assert seen == ["prepare", 1, "prepare", 3, "prepare", 5] and not clock.times


def test_utilisation_as_nanogpt_prints_it():
    """transformer_sizing.ipynb: a batch of 100 in 0.755 s on an A100 (312e12 in bf16) is 37.14 %."""
    found = speed(0.755, card=card("a100"), precision="bf16")
    assert found.model_flops == 100 * 874_944_921_600
    assert float(found.utilisation(found.model_flops)["card"]) == pytest.approx(0.3714, abs=5e-5)
    # the measured product: 87.49 TFLOP in 0.755 s, of 100 GFLOP/s
    assert (
        found.utilisation(found.model_flops)["product"]
        == Fraction(87_494_492_160_000) / Fraction("0.755") / 10**11
    )
    assert found.work[0] == "tokens" and found.per_second(100 * 1024) == Fraction(102400) / Fraction("0.755")


def test_median_and_spread_by_hand():
    found = speed(5, 1, 4, 2, 3)
    assert found.quartiles == (2, 3, 4) and found.median == 3 and found.spread == Fraction(2, 3)
    assert speed(7).quartiles == (7, 7, 7) and speed(7).spread == 0
    assert speed(1, 2).median == Fraction(3, 2)


def test_hardware_flops_have_what_attention_repeats():
    """Fused attention computes its scores again in backward: 2·B·L·T²·d FLOPs more."""
    found = speed(1)
    assert found.hardware_flops - found.model_flops == 2 * 100 * 12 * 1024**2 * 768


def test_without_a_card_only_the_product_is_a_peak():
    assert list(speed(1).peaks) == ["product"] and speed(1).roof is None


def test_a_count_in_macs_is_still_measured_in_flops():
    from symacct.conventions import convention

    found = Speed(stored("gpt2").under(convention(unit="MAC")), GPT2, speed(1).timing)
    assert (found.model_flops, found.hardware_flops) == (speed(1).model_flops, speed(1).hardware_flops)


def test_float32_products_that_may_run_in_tf32_are_measured_against_its_peak():
    timing = Timing((10**9,), 0, "cuda", "a card", PRODUCT, None, True)
    assert Speed(stored("gpt2"), GPT2, timing, card("h100")).at_precision == "tf32"
    assert speed(1, card=card("h100")).at_precision == "fp32"


# Words


def shown(found, width):
    out = StringIO()
    with Page(out, width) as page:
        as_text(page, answer(found.ledger, [f"{n}={v}" for n, v in GPT2.items()]), found)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 100])
def test_the_answer_fits_and_says_what_was_measured(width):
    found = speed(0.755, 0.75, 0.76, card=card("a100"), precision="bf16")
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for said in (
        "755.0 ms",
        "102,400 tokens a step",
        "115.9 TFLOP/s",
        "37.1 %",
        "3 steps after 3 of warm-up",
    ):
        assert said in words
    assert "skipped: torch counts the memory of tensors on CUDA only" in words


def test_a_peak_memory_that_was_measured_stands_beside_the_formulas():
    timing = Timing((10**9,), 0, "cuda", "NVIDIA A100", PRODUCT, 12_345_678_901)
    words = " ".join(shown(Speed(stored("gpt2"), GPT2, timing, card("a100")), 100).split())
    assert "12.35 GB torch.cuda.max_memory_allocated" in words and "by the formula" in words
    assert "of 19.5 TFLOP/s: A100-80GB-SXM, fp32 by the table" in words


def test_more_than_the_peak_is_doubted():
    words = " ".join(shown(speed(0.1, card=card("a100"), precision="bf16"), 100).split())
    assert "MFU passes 100 %" in words


def test_json_is_exact_where_numbers_are():
    found = speed(0.755, card=card("a100"), precision="bf16")
    data = json.loads(json.dumps(as_json(answer(found.ledger, [f"{n}={v}" for n, v in GPT2.items()]), found)))
    assert data["flops"]["model"] == 87_494_492_160_000 and data["steps"]["nanoseconds"] == [755_000_000]
    assert data["mfu"]["card"] == pytest.approx(0.3714, abs=5e-5)
    assert data["product"]["flops_per_second"] == 1e11 and data["peak_memory"]["measured"] is None


# Real steps


class Watched(nn.Module):
    """Writes down how each call finds it."""

    seen: list = []  # noqa: RUF012

    def __init__(self, d):
        super().__init__()
        self.line = nn.Linear(d, d)

    def forward(self, x, cache=None):
        length = None
        if cache is not None:
            length = cache["x"].shape[1] if "x" in cache else 0
            cache["x"] = torch.cat((cache["x"], x), 1) if length else x
        self.seen.append((self.training, torch.is_grad_enabled(), length))
        return self.line(x)


def empty():
    return {}


def watched():
    Watched.seen = []
    return model_source(
        "watched.py",
        dims={"B": 2, "T": 5, "d": 8},
        model=lambda d: Watched(d),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        cache=empty,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def run(source, mode, count=3, warmup=2, sizes=None):
    ledger = Ledger(Builder(source, mode, "cpu").graph("watched.py"))
    Watched.seen = []
    sizes = sizes or {"B": 2, "T": 5, "d": 8}
    return running.measure(source, ledger, sizes, "cpu", count, warmup, side=8)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("train", [(True, True, None)] * 5),
        ("forward", [(False, False, None)] * 5),
        ("prefill", [(False, False, 0)] * 5),  # each step fills an empty cache
        (
            "decode",
            [(False, False, 0)] + [(False, False, 5)] * 5,
        ),  # the prompt, then one token behind it each time
    ],
)
def test_each_mode_runs_its_own_step(mode, expected):
    found = run(watched(), mode)
    assert Watched.seen == expected
    assert len(found.nanoseconds) == 3 and min(found.nanoseconds) > 0 and found.peak is None
    assert found.product.dtype == "float32" and found.product.side == 8


def test_a_step_on_cuda_ends_when_the_device_is_idle(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("idle"))
    clock = Clock(0, 7)
    step = running._waiting(lambda _: order.append("step"), "cuda")
    assert timed(step, 1, 0, lambda: order.append("clock") or clock()) == (7,)
    assert order == ["clock", "step", "idle", "clock"]


def test_what_the_model_raises_is_told():
    source = watched()
    broken = model_source(
        "broken.py",
        dims=source.dims,
        model=lambda d: Watched(d),
        inputs=lambda B, d: torch.randn(B, 1, d + 1),
    )
    ledger = Ledger(Builder(source, "forward", "cpu").graph("watched.py"))
    with pytest.raises(ModelFileError, match=r"broken\.py: a step at these sizes raised RuntimeError"):
        running.measure(broken, ledger, {"B": 2, "T": 5, "d": 8}, "cpu", 1, 0)


def test_sizes_that_memory_cannot_hold_are_refused_before_they_run(monkeypatch):
    monkeypatch.setattr(running, "memory", lambda device: 10**6)
    with pytest.raises(Unsupported, match=r"holds .* of tensors at these sizes, and this cpu has 1\.000 MB"):
        run(watched(), "train", sizes={"B": 2, "T": 5, "d": 1024})
    assert not Watched.seen


# The command line


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(
        "import torch\n"
        'dims = {"B": 4, "d": 16, "f": 48}\n'
        "def model(d, f):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(d, f), torch.nn.GELU(), torch.nn.Linear(f, d))\n"
        "def inputs(B, d):\n"
        "    print('making inputs')\n"
        "    return torch.randn(B, d)\n"
    )
    return str(path)


def test_a_real_run_answers_in_json(model_file, capsys, monkeypatch):
    monkeypatch.setitem(running.SIDES, "cpu", 16)
    words = [
        "measure",
        model_file,
        "--at",
        "B=8,d=32,f=64",
        "--steps",
        "3",
        "--warmup",
        "1",
        "--device",
        "cpu",
    ]
    assert main([*words, "--card", "h100", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)  # what the model prints is no part of it
    assert len(data["steps"]["nanoseconds"]) == 3 and data["steps"]["warmup"] == 1
    # forward 2·2·B·d·f; backward twice, less the input's gradient
    assert data["flops"]["model"] == 2 * 8 * 32 * 64 * 5 == data["flops"]["hardware"]
    assert data["work"] == {"unit": "samples", "a_step": 8, "per_second": data["work"]["per_second"]}
    assert data["device"]["kind"] == "cpu" and data["peak_memory"]["skipped"]
    assert data["flops_per_second"] == pytest.approx(data["flops"]["model"] / data["steps"]["median_seconds"])
    assert data["mfu"]["card"] == pytest.approx(data["flops_per_second"] / 67e12)
    assert data["mfu"]["product"] == pytest.approx(
        data["flops_per_second"] / data["product"]["flops_per_second"]
    )
    assert data["roofline"]["fused_seconds"] <= data["roofline"]["unfused_seconds"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--at", "B=8,d=32"], "--at leaves out f"),
        ([], "--at leaves out B, d, f"),
        (["--at", "B=8,d=32,f=0"], "positive integer"),
        (["--at", "B=8,d=32,f=64,q=3"], "q"),
        (["--at", "B=8,d=32,f=64", "--card", "h10"], "did you mean"),
        (["--at", "B=8,d=32,f=64", "--card", "v100", "--precision", "bf16"], "no peak for bf16"),
        (["--at", "B=8,d=32,f=64", "--steps", "0"], "--steps"),
        (["--at", "B=8,d=32,f=64", "--device", "tpu"], "tpu"),
        (["--at", "B=8,d=32,f=64", "--mode", "decode"], "cache"),
    ],
)
def test_bad_input_is_one_sentence(model_file, words, says, capsys):
    assert main(["measure", model_file, *words]) == 2
    out, err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert not out and last.startswith("error: ") and says in last


def test_a_device_that_is_not_there_is_said(model_file, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["measure", model_file, "--at", "B=8,d=32,f=64", "--device", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert not out and "torch finds no CUDA device here" in err and "Traceback" not in err
