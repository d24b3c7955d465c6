"""What a training step holds beside activations: dtypes, optimizer state, recomputation; against real code and real state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from autocast_calls import FLOAT32, GPU_ONLY, LOWER, WIDEST, sample
from test_memory import real_peak
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger
from symacct.errors import ModelFileError, SymacctError
from symacct.formula_reader import parse as read
from symacct.oracles import measure
from symacct.symbols import symbol
from symacct.tracing import autocast
from symacct.tracing.build import Builder
from symacct.tracing.model_file import load_model_file, model_source
from symacct.tracing.run import trace_concrete

DIMS = {"B": 2, "d": 8, "f": 16}


def mlp(d, f):
    return nn.Sequential(nn.Linear(d, f), nn.GELU(), nn.Linear(f, d))


def rows(B, d):
    return torch.randn(B, d)


def derived(model=mlp, inputs=rows, dims=DIMS, **options):
    return symacct.derive(model=model, inputs=inputs, dims=dims, **options)


def parse(text):
    return read(text).expand()


def at(formula, **sizes):
    return int(formula.xreplace({symbol(name): value for name, value in sizes.items()}).doit())


# Dtypes


@pytest.mark.parametrize(("dtype", "kind"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_dtype_is_the_code_written_in_it(dtype, kind):
    hand = derived(lambda d, f: mlp(d, f).to(kind), lambda B, d: torch.randn(B, d, dtype=kind))
    asked = derived(dtype=dtype)
    assert asked.formulas == hand.formulas
    assert not asked.graph.remarks  # no size became a number on the way
    assert asked.formulas["bytes.params"] == parse("2*(2*d*f + d + f)")
    assert asked.formulas["bytes.optimizer"] == parse("4*(2*d*f + d + f) + 4*4")  # 4 a parameter, 4 a tensor
    assert derived(dtype="fp32").formulas == derived().formulas


class KeptWide(nn.Module):
    """Marked as transformers marks the modules that a half precision leaves in float32."""

    _keep_in_fp32_modules = ("router",)
    _keep_in_fp32_modules_strict = ("norm",)

    def __init__(self, d):
        super().__init__()
        self.router, self.norm = nn.Linear(d, d, bias=False), nn.LayerNorm(d)
        self.register_buffer("angles", torch.ones(d), persistent=False)

    def forward(self, x):
        return self.norm((self.router(x.to(self.router.weight.dtype)) * self.angles).float())


@pytest.mark.parametrize(("dtype", "bytes_params"), [("fp16", "4*d**2 + 8*d"), ("bf16", "2*d**2 + 8*d")])
def test_what_transformers_keeps_in_float32_stays_so(dtype, bytes_params):
    ledger = derived(KeptWide, rows, {"B": 2, "d": 8}, dtype=dtype)
    assert ledger.formulas["bytes.params"] == parse(bytes_params)
    assert [p.node.outputs[0].dtype for p in ledger.graph.sources("buffer")] == ["float32"]


def test_a_ready_model_is_left_as_it_was():
    model = mlp(4, 6)
    ledger = derived(model, torch.randn(2, 4), {}, dtype="bf16", checkpoint="0")
    assert ledger.formulas["bytes.params"] == 2 * (24 + 24 + 10)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert type(model[0]) is nn.Linear


def test_options_that_cannot_be_met_are_refused_in_words():
    with pytest.raises(ModelFileError, match="dtype = 'int4': choose from fp32, fp16, bf16"):
        derived(dtype="int4")
    with pytest.raises(SymacctError, match=r"no module's path fits 'blocks\.\*'; there are 0, 1, 2"):
        derived(checkpoint="blocks.*")
    with pytest.raises(SymacctError, match="no list of modules to recompute"):
        derived(checkpoint="full")
    with pytest.raises(SymacctError, match="gpt2 is a stored graph"):
        symacct.derive("gpt2", dtype="bf16")


# Optimizers: P = 2df + d + f parameters in four tensors. Bytes a parameter from the acceptance rows on optimizers

P = "(2*d*f + d + f)"
STATES = {
    "SGD": (lambda p: optim.SGD(p, 0.1), "0"),
    "SGD, momentum": (lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True), f"4*{P}"),
    "Adam": (optim.Adam, f"8*{P} + 16"),
    "AdamW": (optim.AdamW, f"8*{P} + 16"),
    "AMSGrad": (lambda p: optim.Adam(p, amsgrad=True), f"12*{P} + 16"),
    "Adagrad": (optim.Adagrad, f"4*{P} + 16"),
    "RMSprop": (optim.RMSprop, f"4*{P} + 16"),
    "RMSprop, centered, momentum": (lambda p: optim.RMSprop(p, centered=True, momentum=0.9), f"12*{P} + 16"),
    "Adadelta": (optim.Adadelta, f"8*{P} + 16"),
    "Adamax": (optim.Adamax, f"8*{P} + 16"),
    "NAdam": (optim.NAdam, f"8*{P} + 32"),
    "RAdam": (optim.RAdam, f"8*{P} + 16"),
    "ASGD": (optim.ASGD, f"4*{P} + 48"),
    "Rprop": (optim.Rprop, f"8*{P} + 16"),
    "Adafactor": (optim.Adafactor, "4*2*(d + f) + 4*(d + f) + 16"),
    "Muon": (lambda p: optim.Muon([q for q in p if q.dim() == 2]), "4*2*d*f"),
}


def state_after_two_steps(make, d, f):
    parameters = list(mlp(d, f).parameters())
    made = make(parameters)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        made.step()
    return sum(t.nbytes for state in made.state.values() for t in state.values() if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", STATES)
def test_an_optimizers_state_is_what_its_own_step_makes(name, device):
    make, expected = STATES[name]
    ledger = derived(optimizer=make, device=device)
    assert ledger.formulas["bytes.optimizer"] == parse(expected)
    for d, f in ((6, 10), (3, 17)):
        assert at(ledger.formulas["bytes.optimizer"], d=d, f=f) == state_after_two_steps(make, d, f)
    assert not [remark for remark in ledger.graph.remarks if "pinned" in remark]


def test_a_number_read_from_data_is_announced():
    ledger = derived(optimizer=optim.Adafactor)
    assert [remark for remark in ledger.graph.remarks if "reads a number from data" in remark]
    assert not ledger.graph.assumptions


def test_muon_turns_a_matrix_by_its_sizes_and_says_so():
    """Five Newton-Schulz steps on each n×m, n < m: 2n²m, 2n³ and 2n²m. The branch on n < m is part of the answer."""
    ledger = derived(optimizer=STATES["Muon"][0])
    assert ledger.formulas["flops.optimizer"] == parse("2*5*(4*d**2*f + 2*d**3)")
    assert [a.kind for a in ledger.graph.assumptions] == ["branch"]


def test_an_optimizer_that_runs_the_model_again_is_refused():
    with pytest.raises(ModelFileError, match="the step of LBFGS runs the model again"):
        derived(optimizer=optim.LBFGS)


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum", "Adagrad", "NAdam", "ASGD"])
def test_the_peak_in_an_optimizers_step_equals_a_real_one(name):
    source = model_source("m", dims=DIMS, model=mlp, inputs=rows, optimizer=STATES[name][0])
    ledger = Ledger(Builder(source, "train", "cpu").graph("m"))
    for sizes in ({"B": 1, "d": 11, "f": 5}, {"B": 40, "d": 5, "f": 9}, {"B": 1, "d": 7, "f": 2}):
        assert at(ledger.formulas["bytes.peak"], **sizes) == real_peak(source, sizes)


def test_foreach_holds_a_temporary_for_each_parameter_and_a_loop_three_of_one():
    """CUDA's default makes AdamW's denominators all at once: one more float32 copy of the model at the peak.

    A loop makes a root and from it the denominator, while the one before is still bound to its name.
    """

    def layers(d):
        return nn.Sequential(*(nn.Linear(d, d, bias=False) for _ in range(5)))

    def peak(device, foreach):
        made = derived(layers, rows, {"B": 2, "d": 8}, device=device, optimizer=lambda p: optim.AdamW(p, foreach=foreach))
        return at(made.formulas["bytes.peak"], B=1, d=50) // (4 * 50**2)

    assert peak("cuda", None) == peak("cpu", True) == 5 * (1 + 1 + 2) + 5
    assert peak("cpu", None) == peak("cuda", False) == 5 * (1 + 1 + 2) + 3


class Masters(optim.Optimizer):
    """AdamW on float32 copies of half-precision parameters."""

    def __init__(self, params):
        super().__init__(params, {})
        self.inner = None

    def step(self):
        params = [p for group in self.param_groups for p in group["params"]]
        if self.inner is None:
            for p in params:
                self.state[p]["master"] = p.detach().float()
            self.inner = optim.AdamW([self.state[p]["master"].requires_grad_() for p in params])
        for p in params:
            self.state[p]["master"].grad = p.grad.float()
        self.inner.step()
        with torch.no_grad():
            for p in params:
                master = self.state[p]["master"]
                self.state[p].update(self.inner.state[master])
                master.grad = None
                p.copy_(master)


def test_master_weights_are_state_when_an_optimizer_keeps_them():
    """Mixed precision as in ZeRO's 16 bytes a parameter: 2 + 2 and 12 of state."""
    found = derived(dtype="bf16", optimizer=Masters).formulas
    assert found["bytes.optimizer"] == parse(f"12*{P} + 16")
    assert found["bytes.params"] == found["bytes.grads"] == parse(f"2*{P}")


