"""Published figures on memory, from traced models, under their authors' conventions; and what torch does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from test_memory import Block
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.formula_reader import parse
from symacct.symbols import symbol
from symacct.tracing.model_file import load_model_file

EXAMPLES = Path(__file__).parents[1] / "examples"


def at(expr, **sizes):
    found = expr.xreplace({symbol(name): sp.Integer(value) for name, value in sizes.items()}).doit()
    assert found.is_Rational, found
    return found


def outputs(ledger, phase="forward"):
    """(module, op) of each node of a phase, with the elements of its first output over all repetitions."""
    found = {}
    for place in ledger.graph.ops:
        if place.node.phase == phase:
            key = (place.node.module, place.node.op.removeprefix("aten."))
            found.setdefault(key, []).append(
                [sp.expand(place.times * out.numel) for out in place.node.outputs]
            )
    return found


# Stanford CS336, spring 2025, lecture 2


class Matrix(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, m))

    def forward(self, x):
        return x @ self.weight


def test_bytes_of_a_tensor():
    """lecture_02.py, tensors_memory: 4·8 float32 are 128 bytes, 4·12288 by 12288 are 2304 MiB."""
    made = symacct.derive(
        model=Matrix, inputs=lambda n: torch.zeros(2, n), dims={"n": 4, "m": 8}, mode="forward"
    )
    weights = made.formulas["bytes.params"]
    assert at(weights, n=4, m=8) == 128
    assert at(weights, n=4 * 12_288, m=12_288) == 2304 * 2**20 == 2_415_919_104


class Cruncher(nn.Module):
    """lecture_02.py: L square layers without bias or activation, and a column."""

    def __init__(self, D, L):
        super().__init__()
        self.layers = nn.ModuleList(Matrix(D, D) for _ in range(L))
        self.final = Matrix(D, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.final(x).squeeze(-1)


class LectureAdaGrad(torch.optim.Optimizer):
    """lecture_02.py: a sum of squares for each parameter, and nothing else."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g2 = self.state[p].get("g2", torch.zeros_like(p.grad))
                g2 += torch.square(p.grad)
                self.state[p]["g2"] = g2
                p.data -= group["lr"] * p.grad / torch.sqrt(g2 + 1e-5)


def test_the_lectures_cruncher():
    """lecture_02.py, optimizer(), B = 2, D = 4, L = 2: 4·(36 + 16 + 36 + 36) = 496 bytes, 432 FLOPs."""
    sizes = {"B": 2, "D": 4, "L": 2}
    ledger = symacct.derive(
        model=Cruncher,
        inputs=lambda B, D: torch.randn(B, D),
        dims=sizes,
        optimizer=LectureAdaGrad,
        loss=lambda output: F.mse_loss(output, torch.zeros_like(output)),
        convention="chinchilla",
    )
    found = ledger.at(**sizes)
    layers = sum(at(n, **sizes) for (n,) in outputs(ledger)["layers.*", "mm"])
    assert [found["params.total"], layers, found["bytes.grads"] // 4, found["bytes.optimizer"] // 4] == [
        36,
        16,
        36,
        36,
    ]
    assert found["bytes.params"] + 4 * layers + found["bytes.grads"] + found["bytes.optimizer"] == 496
    assert found["flops.step"] == 432
    # torch keeps the input and the layers' outputs, of mse_loss the prediction and the target; and it spends
    # nothing on the input's gradient
    assert found["bytes.saved"] == 4 * (2 * 4 * 3 + 2 * 2)
    assert (
        symacct.derive(model=Cruncher, inputs=lambda B, D: torch.randn(B, D), dims=sizes).at(**sizes)[
            "flops.step"
        ]
        == 432 - 2 * 2 * 16
    )


# Stanford CS336, assignment 1, adamwAccounting


