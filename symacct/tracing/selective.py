"""Recomputing the attention core alone, in unmodified models, by torch's own checkpoint.

A first run of the forward pass, which nothing records, lists its calls of torch functions. A core is the
calls that lie between products of two activations (q·kᵀ) and the product (a·v) that they reach through a
softmax and calls that keep the number of elements, these products included; or one call of fused attention.
In the run that counts, autograd saves under a checkpoint's hooks during these calls and no others, and the
checkpoint recomputes by making these calls again. So all that any other call saves stays saved, whatever is
called in between.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from symacct.errors import ModelFileError
from symacct.tracing import private, recorder
from symacct.tracing.lines import user_line

_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"})
_FUSED = "scaled_dot_product"
_SOFTMAX = "softmax"
_OTHERWISE = "name the modules to recompute by a pattern of their paths instead"


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a torch function: its name, the calls that made its tensors, which of these come from
    parameters alone, and the elements of its largest operand and result."""

    name: str
    sources: tuple[int, ...]
    weights: int
    operands: int
    taken: int
    given: int

    @property
    def product(self) -> bool:
        """Whether it multiplies two activations."""
        return self.name in _PRODUCTS and self.operands - self.weights >= 2

    @property
    def passing(self) -> bool:
        """Whether it keeps the number of elements: a scale, a mask, a softmax, dropout, a view."""
        return self.name not in _PRODUCTS and self.name != "linear" and self.given == self.taken > 0