# Recomputation


class Stack(nn.Module):
    def __init__(self, d, f, L, by_hand=False):
        super().__init__()
        self.by_hand = by_hand
        self.blocks = nn.ModuleList(mlp(d, f) for _ in range(L))
        self.head = nn.Linear(d, d)

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.by_hand else block(x))
        return self.head(x)


def test_recomputation_asked_for_is_recomputation_written_by_hand():
    dims = {**DIMS, "L": 2}
    plain = derived(Stack, dims=dims).formulas
    hand = derived(lambda d, f, L: Stack(d, f, L, by_hand=True), dims=dims).formulas
    full = derived(Stack, dims=dims, checkpoint="full").formulas
    assert full == hand
    assert derived(Stack, dims=dims, checkpoint="blocks.?").formulas == hand
    assert plain["bytes.saved"] - hand["bytes.saved"] == parse("8*B*L*f")
    assert hand["flops.hardware"] - plain["flops.hardware"] == parse("2*B*L*d*f")  # early stop spares the last product
    assert hand["flops.step"] == plain["flops.step"]


# CUDA's autocast without a GPU


def test_the_lists_are_those_of_torchs_own_header():
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("torch came without its headers")
    macros = re.split(r"#define (AT_FORALL_\w+)\(_\)", header.read_text(encoding="utf-8"))
    listed = {
        name: sorted(".".join(part for part in entry.split(", ")) for entry in re.findall(r"\b_\(([^()]+)\)", body))
        for name, body in zip(macros[1::2], macros[2::2], strict=True)
    }
    ours = (autocast.LOWER, autocast.FLOAT32, autocast.FLOAT32_RESULT, autocast.WIDEST)
    for name, names in zip(("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"), ours, strict=True):
        assert listed[f"AT_FORALL_{name}"] == sorted(names)
    assert set(LOWER) | GPU_ONLY == set(autocast.LOWER)
    assert set(FLOAT32) == {*autocast.FLOAT32, *autocast.FLOAT32_RESULT, *autocast.FLOAT32_NORM}
    assert set(WIDEST) == set(autocast.WIDEST)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_each_op_runs_in_the_dtype_of_its_list(low):
    def small(*shape):
        return sample(*shape, dtype=low)

    def wide(*shape):
        return sample(*shape, dtype=torch.float32)

    with autocast.emulating(), torch.autocast("cuda", dtype=low):
        assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == low
        for table, makers, expected in ((LOWER, (wide,), low), (FLOAT32, (small,), torch.float32), (WIDEST, (small, wide), torch.float32)):
            for name, arguments in table.items():
                base, _, overload = name.partition(".")
                made = getattr(getattr(torch.ops.aten, base), overload or "default")(*arguments(*makers))
                assert (made[0] if isinstance(made, tuple) else made).dtype == expected, name
        assert F.relu(small(2)).dtype == low and F.relu(wide(2)).dtype == torch.float32  # on no list
        assert torch.mm(wide(2, 2).double(), wide(2, 2).double()).dtype == torch.float64
        assert torch.softmax(small(2), 0, dtype=low).dtype == low
        with torch.autocast("cuda", enabled=False):
            assert torch.mm(wide(2, 2), wide(2, 2)).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(wide(2), wide(2))


