"""Random models: a plan is data, drawn by hypothesis; `module(plan, sizes)` builds it at numbers or symbols.

A sequence is (B, T, width), an image (B, width, H, W). Stages are drawn with the kind of value that reaches them, so that
every plan runs wherever the channels are multiples of 4 and an image is at least 12 high and wide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from small_models import SPELLINGS, Attention, Call
from torch import nn

EXAMPLES = {"B": 3, "T": 5, "V": 11, "L": 2, "d": 16, "f": 24, "h": 2, "c": 8, "H": 14, "W": 18}


@dataclass(frozen=True)
class Width:
    """`factor · size`, the size named or 1."""

    factor: int
    name: str = ""

    def at(self, sizes: Any) -> Any:
        return self.factor * sizes[self.name] if self.name else self.factor


@dataclass(frozen=True)
class Stage:
    """One step of a plan: its kind, the widths around it, further options and inner stages."""

    kind: str
    width: Width
    to: Width
    options: dict[str, Any] = field(default_factory=dict)
    inner: tuple[Stage, ...] = ()
    frozen: bool = False


@dataclass(frozen=True)
class Plan:
    """A model: what comes in ("tokens", "vectors" or "image"), and the stages it goes through."""

    start: str
    width: Width
    stages: tuple[Stage, ...]

    @property
    def names(self) -> list[str]:
        """The sizes that the model and its inputs speak of."""
        used = {"tokens": {"B", "T", "V"}, "vectors": {"B", "T"}, "image": {"B", "H", "W"}}[self.start]
        used = used | {self.width.name} | _names(self.stages)
        return [name for name in EXAMPLES if name in used]


def _names(stages):
    found = set()
    for stage in stages:
        found |= {stage.width.name, stage.to.name, stage.options.get("heads", "")} | _names(stage.inner)
        found |= {"L"} if stage.kind == "repeat" else set()
    return found


# Building


def module(plan: Plan, sizes: Any) -> nn.Module:
    stages = [build(stage, sizes) for stage in plan.stages]
    if plan.start == "tokens":
        stages.insert(0, nn.Embedding(sizes["V"], plan.width.at(sizes)))
    return nn.Sequential(*stages)


def inputs(plan: Plan, sizes: Any, grad: bool = False) -> torch.Tensor:
    if plan.start == "tokens":
        return torch.randint(sizes["V"], (sizes["B"], sizes["T"]))
    if plan.start == "vectors":
        shape = (sizes["B"], sizes["T"], plan.width.at(sizes))
    else:
        shape = (sizes["B"], plan.width.at(sizes), sizes["H"], sizes["W"])
    return torch.randn(*shape).requires_grad_(grad)


def build(stage: Stage, sizes: Any) -> nn.Module:
    made = BUILDERS[stage.kind](stage, sizes, stage.width.at(sizes), stage.to.at(sizes), **stage.options)
    return made.requires_grad_(False) if stage.frozen else made


def linear(_, sizes, width, to, bias):
    return nn.Linear(width, to, bias=bias)


def activation(_, sizes, width, to, name):
    return {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "dropout": nn.Dropout}[name]()


def norm(_, sizes, width, to, name):
    return nn.LayerNorm(width) if name == "layer" else nn.RMSNorm(width)


def attention(_, sizes, width, to, heads, spelling):
    return Attention(width, sizes[heads], spelling)


def multihead(_, sizes, width, to, heads):
    inner = nn.MultiheadAttention(width, sizes[heads], batch_first=True)
    return Call(lambda m, x: m.inner(x, x, x, need_weights=False)[0], inner=inner)


def recurrent(_, sizes, width, to, name, layers, two_ways):
    made = {"lstm": nn.LSTM, "gru": nn.GRU}[name]
    inner = made(width, to if not two_ways else to // 2, layers, batch_first=True, bidirectional=two_ways)
    return Call(lambda m, x: m.inner(x)[0], inner=inner)


def over_time(_, sizes, width, to, **options):
    inner = nn.Conv1d(width, to, **_grouped(options, width))
    return Call(lambda m, x: m.inner(x.transpose(1, 2)).transpose(1, 2), inner=inner)


def convolution(_, sizes, width, to, transposed, **options):
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    return kind(width, to, **_grouped(options, width))


def _grouped(options, width):
    """Depthwise where the option says 0 groups."""
    return options | {"groups": options["groups"] or width}


def image_norm(_, sizes, width, to, name):
    return nn.BatchNorm2d(width) if name == "batch" else nn.GroupNorm(2, width)


def pool(_, sizes, width, to, name):
    return {"max": nn.MaxPool2d(2), "average": nn.AvgPool2d(2, stride=1), "up": nn.Upsample(scale_factor=2)}[name]


def to_sequence(*_):
    return Call(lambda m, x: x.flatten(2).transpose(1, 2))


def regrouped(_, sizes, width, to, heads):
    """Width split into heads, moved before time and back."""

    def f(m, x):
        b, t, w = x.shape
        y = x.view(b, t, m.h, w // m.h).transpose(1, 2).contiguous()
        return y.transpose(1, 2).reshape(b, t, w)

    return Call(f, h=sizes[heads])


def flat(stage, sizes, *_):
    """The inner stages on (B·T, width)."""
    inner = _sequence(stage.inner, sizes)
    return Call(lambda m, x: m.inner(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1), inner=inner)


def doubled(*_):
    return Call(lambda m, x: torch.cat([x, F.relu(x)], dim=-1))


def residual(stage, sizes, *_):
    return Call(lambda m, x: x + m.inner(x), inner=_sequence(stage.inner, sizes))


def shared(stage, sizes, *_):
    return Call(lambda m, x: m.inner(m.inner(x)), inner=_sequence(stage.inner, sizes))


def repeat(stage, sizes, *_, same):
    if same:
        inner = _sequence(stage.inner, sizes)
        return nn.Sequential(*(inner for _ in range(sizes["L"])))
    return nn.Sequential(*(_sequence(stage.inner, sizes) for _ in range(sizes["L"])))


def _sequence(stages, sizes):
    return nn.Sequential(*(build(stage, sizes) for stage in stages))


BUILDERS = {
    f.__name__: f
    for f in (
        linear, activation, norm, attention, multihead, recurrent, over_time, convolution, image_norm, pool,
        to_sequence, regrouped, flat, doubled, residual, shared, repeat,
    )
}  # fmt: skip


# Drawing

flags = st.booleans()


def some(*values):
    return st.sampled_from(values)


@st.composite
def plans(draw):
    """Three to five stages, at most one of them recurrent and one repeated."""
    start = draw(some("tokens", "vectors", "image"))
    width = draw(some(Width(1, "c"), Width(8)) if start == "image" else some(Width(1, "d"), Width(16)))
    budget = {"recurrent": 1, "repeat": 1, "shrink": 1}
    image, now, stages = start == "image", width, []
    for _ in range(draw(st.integers(3, 5))):
        if image and draw(st.integers(0, 4)) == 4:
            stages.append(Stage("to_sequence", now, now))
            image, budget["recurrent"] = False, 0
            continue
        stage = draw(image_stage(now, budget) if image else sequence_stage(now, budget))
        stages.append(stage)
        now = stage.to
    return Plan(start, width, tuple(stages))


def next_width(now: Width):
    """The same width, a named one, or a number; never beyond small ones."""
    return some(now, Width(1, "d"), Width(1, "f"), Width(2, "d"), Width(12))


@st.composite
def sequence_stage(draw, now, budget, keep=False):
    kinds = ["linear", "linear", "activation", "norm", "attention", "attention", "multihead", "over_time"]
    kinds += ["regrouped", "flat", "residual", "shared"]
    kinds += ["recurrent"] * budget["recurrent"] + ["repeat"] * (2 * budget["repeat"])
    kinds += [] if keep else ["doubled"] * (now.factor <= 2 or not now.name)
    kind = draw(some(*kinds))
    to, frozen = now, draw(st.integers(0, 5)) == 5
    if kind == "linear":
        to = now if keep else draw(next_width(now))
        return Stage(kind, now, to, {"bias": draw(flags)}, frozen=frozen)
    if kind == "activation":
        return Stage(kind, now, to, {"name": draw(some("relu", "gelu", "silu", "tanh", "dropout"))})
    if kind == "norm":
        return Stage(kind, now, to, {"name": draw(some("layer", "rms"))}, frozen=frozen)
    if kind == "attention":
        return Stage(kind, now, to, {"heads": "h", "spelling": draw(some(*SPELLINGS))}, frozen=frozen)
    if kind in ("multihead", "regrouped"):
        return Stage(kind, now, to, {"heads": "h"})
    if kind == "over_time":
        options = {"kernel_size": 3, "padding": draw(some("same", 1)), "groups": draw(some(1, 2, 0)), "bias": draw(flags)}
        return Stage(kind, now, to, options, frozen=frozen)
    if kind == "recurrent":
        budget["recurrent"] = 0
        options = {"name": draw(some("lstm", "gru")), "layers": draw(some(1, 1, 2)), "two_ways": draw(flags)}
        return Stage(kind, now, to, options)
    if kind == "doubled":
        return Stage(kind, now, Width(2 * now.factor, now.name))
    return draw(nested(kind, now, budget, sequence_stage))


@st.composite
def nested(draw, kind, now, budget, stage):
    """A stage around one or two that keep the width."""
    if kind == "repeat":
        budget["repeat"] = 0
    inside = {**budget, "recurrent": 0, "repeat": 0, "shrink": 0}
    inner = tuple(draw(st.lists(stage(now, inside, keep=True), min_size=1, max_size=2)))
    if kind == "flat":
        inner = tuple(s for s in inner if s.kind in ("linear", "norm", "activation")) or (
            Stage("linear", now, now, {"bias": True}),
        )
    return Stage(kind, now, now, {"same": draw(st.integers(0, 3)) == 3} if kind == "repeat" else {}, inner)


@st.composite
def image_stage(draw, now, budget, keep=False):
    kinds = ["convolution"] * 4 + ["image_norm", "activation", "residual", "shared"]
    kinds += ["repeat"] * (2 * budget["repeat"]) + ([] if keep else ["pool"])
    kind = draw(some(*kinds))
    if kind == "convolution":
        to = now if keep else draw(some(now, Width(1, "c"), Width(2, "c"), Width(4)))
        return Stage(kind, now, to, draw(convolution_options(now, to, budget, keep)), frozen=draw(st.integers(0, 5)) == 5)
    if kind == "image_norm":
        return Stage(kind, now, now, {"name": draw(some("batch", "group"))})
    if kind == "activation":
        return Stage(kind, now, now, {"name": draw(some("relu", "silu"))})
    if kind == "pool":
        name = draw(some("average", "up", *["max"] * budget["shrink"]))
        budget["shrink"] -= name == "max"
        return Stage(kind, now, now, {"name": name})
    return draw(nested(kind, now, budget, image_stage))


@st.composite
def convolution_options(draw, now, to, budget, keep):
    """Any kernel, stride, padding, dilation, groups and direction; those that keep H and W where these must stay."""
    groups = draw(some(1, 1, 2, *([0] if to == now else [])))
    shared = {"groups": groups, "bias": draw(flags), "transposed": draw(flags)}
    if keep:
        return shared | draw(some({"kernel_size": 1}, {"kernel_size": 3, "padding": 1}, {"kernel_size": 3, "padding": 2, "dilation": 2}))
    stride = draw(some(1, *[2] * (2 * budget["shrink"])))
    if stride == 2:
        budget["shrink"] = 0
    kernel = draw(some(1, 2, 3, (3, 1)))
    return shared | {"kernel_size": kernel, "stride": stride, "padding": draw(some(0, 1)) * (kernel == 3), "dilation": draw(some(1, 2))}
