"""Blocks that differ from GPT's: PaLM's, Chinchilla's, BERT's, RWKV's; attention alone; decoding."""

from __future__ import annotations

from functools import cache, partial

import published_language_models as gpt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import symacct
from symacct.account import Ledger
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.tracing.preparation import prepared


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class Parallel(nn.Module):
    """PaLM's block: attention and a gated MLP side by side, one key/value head, no biases."""

    def __init__(self, d, h, Q, f, norm):
        super().__init__()
        self.h, self.Q = h, Q
        self.norm, self.q, self.kv, self.o = norm(d), linear(d, h * Q), linear(d, 2 * Q), linear(h * Q, d)
        self.gate, self.up, self.down = linear(d, f), linear(d, f), linear(f, d)

    def forward(self, x):
        B, T, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(B, T, self.h, self.Q).transpose(1, 2)
        k, v = (part.unsqueeze(1) for part in self.kv(y).split(self.Q, dim=-1))
        weights = (q @ k.transpose(-1, -2) * self.Q**-0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(B, T, self.h * self.Q)
        return x + self.o(mixed) + self.down(F.silu(self.gate(y)) * self.up(y))


class Stack(nn.Module):
    """Token embedding, blocks, norm, and a head that shares the embedding."""

    def __init__(self, V, d, blocks, norm):
        super().__init__()
        self.wte, self.ln_f, self.head = nn.Embedding(V, d), norm(d), linear(d, V)
        self.blocks = nn.ModuleList(blocks)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


@cache
def palm() -> Ledger:
    norm = gpt.norm(bias=False)
    return symacct.derive(
        model=lambda V, L, d, h, Q, f: Stack(V, d, [Parallel(d, h, Q, f, norm) for _ in range(L)], norm),
        inputs=gpt.tokens,
        loss=gpt.cross_entropy,
        optimizer=gpt.stateless,
        dims={"B": 2, "T": 16, "V": 96, "L": 2, "d": 40, "h": 4, "Q": 12, "f": 80},
    )  # fmt: skip


class RelativeScores(nn.Module):
    """Scores of content and of distance, each with a bias; the shift that aligns distances is left out."""

    def __init__(self, h, k):
        super().__init__()
        self.content, self.distance = nn.Parameter(torch.zeros(h, 1, k)), nn.Parameter(torch.zeros(h, 1, k))
        self.near, self.far = gpt.Scores(), gpt.Scores()

    def forward(self, q, k, r):
        return self.near(q + self.content, k) + self.far(q + self.distance, r)


class RelativeBlock(nn.Module):
    """Transformer-XL's attention with h heads of width k, and a GELU MLP, biased; the relative key is not."""

    def __init__(self, d, h, k, f):
        super().__init__()
        self.h, self.k = h, k
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.relative, self.proj = nn.Linear(d, 3 * h * k), linear(d, h * k), nn.Linear(h * k, d)
        self.scores, self.mix, self.mlp = RelativeScores(h, k), gpt.Mix(), gpt.Feed(d, f, True, nn.GELU)

    def forward(self, x, places):
        B, T, _ = x.shape
        heads = lambda y: y.view(-1, T, self.h, self.k).transpose(1, 2)  # noqa: E731
        q, k, v = (heads(y) for y in self.qkv(self.ln1(x)).split(self.h * self.k, dim=-1))
        weights = self.scores(q, k, heads(self.relative(places))).softmax(-1)
        x = x + self.proj(self.mix(weights, v).transpose(1, 2).reshape(B, T, self.h * self.k))
        return x + self.mlp(self.ln2(x))


class Chinchilla(nn.Module):
    def __init__(self, V, L, d, h, k, f):
        super().__init__()
        self.wte, self.ln_f, self.head = nn.Embedding(V, d), nn.LayerNorm(d), linear(d, V)
        self.head.weight = self.wte.weight
        self.blocks = nn.ModuleList(RelativeBlock(d, h, k, f) for _ in range(L))

    def forward(self, idx, places):
        x = self.wte(idx)
        for block in self.blocks:
            x = block(x, places)
        return self.head(self.ln_f(x))


@cache
def chinchilla() -> Ledger:
    return symacct.derive(
        model=Chinchilla,
        inputs=lambda B, T, V, d: (torch.randint(V, (B, T)), torch.randn(T, d)),
        mode="forward",
        dims={"B": 2, "T": 16, "V": 96, "L": 2, "d": 40, "h": 4, "k": 12, "f": 80},
    )


@cache
def korthikanti_block(again: bool) -> Ledger:
    """One GPT block in half precision, (b, s, h) with a heads; `again`: its attention core is recomputed."""
    keep = partial(checkpoint, use_reentrant=False) if again else lambda part, *given: part(*given)
    return symacct.derive(
        model=lambda h, a: gpt.Block(
            h,
            gpt.Attention(h, a, None, True, gpt.Core(False, 0.1), keep),
            gpt.Feed(h, 4 * h, True, nn.GELU),
            nn.LayerNorm,
            0.1,
        ),
        inputs=lambda b, s, h: torch.randn(b, s, h, requires_grad=True),
        optimizer=gpt.stateless,
        dims={"b": 2, "s": 16, "h": 32, "a": 4},
        dtype="bf16",
    )  # fmt: skip


class BertBlock(nn.Module):
    """A post-norm block; the two products of attention one by one."""

    def __init__(self, d, h, f, dropout, d_h=None):
        super().__init__()
        self.attn = gpt.Attention(
            d, h, d_h, True, gpt.Core(False, dropout), lambda part, *given: part(*given)
        )
        self.mlp = gpt.Feed(d, f, True, nn.GELU)
        self.norm1, self.norm2, self.drop1, self.drop2 = (
            nn.LayerNorm(d),
            nn.LayerNorm(d),
            nn.Dropout(dropout),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = self.norm1(x + self.drop1(self.attn(x)))
        return self.norm2(x + self.drop2(self.mlp(x)))


@cache
def wide_block() -> Ledger:
    """One block whose heads are together wider than the model, as T5-11B's are."""
    return symacct.derive(
        model=lambda d, h, f, d_h: BertBlock(d, h, f, 0.1, d_h),
        inputs=lambda B, T, d: torch.randn(B, T, d),
        optimizer=gpt.stateless,
        dims={"B": 2, "T": 16, "d": 32, "h": 4, "d_h": 24, "f": 80},
    )


class MaskedBert(nn.Module):
    """BERT with its masked head: m tokens a sequence are predicted by a layer, a norm and the tied table."""

    def __init__(self, V, T, L, d, h, f):
        super().__init__()
        self.word, self.place, self.kind = nn.Embedding(V, d), nn.Embedding(T, d), nn.Embedding(2, d)
        self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(BertBlock(d, h, f, 0.1) for _ in range(L))
        self.hidden, self.act, self.hidden_norm, self.head = (
            nn.Linear(d, d),
            nn.GELU(),
            nn.LayerNorm(d),
            linear(d, V),
        )
        self.head.weight = self.word.weight

    def forward(self, idx, kinds, places, chosen):
        x = self.drop(self.norm(self.word(idx) + self.kind(kinds) + self.place(places)))
        for block in self.blocks:
            x = block(x)
        x = x.flatten(0, 1).index_select(0, chosen.flatten())
        return self.head(self.hidden_norm(self.act(self.hidden(x))))


@cache
def masked_bert() -> Ledger:
    return symacct.derive(
        model=MaskedBert,
        inputs=lambda B, T, V, m: tuple(
            torch.randint(n, s) for n, s in ((V, (B, T)), (2, (B, T)), (T, (B, T)), (T, (B, m)))
        ),
        loss=lambda output, inputs: F.cross_entropy(output, inputs[3].flatten()),
        optimizer=gpt.stateless,
        dims={"B": 2, "T": 16, "V": 96, "L": 2, "d": 32, "h": 4, "f": 80, "m": 3},
    )


@cache
def attention(causal: bool) -> Ledger:
    """Fused attention of given queries, keys and values, in half precision as the flash kernel takes them."""
    return symacct.derive(
        model=lambda: Alone(causal),
        inputs=lambda b, h, s, d: tuple(
            torch.randn(b, h, s, d, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        ),
        dims={"b": 2, "h": 4, "s": 16, "d": 8},
    )


class Alone(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class CachedGpt(nn.Module):
    """A GPT without biases that keeps keys and values of the tokens so far, for kipply's arithmetic."""

    def __init__(self, V, L, d, h):
        super().__init__()
        self.h = h
        self.wte, self.head = nn.Embedding(V, d), linear(d, V)
        self.head.weight = self.wte.weight
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: linear(d, d) for name in "qkvo"} | {"up": linear(d, 4 * d), "down": linear(4 * d, d)}
            )
            for _ in range(L)
        )

    def forward(self, idx, cache=None):
        x = self.wte(idx)
        B, T, d = x.shape
        for layer, kept in zip(self.layers, cache or [{} for _ in self.layers], strict=True):
            q, k, v = (layer[name](x).view(B, T, self.h, d // self.h).transpose(1, 2) for name in "qkv")
            for name, new in (("k", k), ("v", v)):
                kept[name] = torch.cat((kept[name], new), dim=-2) if name in kept else new
            x = x + layer["o"](
                F.scaled_dot_product_attention(q, kept["k"], kept["v"]).transpose(1, 2).reshape(B, T, d)
            )
            x = x + layer["down"](F.gelu(layer["up"](x)))
        return self.head(x)


@cache
def decoding(dtype: str = "bf16") -> Ledger:
    source = model_source(
        "a GPT that decodes",
        dims=gpt.DIMS,
        model=CachedGpt,
        inputs=gpt.tokens,
        cache=lambda L: [{} for _ in range(L)],
    )
    return Ledger(Builder(prepared(source, dtype, None), "decode", "cuda").graph("a GPT that decodes"))


@cache
def korthikanti_model() -> Ledger:
    """A whole GPT in half precision with dropout, its logits' loss in float32."""
    return symacct.derive(
        model=lambda V, T, L, d, h: gpt.Decoder(V, T, L, d, h, dropout=0.1),
        inputs=gpt.tokens,
        loss=gpt.cross_entropy,
        optimizer=gpt.stateless,
        dims=gpt.DIMS,
        dtype="bf16",
    )


class TimeMix(nn.Module):
    """RWKV-4's mixing over time: a decayed mean of the values, here by prefix sums: no products."""

    def __init__(self, d):
        super().__init__()
        self.decay, self.first = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.mix = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in "kvr")
        self.key, self.value, self.receptance, self.output = (linear(d, d) for _ in range(4))

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        k, v, r = (x * part + before * (1 - part) for part in self.mix)
        k, v, r = self.key(k).exp(), self.value(v), self.receptance(r).sigmoid()
        weights = k * self.decay.exp()
        past, norm = (weights * v).cumsum(1), weights.cumsum(1)
        return self.output(r * (past + self.first.exp() * k * v) / (norm + self.first.exp() * k))


class ChannelMix(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mix = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in "kr")
        self.key, self.receptance, self.value = linear(d, 4 * d), linear(d, d), linear(4 * d, d)

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        k, r = (x * part + before * (1 - part) for part in self.mix)
        return self.receptance(r).sigmoid() * self.value(self.key(k).relu().square())


class Rwkv(nn.Module):
    """RWKV-4 with an untied head; the first block has a norm more."""

    def __init__(self, V, L, d):
        super().__init__()
        self.wte, self.ln_in, self.ln_f, self.head = (
            nn.Embedding(V, d),
            nn.LayerNorm(d),
            nn.LayerNorm(d),
            linear(d, V),
        )
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"ln1": nn.LayerNorm(d), "time": TimeMix(d), "ln2": nn.LayerNorm(d), "channel": ChannelMix(d)}
            )
            for _ in range(L)
        )

    def forward(self, idx):
        x = self.ln_in(self.wte(idx))
        for block in self.blocks:
            x = x + block["time"](block["ln1"](x))
            x = x + block["channel"](block["ln2"](x))
        return self.head(self.ln_f(x))


@cache
def rwkv() -> Ledger:
    dims = {"B": 2, "T": 16, "V": 96, "L": 2, "d": 32}
    return symacct.derive(model=Rwkv, inputs=gpt.tokens, dims=dims, mode="forward")
