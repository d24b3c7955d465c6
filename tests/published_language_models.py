"""Language models as papers describe them, small, every size a symbol; each is traced once a run."""

from __future__ import annotations

from functools import cache, partial

import sympy as sp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger, saved_bytes
from symacct.claims.names import Names, mapping
from symacct.claims.reading import read
from symacct.conventions import convention
from symacct.graph import total_over
from symacct.symbols import symbol

DIMS = {"B": 2, "T": 16, "V": 96, "L": 2, "d": 32, "h": 4}
WIDE = DIMS | {"d_h": 12, "f": 80}


class Scores(nn.Module):
    """q·kᵀ, scaled."""

    def forward(self, q, k):
        return (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5


class Mix(nn.Module):
    """The weights' mean of the values."""

    def forward(self, weights, v):
        return weights @ v


class Core(nn.Module):
    """Attention without projections: fused and causal, or its two products one by one."""

    def __init__(self, fused, dropout):
        super().__init__()
        self.fused = fused
        self.scores, self.mix, self.drop = Scores(), Mix(), nn.Dropout(dropout)

    def forward(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(self.drop(self.scores(q, k).softmax(-1)), v)


class Attention(nn.Module):
    """Heads of width d_h, or d/h: query, key and value in one product, and the output's projection."""

    def __init__(self, d, h, d_h, bias, core, again):
        super().__init__()
        self.h, self.again = h, again
        self.width = d if d_h is None else h * d_h
        self.qkv = nn.Linear(d, 3 * self.width, bias=bias)
        self.core = core
        self.proj = nn.Linear(self.width, d, bias=bias)

    def forward(self, x):
        B, T, _ = x.shape
        parts = self.qkv(x).split(self.width, dim=-1)
        q, k, v = (y.view(B, T, self.h, self.width // self.h).transpose(1, 2) for y in parts)
        return self.proj(self.again(self.core, q, k, v).transpose(1, 2).reshape(B, T, self.width))


class Feed(nn.Module):
    def __init__(self, d, f, bias, act):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(d, f, bias=bias), act(), nn.Linear(f, d, bias=bias)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, d, attn, feed, norm, dropout):
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = norm(d), attn, norm(d), feed
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.ln1(x)))
        return x + self.drop2(self.mlp(self.ln2(x)))


class Decoder(nn.Module):
    """A GPT. What is `kept` for backward: "all", "block" inputs alone, or all but the attention "core"."""

    def __init__(
        self, V, T, L, d, h, f=None, d_h=None, *, bias=True, norm=nn.LayerNorm, act=nn.GELU, dropout=0.0,
        fused=False, kept="all", early_stop=True, positions=True, tied=True,
    ):  # fmt: skip
        super().__init__()
        keep = partial(checkpoint, use_reentrant=False, early_stop=early_stop)
        self.kept, self.keep = kept, keep
        plain = lambda part, *given: part(*given)  # noqa: E731
        f = 4 * d if f is None else f
        self.blocks = nn.ModuleList(
            Block(
                d,
                Attention(d, h, d_h, bias, Core(fused, dropout), keep if kept == "core" else plain),
                Feed(d, f, bias, act),
                norm,
                dropout,
            )
            for _ in range(L)
        )
        self.wte = nn.Embedding(V, d)
        self.wpe = nn.Embedding(T, d) if positions else None
        self.drop = nn.Dropout(dropout)
        self.ln_f = norm(d)
        self.head = nn.Linear(d, V, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        x = self.drop(x)
        for block in self.blocks:
            x = self.keep(block, x) if self.kept == "block" else block(x)
        return self.head(self.ln_f(x))


def cross_entropy(output, inputs):
    return F.cross_entropy(output.flatten(0, 1).float(), inputs.flatten())


def stateless(params):
    """The cheapest optimizer to trace, where nothing is asked of it."""
    return torch.optim.SGD(params, lr=0.1)


def tokens(B, T, V):
    return torch.randint(V, (B, T))


@cache
def norm(**options):
    """A LayerNorm with these options; the same for the same."""
    return lambda d: nn.LayerNorm(d, **options)


BARE = norm(elementwise_affine=False)


@cache
def decoder(**options) -> Ledger:
    """A GPT with these options; heads have a width of their own where `wide`."""
    wide, mode = options.pop("wide", False), options.pop("mode", "train")
    make = partial(Decoder, **options)
    return symacct.derive(
        model=(lambda V, T, L, d, h, f, d_h: make(V, T, L, d, h, f, d_h))
        if wide
        else (lambda V, T, L, d, h: make(V, T, L, d, h)),
        inputs=tokens,
        loss=cross_entropy,
        optimizer=stateless,
        dims=WIDE if wide else DIMS,
        mode=mode,
    )


def published(ledger: Ledger, text: str, **mapped: str) -> sp.Expr:
    """A formula as printed, in the model's sizes."""
    told = mapping([f"{name}={meant}" for name, meant in mapped.items()], ledger.graph)
    found = read(f"params.total = {text}", Names(ledger.graph, list(ledger.formulas), told)).right
    return sp.expand(found)


def same(one: sp.Expr, other: sp.Expr) -> bool:
    return sp.expand(one - other) == 0


def forward_of(ledger: Ledger, *modules: str) -> sp.Expr:
    """What modules cost in the forward pass, the modules in them too."""
    found = ledger.by("module", phases=("forward", "loss"))
    return sp.Add(*(v for (name,), v in found.items() if name.startswith(modules)))


def parameters_of(ledger: Ledger, *modules: str) -> sp.Expr:
    """The parameters of modules."""
    placed = [p for p in ledger.graph.sources("parameter") if p.node.module.startswith(modules)]
    return sp.Add(*(total_over(out.numel, p.loops) for p in placed for out in p.node.outputs))


def kept_of(ledger: Ledger) -> dict[str, sp.Expr]:
    """Bytes kept for backward, by the module that made them; the input's under ""."""
    made = {out.value: p.node for p in ledger.graph.placed() for out in p.node.outputs}
    found: dict[str, sp.Expr] = {}
    for name, size in saved_bytes(ledger.graph).items():
        module = made[name].module
        found[module] = sp.expand(found.get(module, 0) + size)
    return found


def number(expr: sp.Expr, **sizes: int) -> int:
    """A formula at these sizes, exact. Fails where a size is left out or it is no integer."""
    value = expr.xreplace({symbol(name): sp.Integer(size) for name, size in sizes.items()})
    assert value.is_Integer, value
    return int(value)


def under(ledger: Ledger, name: str, **switches: str) -> Ledger:
    return ledger.under(convention(name, **switches))