def _elements(tensors: Sequence[torch.Tensor]) -> int:
    return max((prod(private.example_of(size) for size in t.shape) for t in tensors), default=0)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Watching(TorchFunctionMode):
    """Numbers the calls of torch functions, inside `nn.MultiheadAttention`'s too."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        number, self.count = self.count, self.count + 1
        return self.call(number, func, args, kwargs)

    def call(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError


@cache
def _opened(func: Any) -> Callable[..., Any]:
    """A function of torch that hands its parts to modes, rather than itself."""
    own = {**func.__globals__, "has_torch_function": lambda _: False}
    made = types.FunctionType(func.__code__, own, func.__name__, func.__defaults__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


class _Listing(_Watching):
    """Writes down each call. It holds every tensor until it is done, so that none takes another's identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._maker: dict[int, int] = {}
        self._weights: set[int] = set()
        self._held: list[Any] = []

    def call(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        operands = _tensors((args, kwargs))
        taken = _elements(operands)
        sources = tuple(self._maker[id(t)] for t in operands if id(t) in self._maker)
        weights = [isinstance(t, nn.Parameter) or id(t) in self._weights for t in operands]
        result = func(*args, **kwargs)
        made = _tensors(result)
        self.calls.append(_Call(_name(func), sources, sum(weights), len(operands), taken, _elements(made)))
        for tensor in made:
            self._maker[id(tensor)] = number
            if operands and all(weights):
                self._weights.add(id(tensor))
        self._held += [operands, made]
        return result


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


@dataclass(slots=True)
class Core:
    """The calls of one attention core, by number."""

    calls: set[int]

    @property
    def first(self) -> int:
        return min(self.calls)

    @property
    def last(self) -> int:
        return max(self.calls)


def cores(calls: Sequence[_Call]) -> list[Core]:
    """The attention cores among calls, in order. Cores that share a stretch of the run are one."""
    users: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        for source in call.sources:
            users.setdefault(source, []).append(number)
    found = [Core({number}) for number, call in enumerate(calls) if _FUSED in call.name]
    for number, call in enumerate(calls):
        if _SOFTMAX in call.name:
            before = _reached(number, lambda n: calls[n].sources, calls)
            after = _reached(number, lambda n: users.get(n, ()), calls)
            if any(calls[n].product for n in before) and any(calls[n].product for n in after):
                found.append(
                    Core(
                        _between(
                            calls,
                            {n for n in before if calls[n].product},
                            {n for n in after if calls[n].product},
                            before | after | {number},
                        )
                    )
                )
    merged: list[Core] = []
    for core in sorted(found, key=lambda c: c.first):
        if merged and core.first <= merged[-1].last:
            merged[-1].calls |= core.calls
        else:
            merged.append(core)
    return merged


def _reached(start: int, step: Callable[[int], Sequence[int]], calls: Sequence[_Call]) -> set[int]:
    """What calls that pass elements on lead to from one call, products of activations included as ends."""
    found: set[int] = set()
    todo = [start]
    while todo:
        for number in step(todo.pop()):
            if number not in found and (calls[number].product or calls[number].passing):
                found.add(number)
                if not calls[number].product:
                    todo.append(number)
    return found


def _between(calls: Sequence[_Call], first: set[int], last: set[int], allowed: set[int]) -> set[int]:
    """The calls on a way from one of the first products to one of the last."""
    below = set(first)
    for number in range(min(first), max(last) + 1):
        if number in allowed and any(source in below for source in calls[number].sources):
            below.add(number)
    above = set(last)
    for number in range(max(last), min(first) - 1, -1):
        if number in above:
            above.update(
                source for source in calls[number].sources if source in allowed and source not in last
            )
    return below & above


@dataclass(frozen=True, slots=True)
class _Slot:
    """A result of an earlier call of the core."""

    number: int


@dataclass(slots=True)
class _Made:
    """One call of a core as it is made again: operands from outside, or slots; where it stands in the model's
    code."""

    func: Any
    args: Any
    kwargs: Any
    slots: tuple[int, ...]
    place: tuple[list[str], str]


@dataclass
class _Open:
    """A core while it runs: the checkpoint that is open around its calls, and the calls made so far."""

    core: Core
    made: list[_Made] = field(default_factory=list)
    slots: dict[int, tuple[Any, int]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.checkpoint = private.checkpointing(self._again)
        next(self.checkpoint)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        place = recorder.standing()
        given = tree_map_only(torch.Tensor, self._slot, (args, kwargs))
        result = func(*args, **kwargs)
        slots = []
        for tensor in _tensors(result):
            self.slots[id(tensor)] = (weakref.ref(tensor), self.count)
            slots.append(self.count)
            self.count += 1
        self.made.append(_Made(func, given[0], given[1], tuple(slots), (place, user_line(3))))
        return result

    def _slot(self, tensor: torch.Tensor) -> Any:
        known = self.slots.get(id(tensor))
        return _Slot(known[1]) if known is not None and known[0]() is tensor else tensor

    def close(self) -> None:
        self.slots.clear()
        with contextlib.suppress(StopIteration):
            next(self.checkpoint)

    def _again(self) -> None:
        """The calls once more; a result is let go of after its last use."""
        uses = [
            {leaf.number for leaf in tree_leaves((m.args, m.kwargs)) if isinstance(leaf, _Slot)}
            for m in self.made
        ]
        results: dict[int, torch.Tensor] = {}
        for number, made in enumerate(self.made):
            known = results
            args, kwargs = tree_map_only(
                _Slot, lambda slot, known=known: known[slot.number], (made.args, made.kwargs)
            )
            with recorder.standing_at(*made.place):
                result = made.func(*args, **kwargs)
            results.update(zip(made.slots, _tensors(result), strict=True))
            later = set().union(*uses[number + 1 :])
            results = {slot: tensor for slot, tensor in results.items() if slot in later}
            del args, kwargs, result, known


class _Recomputing(_Watching):
    """Runs a forward pass with a checkpoint around each core's calls."""

    def __init__(self, name: str, calls: Sequence[str], found: Sequence[Core]) -> None:
        super().__init__()
        self.name, self.calls = name, calls
        self.starts: Mapping[int, Core] = {core.first: core for core in found}
        self.open: _Open | None = None

    def call(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        if number >= len(self.calls) or self.calls[number] != _name(func):
            raise ModelFileError(
                f"{self.name}: its forward pass calls other functions when run again, so no attention core "
                f"is known; {_OTHERWISE}"
            )
        if number in self.starts:
            self.open = _Open(self.starts[number])
        if self.open is None:
            return func(*args, **kwargs)
        if number not in self.open.core.calls:
            with torch.autograd.graph.saved_tensors_hooks(_same, _same):
                return func(*args, **kwargs)
        result = self.open.call(func, args, kwargs)
        if number == self.open.core.last:
            self.open.close()
            self.open = None
        return result


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def forward(name: str, run: Callable[[], Any]) -> Any:
    """Run a forward pass with its attention cores recomputed in backward. Raises ModelFileError where there
    is none."""
    if not torch.is_grad_enabled():
        return run()
    listing = _Listing()
    with _unseen(), listing:
        run()
    found = cores(listing.calls)
    if not found:
        raise ModelFileError(
            f"{name}: no attention core to recompute: no fused attention, and no softmax between two "
            f"products of activations; {_OTHERWISE}"
        )
    names = [call.name for call in listing.calls]
    del listing
    with _Recomputing(name, names, found):
        return run()


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """What runs in the block is neither recorded nor counted, and draws no random numbers from the run's."""
    with recorder.paused(), torch.random.fork_rng(devices=[]):
        yield
