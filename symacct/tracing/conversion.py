"""`module.to(dtype)` on fake parameters: torch would swap tensors in place, which a fake one does not allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from symacct.tracing.private import FakeTensor


def converting(original: Callable[..., Any]) -> Callable[..., Any]:
    """An `nn.Module._apply` that puts new parameters in the place of fake ones, tied ones staying tied."""
    replaced: dict[int, tuple[Any, nn.Parameter]] = {}

    def new(function: Callable[[Any], Any], parameter: nn.Parameter) -> nn.Parameter:
        known = replaced.get(id(parameter))
        if known is not None and known[0] is parameter:
            return known[1]
        with torch.no_grad():
            made = nn.Parameter(function(parameter), parameter.requires_grad)
        replaced[id(parameter)] = (parameter, made)
        return made

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        if not any(isinstance(parameter, FakeTensor) for parameter in self.parameters()):
            return original(self, fn, recurse)
        if recurse:
            for child in self.children():
                child._apply(fn)
        for table, convert in ((self._parameters, lambda p: new(fn, p)), (self._buffers, fn)):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = convert(tensor)
        return self

    return apply
