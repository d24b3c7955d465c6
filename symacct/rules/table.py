"""What a rule is, and the table that holds one for every op.

1. A rule is keyed by the op's ATen name without overload ("aten.mm") and needs no torch. An op that works in
   place ("aten.add_") has the rule of its functional form unless it has one of its own; its output is `self`.
2. Its parameters are ATen's own argument names; it receives only those that it names. A tensor comes as a
   `Tensor`, a list of tensors as a tuple of them, a size as a sympy expression, None when it was not given.
   `out` is the traced output, or the tuple of outputs when there are several.
3. One multiply-add is 2 FLOPs, under `product`: matrix products, convolutions, attention products; nothing
   else. A complex element counts like a real one.
4. Additions, multiplications, divisions, comparisons and changes of sign are `elementwise`, one per element
   produced and operation; sums, maxima, norms, means and orderings are `reduction`, one per element consumed
   (a mean's division is in it); exp, log, tanh, erf, sigmoid, sin, roots and powers are `transcendental`, one
   per call. Copies, casts, selections and random draws count no FLOPs, only bytes.
5. `read` and `written` are bytes of the elements that a tensor shows. Left out, every distinct tensor operand
   is read once (an entry of a list each time it is listed) and every output written once.
6. A zero cost is a claim, made by `views` or by a rule that returns `Cost()`; nothing is zero by default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.graph import Tensor

ZERO = sp.Integer(0)
KINDS = ("product", "elementwise", "reduction", "transcendental", "recomputed")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an op costs.

    `product`, `elementwise`, `reduction`, `transcendental`: FLOPs of that kind.
    `recomputed`: the part of `product` that repeats work of the forward pass (fused attention's backward): it
    counts in hardware FLOPs, not in model FLOPs. `causal`: what `product` would be, were only the unmasked
    query-key pairs counted; None when the op knows of no causal mask.
    `read`, `written`: bytes; None means every tensor operand once, every output once.
    """

    product: Expr = ZERO
    elementwise: Expr = ZERO
    reduction: Expr = ZERO
    transcendental: Expr = ZERO
    recomputed: Expr = ZERO
    causal: Expr | None = None
    read: Expr | None = None
    written: Expr | None = None

    def __add__(self, other: Cost) -> Cost:
        """The FLOPs of both; the bytes of `self`: what passes between two parts of one op is not moved."""
        return replace(self, **{kind: getattr(self, kind) + getattr(other, kind) for kind in KINDS})


@dataclass(frozen=True, slots=True)
class Rule:
    """One op's law: its name, the function that prices a call, and the arguments that it asks for."""

    op: str
    price: Callable[..., Cost]
    wants: tuple[str, ...]
    view: bool = False

    @property
    def law(self) -> str:
        """The law in words: the first line of the function's docstring."""
        return (inspect.getdoc(self.price) or "").partition("\n")[0]


class DuplicateRule(ValueError):
    """Two rules for one op."""


_RULES: dict[str, Rule] = {}
RULES: Mapping[str, Rule] = MappingProxyType(_RULES)


def rule(*ops: str, view: bool = False) -> Callable[[Callable[..., Cost]], Callable[..., Cost]]:
    """Declare the decorated function as the rule of these ops."""

    def declare(price: Callable[..., Cost]) -> Callable[..., Cost]:
        wants = tuple(inspect.signature(price).parameters)
        for op in ops:
            if op in _RULES:
                raise DuplicateRule(f"{op}: {_RULES[op].price.__qualname__} and {price.__qualname__}")
            _RULES[op] = Rule(op, price, wants, view)
        return price

    return declare


def numel(tensor: Tensor) -> Expr:
    """Number of elements, of all alike tensors that it stands for."""
    return tensor.numel


def tensors(argument: Any) -> Iterator[Tensor]:
    """The tensors in an argument, lists of lists included."""
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from tensors(part)


def moved(arguments: Any) -> Expr:
    """Bytes of the tensors among arguments: one given twice counts once, entries of a list count each."""
    direct = arguments if isinstance(arguments, tuple) else (arguments,)
    once = {tensor.value: tensor for tensor in direct if isinstance(tensor, Tensor)}
    listed = tensors([argument for argument in direct if not isinstance(argument, Tensor)])
    return sp.Add(*(tensor.bytes for tensor in (*once.values(), *listed)))


def first(out: Any) -> Tensor:
    """The output, or the first of several."""
    return next(tensors(out))


def is_number(value: Any, number: int) -> bool:
    """Whether an argument is this number, be it an integer, a float or a sympy number."""
    return not isinstance(value, Tensor) and (value == number or value == float(number))


def given(*arguments: Any) -> int:
    """How many of the optional arguments are there."""
    return sum(argument is not None for argument in arguments)


def find(op: str, rules: Mapping[str, Rule] = RULES) -> Rule | None:
    """The rule of an op, or of its functional form when it works in place; None when nobody declared one."""
    return rules.get(op) or rules.get(op.removesuffix("_"))


def arguments_of(call: Rule, values: Mapping[str, Any], out: Any) -> dict[str, Any]:
    """The keyword arguments that this rule asks for."""
    return {name: out if name == "out" else values.get(name) for name in call.wants}


def price(op: str, values: Mapping[str, Any], out: Any, rules: Mapping[str, Rule] = RULES) -> Cost:
    """What a call costs, its bytes filled in.

    Args:
        values: the call's arguments by ATen name; those left out had their default.
        out: the output tensor, a tuple of outputs, or None for an op that only changes its operands.
    Raises:
        KeyError: no rule prices this op.
    """
    call = find(op, rules)
    if call is None:
        raise KeyError(op)
    if next(tensors(out), None) is None and op.endswith("_"):
        out = values.get("self")
    cost = call.price(**arguments_of(call, values, out))
    if call.view:
        return replace(cost, read=ZERO, written=ZERO)
    return replace(
        cost,
        read=moved(tuple(values.values())) if cost.read is None else cost.read,
        written=moved((out,)) if cost.written is None else cost.written,
    )