class Silu(nn.Module):
    """The handout's list: two RMSNorms, Q K V, scores, softmax, weighted sum, output, W1, SiLU, W2."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.w1, self.w2 = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        B, s, d = x.shape
        y = self.norm1(x)
        q, k, v = (m(y).view(B, s, self.h, d // self.h).transpose(1, 2) for m in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(B, s, d))
        return x + self.w2(F.silu(self.w1(self.norm2(x))))


class Assignment(nn.Module):
    def __init__(self, V, L, d, h):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(Silu(d, h) for _ in range(L))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, V, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@cache
def assignment():
    return symacct.derive(
        model=Assignment,
        inputs=lambda B, s, V: torch.randint(V, (B, s)),
        loss=lambda output, inputs: F.cross_entropy(output.flatten(0, 1), inputs.flatten()),
        dims={"B": 2, "s": 6, "V": 40, "L": 2, "d": 24, "h": 3},
    )


XL = {"s": 1024, "V": 50_257, "L": 48, "d": 1600, "h": 25}


def test_the_assignments_list_of_activations():
    """Derived from the handout: L(16·B·s·d + 2·B·h·s²) + B·s·d + 2·B·s·V elements."""
    made = outputs(assignment()) | outputs(assignment(), "loss")
    block = ["norm1.mul.-1", "norm2.mul.-1", "q.mm", "k.mm", "v.mm", "o.mm", "w1.mm", "w2.mm"]
    block += [".bmm.0", "._softmax", ".bmm.1", ".silu"]  # scores, softmax, weighted sum, SiLU
    listed = [_named(made, f"blocks.*.{name}" if name[0] != "." else f"blocks.*{name}") for name in block]
    listed += [_named(made, name) for name in ("norm.mul.-1", "head.mm", "._log_softmax")]
    total = sp.expand(sp.Add(*listed))
    assert total == parse("16*L*B*s*d + 2*L*B*h*s**2 + B*s*d + 2*B*s*V")
    assert at(4 * total, B=1, **XL) == 15_517_753_344


def _named(made, name):
    """Elements of one named output, "module.op" or "module.op.which"."""
    parts = name.split(".")
    which = int(parts.pop()) if parts[-1].lstrip("-").isdigit() else 0
    return made[".".join(parts[:-1]), parts[-1]][which][0]


def test_the_assignments_parameters_gradients_and_moments():
    """16 bytes for each of 1,635,537,600 parameters: 26,168,601,600. So 3 sequences fit in 80 GB or GiB."""
    found = assignment().formulas
    fixed = found["bytes.params"] + found["bytes.grads"] + found["bytes.optimizer"]
    steps = parse("4*(8*L + 3)")  # torch counts each tensor's steps in a float32 beside its moments
    assert at(found["params.total"], **XL) == 1_635_537_600
    assert at(fixed - steps, **XL) == 26_168_601_600
    assert [(budget - 26_168_601_600) // 15_517_753_344 for budget in (80 * 10**9, 80 * 2**30)] == [3, 3]


def test_what_torch_keeps_of_the_assignments_model():
    """Kept are, of each block: the norms' input, scaled input and output (3 each), Q, K, V and their sum made
    contiguous (4), W1's output and SiLU's (8), one B·h·s² of softmax, and the norms' reciprocal roots;
    scores are not.
    """
    block = parse("18*B*s*d + B*h*s**2 + 2*B*s").expand()
    ends = parse(
        "3*B*s*d + B*s + B*s*V + 2*B*s + 1"
    )  # last norm, log-softmax, ids of 8 bytes, the sum of weights
    saved = assignment().formulas["bytes.saved"]
    assert sp.expand(saved - 4 * (symbol("L") * block + ends)) == 0
    assert at(saved, B=1, **XL) == 10_921_394_180  # beside the 15,517,753,344 of the list


# Korthikanti et al. 2022


class Core(Block):
    """The block whose attention core is recomputed, stopping where torch does or at its end."""

    early = True

    def attention(self, q, k, v):
        with torch.utils.checkpoint.set_checkpoint_early_stop(self.early):
            return checkpoint(super().attention, q, k, v, use_reentrant=False)


class WholeCore(Core):
    early = False


class Stage(nn.Module):
    """A model on one device: embeddings and their dropout, L blocks on (s, b, h), a last norm, logits."""

    def __init__(self, block, v, s, L, h, a):
        super().__init__()
        self.tokens, self.places = nn.Embedding(v, h), nn.Parameter(torch.zeros(s, 1, h))
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(block(h, a) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(h), nn.Linear(h, v, bias=False)

    def forward(self, ids):
        x = self.drop(self.tokens(ids) + self.places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@cache
def stage():
    return symacct.derive(
        model=lambda v, s, L, h, a: Stage(Block, v, s, L, h, a).to(torch.bfloat16),
        inputs=lambda s, b, v: torch.randint(v, (s, b)),
        loss=lambda output, inputs: F.cross_entropy(output.float().flatten(0, 1), inputs.flatten()),
        dims={"s": 12, "b": 2, "v": 40, "L": 2, "h": 24, "a": 3},
    )


@cache
def layer(block, device="cuda"):
    return symacct.derive(
        model=lambda h, a: block(h, a).to(torch.bfloat16),
        inputs=lambda s, b, h: torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True),
        dims={"s": 12, "b": 2, "h": 24, "a": 3},
        device=device,
    ).formulas


GPT3 = {"s": 2048, "b": 1, "h": 12_288, "a": 96, "L": 96, "v": 51_200}
MT_NLG = {"s": 2048, "b": 1, "h": 20_480, "a": 128, "L": 105, "v": 51_200}
LAYER = "L*(34*s*b*h + 5*a*s**2*b + 16*s*b)"  # equation 1, and 16·sb of norm statistics


def test_a_block_at_the_traced_sizes():
    """34·sbh + 5·as²b = 2,883,584 bytes and 4,096 of statistics; on a CPU 3,147,776."""
    sizes = {"s": 128, "b": 2, "h": 256, "a": 4}
    assert at(layer(Block)["bytes.saved"], **sizes) == 2_887_680 == 2_883_584 + 16 * 128 * 2
    assert at(layer(Block, "cpu")["bytes.saved"], **sizes) == 3_147_776
    whole = stage().formulas["bytes.saved"]
    assert sp.expand(whole - whole.coeff(symbol("L"), 0) - parse(LAYER)) == 0


@pytest.mark.parametrize(("sizes", "published", "exact"), [(GPT3, 70, "70.18"), (MT_NLG, 65, "65.31")])
def test_share_that_recomputing_the_core_does_not_keep(sizes, published, exact):
    """Section 5: 70 % and 65 % of the activations; (5as/h)/(34 + 5as/h)."""
    kept, lean = layer(Block)["bytes.saved"], layer(Core)["bytes.saved"]
    dropped = sp.expand(kept - lean)
    assert dropped == parse("5*a*s**2*b")
    share = at(dropped, **sizes) / at(kept - parse("16*s*b"), **sizes)
    assert f"{float(100 * share):.2f}" == exact and round(100 * share) == published
    assert round(100 * at(dropped, **sizes) / at(kept, **sizes)) == published  # with the statistics too


@pytest.mark.parametrize(
    ("sizes", "printed", "described"), [(GPT3, "2.693", "0.898"), (MT_NLG, "1.636", "0.545")]
)
def test_flops_that_recomputing_the_core_costs(sizes, printed, described):
    """Published 2.7 % and 1.6 %, by equation 8, which adds 12·BLs²h; one more forward of the core is 4·BLs²h.

    torch stops early: the last product of the core is not repeated, 2·BLs²h are left.
    """
    step = stage().formulas["flops.step"]
    assert sp.expand(step - parse("72*b*L*s*h**2 + 12*b*L*s**2*h + 6*b*s*v*h")) == 0  # equation 7
    extra = [
        sp.expand(found["flops.hardware"] - found["flops.step"]) * symbol("L")
        for found in map(layer, (WholeCore, Core))
    ]
    assert extra == [parse("4*b*L*s**2*h"), parse("2*b*L*s**2*h")]
    assert f"{float(100 * at(parse('12*b*L*s**2*h'), **sizes) / at(step, **sizes)):.3f}" == printed
    assert f"{float(100 * at(extra[0], **sizes) / at(step, **sizes)):.3f}" == described


def test_what_the_first_and_last_layers_keep_beside():
    """Section 4.3, p = 1: a mask sbh, inputs of the last norm and of the logits 4·sbh, float32 logits 4·sbv.

    0.568 % of the 22B model's blocks, where the paper says below 0.01 %.
    """
    rest = sp.expand(stage().formulas["bytes.saved"] - parse(LAYER))
    listed = parse("5*s*b*h + 4*s*b*v")
    assert sp.expand(rest - listed) == parse("16*s*b + 4")  # ids of 8 bytes, statistics, the sum of weights
    sizes = {"s": 2048, "b": 4, "h": 6144, "a": 64, "L": 48, "v": 51_200}
    assert (
        f"{float(100 * at(listed, **sizes) / at(parse('L*(34*s*b*h + 5*a*s**2*b)'), **sizes)):.3f}" == "0.568"
    )


# llm.c


class Unfused(nn.Module):
    """The attention of examples/gpt.py as llm.c computes it: scores, softmax, weighted sum."""

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (y.view(B, T, self.h, d // self.h).transpose(1, 2) for y in self.qkv(x).split(d, dim=-1))
        scores = (q @ k.transpose(-1, -2)) * (d // self.h) ** -0.5
        hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, d))


class Trained(nn.Module):
    """examples/gpt.py with that attention, and its loss."""

    def __init__(self, sizes):
        super().__init__()
        self.gpt = load_model_file(EXAMPLES / "gpt.py").model(sizes)
        for block in self.gpt.blocks:
            block.attn.__class__ = Unfused

    def forward(self, ids):
        return F.cross_entropy(self.gpt(ids).flatten(0, 1), ids.flatten(), reduction="none")


def test_llm_cs_activations():
    """train_gpt2.c, B = 4, T = 64: num_parameters 124,439,808, num_activations 73,323,776 in 23 tensors."""
    ledger = symacct.derive(
        model=lambda V, T, L, d, h, f: Trained(locals()),
        inputs=lambda B, T, V: torch.randint(V, (B, T)),
        mode="forward",
        dims={"B": 2, "T": 6, "V": 40, "L": 2, "d": 24, "h": 3, "f": 56},
    )
    made = {
        (module.removeprefix("gpt").lstrip("."), op): found for (module, op), found in outputs(ledger).items()
    }
    norms = [
        n for name in ("blocks.*.ln1", "blocks.*.ln2", "ln_f") for n in made[name, "native_layer_norm"][0]
    ]
    listed = [
        made["", "add"][0][0],  # encoded
        *norms,  # each with its mean and its reciprocal deviation
        *(
            made[f"blocks.*.{name}", "addmm"][0][0]
            for name in ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")
        ),
        *(part[0] for part in made["blocks.*.attn", "bmm"]),  # preatt, atty
        made["blocks.*.attn", "_softmax"][0][0],
        *(part[0] for part in made["blocks.*", "add"]),  # residual2, residual3
        made["blocks.*.mlp", "gelu"][0][0],
        made["head", "mm"][0][0],
        made["", "_log_softmax"][0][0],  # probs
        made["", "nll_loss_forward"][0][0],  # losses
    ]
    assert len(listed) == 23
    sizes = {"B": 4, "T": 64, "V": 50_257, "L": 12, "d": 768, "h": 12, "f": 3072}
    assert at(sp.Add(*listed), **sizes) == 73_323_776
    table = {"T": 1024}  # llm.c's positions are 1,024 whatever the T of a batch is
    assert at(ledger.formulas["params.total"], **sizes | table) == 124_439_808
