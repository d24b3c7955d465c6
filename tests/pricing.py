"""Prices what torch runs, op by op, for tests that compare rules with torch."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from symacct.graph import Tensor
from symacct.rules import price


def described(value):
    """A call's argument as the rules see it."""
    if isinstance(value, torch.Tensor):
        return Tensor(
            f"v{id(value)}", tuple(value.shape), str(value.dtype).removeprefix("torch."), f"s{id(value)}"
        )
    if isinstance(value, list | tuple):
        return tuple(described(entry) for entry in value)
    return value


class Pricing(TorchDispatchMode):
    """Prices every op that runs, real or of any device, and keeps the costs by op."""

    def __init__(self):
        super().__init__()
        self.costs = []
        self.alive = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        values = {name: described(value) for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items()}
        if func.namespace != "aten":
            return out
        self.alive.append((args, kwargs, out))
        op = func._schema.name.replace("::", ".")
        self.costs.append((op, price(op, values, described(out))))
        return out

    def total(self, kind):
        return sum(getattr(cost, kind) for _, cost in self.costs)


def priced(run):
    with Pricing() as mode:
        run()
    return mode
