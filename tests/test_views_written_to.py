"""Views that are written into while autograd watches: births, deaths and bytes of a real run on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from symacct.account import Ledger
from symacct.tracing.build import Builder
from symacct.tracing.model_file import model_source
from symacct.tracing.run import trace_concrete, trace_real
from symacct.verify import verify
from symacct.verify_memory import live_peak


def through_slice(x):
    y = x[:, 1:]
    y.sigmoid_()
    return x * y.sum()


def through_transpose(x):
    y = x.t()
    y.tanh_()
    return y.exp().t()


def through_select(x):
    y = x[:, 0]
    y.mul_(2)
    return x + y.exp().unsqueeze(1)


def through_a_view_of_a_view(x):
    y = x[:, 1:]
    z = y[:, 1:]
    z.sigmoid_()
    return x.sin() + y.sum() + z.exp().sum()


def twice_and_read_between(x):
    y = x.t()[1:]
    y.mul_(2)
    between = (y * 3).exp().sum()
    y.add_(1)
    return x + y.cos().sum() + between


def through_another_view(x):
    y, z = x[:, 1:], x.view(-1)
    y.sigmoid_()
    return x.sin() + z.exp().sum()


def into_the_base(x):
    windows = x.unfold(0, 2, 1)
    x.mul_(2)
    return x.exp() * (windows * 2).sin().mean()


def a_part_by_another(x):
    left, right = x[:, :2], x[:, 2:]
    left.mul_(right.sum().exp())
    right.add_(left.sum().sin())
    return torch.cat([left.exp(), right.exp()], -1)


def by_items(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, 1:].exp()
    y[0] = x[1]
    return y + y[:, :2].sum()


def as_complex(x):
    z = torch.view_as_complex(x.view(x.shape[0], -1, 2))[:, :1]
    z.mul_(2.0)
    return torch.view_as_real(z).exp().sum() + x.sin()


def recomputed(x, reentrant=False):
    return checkpoint(lambda y: through_transpose(y.sin()), x, use_reentrant=reentrant)


def recomputed_with_reentry(x):
    return recomputed(x, True)


def differentiated_in_forward(x):
    y = x.view(-1)
    y.mul_(2)
    (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    return x + slope.exp()


def not_a_view(x):
    return x.mul_(2).relu_()


def detached(x):
    y = x.detach().clone()[:, 1:]
    y.mul_(2)
    return x * y.sum()


def unwatched(x):
    y = x.t()
    with torch.no_grad():
        y.mul_(2)
    return x.sin() + y.exp().t()


class Layers(nn.Module):
    def __init__(self, L, d, part):
        super().__init__()
        self.layers, self.part = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(L)), part

    def forward(self, x):
        for layer in self.layers:
            x = self.part(layer(x))
        return x


def built(part):
    return model_source(
        part.__name__,
        dims={"B": 9, "L": 2, "d": 4},
        model=lambda L, d: Layers(L, d, part),
        inputs=lambda B, d: torch.randn(B, d),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
        loss=lambda output: output.sum(),
    )


def life(trace):
    """The phase of each op that makes a storage, with its bytes, and what died since the op before it."""
    seen, found, met = set(), [], 0
    for number, record in enumerate(trace.records):
        new = {out.storage for out in record.outputs} - seen
        seen |= new
        if new:
            died = sorted(trace.storages[s] for at, s in trace.deaths if met < at <= number)
            found.append((record.phase, sorted(trace.storages[s] for s in new), died))
            met = number
    return found


WRITTEN = [
    through_slice, through_transpose, through_select, through_a_view_of_a_view, twice_and_read_between,
    through_another_view, into_the_base, a_part_by_another, by_items, as_complex, recomputed,
    recomputed_with_reentry, differentiated_in_forward, not_a_view, detached, unwatched,
]  # fmt: skip


@pytest.mark.parametrize("part", WRITTEN, ids=lambda part: part.__name__)
def test_storages_are_born_and_die_as_in_a_real_run(part):
    sizes = {"B": 9, "L": 2, "d": 4}
    real, traced = trace_real(built(part), "train", sizes), trace_concrete(built(part), "train", "cpu", sizes)
    assert life(traced) == life(real)
    assert sum(traced.storages[s] for s in traced.kept) == sum(real.storages[s] for s in real.kept)


def test_the_peak_of_layers_is_that_of_real_runs():
    source = built(into_the_base)
    ledger = Ledger(Builder(source, "train", "cpu").graph("layers"))
    for depth in (2, 3, 4, 5):
        sizes = {"B": 11, "L": depth, "d": 6}
        assert ledger.at(**sizes)["bytes.peak"] == live_peak(trace_real(source, "train", sizes))


class Sliced(nn.Module):
    """Tokens behind the first are scaled in place, then read turned."""

    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, x):
        y = self.linear(x)
        z = y[:, 1:]
        z.mul_(2)
        z.transpose(1, 2).tanh_()
        return y.sum() + (z * z).sum()


def test_such_a_model_is_verified():
    """At T = 2 a dimension of T - 1 is squeezed: no point at which each op is the graph's."""
    source = model_source(
        "sliced", dims={"B": 2, "T": 6, "d": 8}, model=Sliced, inputs=lambda B, T, d: torch.randn(B, T, d), loss=lambda out: out
    )
    found = verify(source, device="cpu", lifting=False)
    assert found.verified, found.failures
    assert sum(check.quantity == "shapes" for check in found.checks) >= 10
