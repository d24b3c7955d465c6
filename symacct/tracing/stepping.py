"""An optimizer's real step on tensors without data: numbers that it reads from them are known, or taken as one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from symacct.errors import ModelFileError
from symacct.tracing import private
from symacct.tracing.private import FakeTensor


class Unknown(float):
    """A number read from data. What is computed from it stays unknown, so that no size is compared with it."""

    def _same(self, *_: Any) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _same  # type: ignore[assignment]
    __neg__ = __abs__ = _same  # type: ignore[assignment]


ONE = Unknown(1.0)


def number_of(value: Any) -> Any:
    """An optimizer's step count, learning rate or decay as a number, without an op that reads it.

    A count is that of the first step, so that a graph does not tell how many came before. Costs depend
    on none, but for RAdam's rectification, which begins at about the sixth step and is left out.
    """
    if not isinstance(value, FakeTensor):
        return value.item() if isinstance(value, torch.Tensor) else value
    constant = private.constant_of(value)
    return ONE if constant is None else min(private.plain_item(constant), 1.0)


def dense(name: str, model: torch.nn.Module) -> None:
    """Raises ModelFileError when a module's gradient is sparse: it has a row for each lookup, not for each of the table."""
    for path, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ModelFileError(
                f"{name}: the gradient of {path or 'the model'} is sparse (sparse=True), and how many different rows it has "
                "depends on the data; derive with sparse=False"
            )


def remarks(optimizer: Any, frozen: bool) -> list[str]:
    """What a reader must know of an optimizer whose steps are not all alike, or whose state does not wait for a step."""
    inner = getattr(optimizer, "inner", optimizer)
    found = []
    if isinstance(inner, torch.optim.RAdam):
        found.append("the optimizer's step is the second: RAdam divides by the root of the second moment only from about its sixth on")
    if frozen and inner.state:
        found.append(
            f"the optimizer, {type(inner).__name__}, makes its state as it is built, and is given the trained parameters alone: "
            "model.parameters() would make it state for the frozen ones too"
        )
    return found


@contextlib.contextmanager
def stepping(branch: Callable[[str], None]) -> Iterator[None]:
    """For the length of one step, `.item()` of a tensor whose data is unknown is one, and `branch` is told.

    ASGD and Adafactor read so. One is what ASGD's average has until its `t0`, and what a norm divided by its root
    mean square has in Adafactor; the ops are the same for any value but in ASGD's averaging.
    """
    plain = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        if not isinstance(self, FakeTensor):
            return plain(self)
        known = number_of(self)
        if known is ONE:
            branch("the optimizer reads a number from data; it was taken as 1")
        return known

    own = vars(torch.Tensor).get("item")
    torch.Tensor.item = item  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        if own is None:
            del torch.Tensor.item
        else:
            torch.Tensor.item = own  # type: ignore[method-assign]


def checked(name: str, optimizer: Any) -> Any:
    """The optimizer. Raises ModelFileError when its step calls the model itself, as LBFGS's does, or takes sparse gradients."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ModelFileError(
            f"{name}: SparseAdam steps the rows that a batch looked up, and how many these are depends on the data; "
            "derive with Adam, which steps every row"
        )
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Rprop) else ()
    scalars = [p for group in groups for p in group["params"] if not p.dim()]
    if scalars:
        raise ModelFileError(
            f"{name}: Rprop picks elements of each gradient by their signs, which are data, and has no symbolic step for a "
            f"parameter without dimensions, of which there {'is one' if len(scalars) == 1 else f'are {len(scalars)}'}; "
            "give it a dimension, as in torch.ones(1), or derive with another optimizer"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizer).__name__
        raise ModelFileError(
            f"{name}: the step of {kind} runs the model again, as often as the data asks for, so no formula of sizes gives its cost; "
            "derive with an optimizer whose step takes no closure"
        )
    return optimizer
