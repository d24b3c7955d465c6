"""Whole numbers that may be symbols: stand-ins for `numbers.Integral`, and for `int` in the model's own code."""

from __future__ import annotations

import numbers
import sys
from typing import Any

import torch


class _IntegralMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (_INTEGRAL, torch.SymInt))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _INTEGRAL)


_INTEGRAL = numbers.Integral


class Integral(metaclass=_IntegralMeta):
    """`numbers.Integral` that knows symbolic sizes (`nn.LayerNorm` asks)."""


class _WholeMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, int)

    def __eq__(cls, other: Any) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)


class _Whole(int, metaclass=_WholeMeta):
    """`int` in the model's own code: of a symbolic number, `int(d / h)`, it is the symbolic integer."""

    def __new__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
        return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value, *args, **kwargs)


def whole_numbers(names: tuple[str, ...]) -> list[tuple[Any, str, Any]]:
    """`int` for the modules that hold the model's code, where they do not define a name `int` themselves."""
    found = []
    for name, module in list(sys.modules.items()):
        own = name in names or (name.startswith("transformers.models.") and ".modeling_" in name)
        if own and "int" not in vars(module):
            found.append((module, "int", _Whole))
    return found