def test_nothing_of_it_outlasts_the_block():
    before = torch.amp.autocast_mode.autocast.__enter__
    with autocast.emulating(), torch.autocast("cuda"):
        pass
    assert torch.amp.autocast_mode.autocast.__enter__ is before
    with torch.autocast("cpu"):  # the CPU's own lists: no exp among them
        assert torch.exp(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")


class Mixed(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.down(F.gelu(self.up(self.norm(x)))) + self.down(self.up(x))


def test_an_autocast_model_keeps_its_casts_and_runs_in_both_dtypes():
    ledger = derived(Mixed)
    casts = [(p.node.module, p.node.outputs[0].shape) for p in ledger.graph.ops if p.node.op == "aten._to_copy" and p.node.phase == "forward"]
    weights = [shape for module, shape in casts if module and shape[0] != symbol("B")]
    assert weights == [(symbol("f"), symbol("d")), (symbol("d"), symbol("f"))]  # one each, though both are used twice
    dtypes = {p.node.op: p.node.outputs[0].dtype for p in ledger.graph.ops if p.node.phase == "forward"}
    assert dtypes["aten.mm"] == dtypes["aten.gelu"] == "bfloat16"
    assert dtypes["aten.native_layer_norm"] == "float32"
    assert ledger.formulas["bytes.grads"] == ledger.formulas["bytes.params"] == parse("4*(2*d*f + 2*d)")
    for sizes in ({"B": 3, "d": 6, "f": 10}, {"B": 5, "d": 12, "f": 7}):
        with autocast.emulating():
            real = measure(Mixed(sizes["d"], sizes["f"]), torch.randn(sizes["B"], sizes["d"]))
        assert at(ledger.formulas["bytes.saved"], **sizes) == real.saved_bytes
        counted = real.flops_forward + real.flops_hardware_backward
        assert at(ledger.formulas["flops.hardware"], **sizes) == counted


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_with_cpu_behaviour_cudas_autocast_is_off_as_it_really_is():
    assert "aten._to_copy" not in {p.node.op for p in derived(Mixed, device="cpu").graph.ops}


FILE = '''
import torch
from torch import nn
dims = {"B": 2, "d": 8}
context = torch.autocast("cuda", dtype=torch.bfloat16)
class Net(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer = nn.Linear(d, d)
    @torch.autocast("cuda", dtype=torch.float16)
    def half(self, x):
        return self.layer(x)
    def forward(self, x):
        with context:
            y = self.layer(x)
        return y.float() + self.half(x).float()
def model(d):
    return Net(d)
def inputs(B, d):
    return torch.randn(B, d)
'''


def test_a_region_made_before_the_trace_counts_too(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE)
    trace = trace_concrete(load_model_file(path), "forward", "cuda", {"B": 2, "d": 8})
    assert [r.outputs[0].dtype for r in trace.records if r.op == "aten.addmm"] == ["bfloat16", "float16"]


class Recast(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.inner = mlp(d, f)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return checkpoint(self.inner, x, use_reentrant=False)


def test_a_recomputation_casts_as_its_forward_did():
    ledger = derived(Recast)
    found = {p.node.phase: set() for p in ledger.graph.ops}
    for p in ledger.graph.ops:
        if p.node.op in ("aten.addmm", "aten.mm"):
            found[p.node.phase].add(p.node.outputs[0].dtype)
    assert found["forward"] == found["recompute"] == found["backward"] == {"bfloat16"}
