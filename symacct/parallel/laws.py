"""How each op divides: from the layouts of its operands to those of its outputs, asking for others where it must.

A law receives a `Call` and returns one layout per output. `call.want` brings an operand into another layout, which
costs a collective unless it only drops what other ranks hold. An op without a law runs whole on every rank if its
operands are whole, gathers what is divided along the sequence, and is refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import sympy as sp
from sympy import Expr

from symacct.parallel.faces import FACES, face
from symacct.parallel.layout import SUMMAND, WHOLE, Layout, Part, Summand
from symacct.rules.pointwise import COUNTS

Shape = tuple[Expr, ...]


class Undivided(Exception):
    """An op whose operands are divided in a way that it cannot work with; `origins` say which parameters did it."""

    def __init__(self, why: str, parts: Sequence[Layout] = ()) -> None:
        super().__init__(why)
        self.origins = tuple(p.origin for p in parts if isinstance(p, Part) and p.origin)


class Call(Protocol):
    """One op call on its way through the laws. Operands go by name, those of a list as "tensors.0"."""

    op: str
    tensors: tuple[str, ...]
    outputs: tuple[Shape, ...]
    backward: bool

    def layout(self, name: str) -> Layout: ...
    def shape(self, name: str) -> Shape: ...
    def argument(self, name: str, default: object = None) -> object: ...
    def want(self, name: str, layout: Layout) -> None: ...
    def settle(self, name: str) -> Layout: ...
    def summed(self, name: str) -> bool: ...
    def gather(self, name: str) -> None: ...
    def reduce(self, shape: Shape) -> None: ...
    def spread(self, name: str) -> None: ...
    def made_by(self, name: str) -> str: ...
    def table(self) -> Layout | None: ...
    def integral(self, ratio: Expr) -> bool: ...
    def along(self, shape: Shape) -> Part | None: ...
    def hides_sequence(self, before: Shape, after: Shape) -> bool: ...


Law = Callable[[Call], list[Layout]]
LINEAR = set("add sub mul div clone _to_copy contiguous positive".split())
ELEMENTWISE = set(COUNTS) | set(
    "add sub rsub addcmul addcdiv div clamp pow gelu gelu_backward elu_backward where masked_fill native_dropout "
    "native_dropout_backward _to_copy clone zeros_like ones_like full_like rand_like randn_like empty_like copy fill "
    "bernoulli dropout _fused_dropout lerp zero isin".split()
)
GROWING = ("expand", "select_backward", "slice_backward")
LIKE = set("zeros_like ones_like full_like rand_like randn_like empty_like".split())


def layouts_of(call: Call) -> list[Layout]:
    """The layouts of the outputs. Raises Undivided."""
    name = call.op.removeprefix("aten.").removesuffix("_")
    if call.op.startswith("c10d."):
        return _across(call)
    if name in LAWS:
        return LAWS[name](call)
    if name.startswith("_foreach"):
        return _in_lists(call)
    if name in LIKE and call.tensors:
        layout = call.layout(call.tensors[0])
        return [WHOLE if isinstance(layout, Summand) else layout] * len(call.outputs)
    if name in ELEMENTWISE:
        return elementwise(call)
    if name in FACES:
        return _face(call, name)
    return _whole(call)


def _whole(call: Call) -> list[Layout]:
    """Every rank does all of it; what is divided along the sequence is gathered first."""
    for name in call.tensors:
        layout = call.settle(name)
        if isinstance(layout, Part):
            if not layout.sequence:
                raise Undivided(f"no law says how {call.op} divides", [layout])
            call.gather(name)
    return [WHOLE] * len(call.outputs)


def asked(call: Call, layouts: list[Layout]) -> list[Layout]:
    """Of a backward's gradients those that it makes: what its mask leaves out, as of an input that needs none, is no output.

    Some ops make all of them whatever the mask says.
    """
    mask = call.argument("output_mask", call.argument("grad_input_mask"))
    if isinstance(mask, tuple) and len(mask) != len(call.outputs):
        layouts = [layout for layout, wanted in zip(layouts, mask, strict=False) if wanted]
    return (layouts + [WHOLE] * len(call.outputs))[: len(call.outputs)]


def _across(call: Call) -> list[Layout]:
    """A collective of another axis of the mesh: a division of any but the sequence goes through."""
    for name in call.tensors:
        layout = call.layout(name)
        if isinstance(layout, Part) and layout.sequence and call.outputs:
            call.gather(name)
    first = [call.layout(n) for n in call.tensors[:1]] or [WHOLE]
    return first * len(call.outputs)


def _face(call: Call, op: str) -> list[Layout]:
    name = call.tensors[0]
    if isinstance(call.layout(name), Summand) and (op in GROWING or call.hides_sequence(call.shape(name), call.outputs[0])):
        call.settle(name)  # behind this view the sequence cannot be seen, or there is more to sum
    layout = call.layout(name)
    if op == "expand" and layout == WHOLE and call.backward:
        part = call.along(call.outputs[0])
        behind = part.dim - (len(call.outputs[0]) - len(call.shape(name))) if part else 0
        if part and (behind < 0 or call.shape(name)[behind] == 1):  # each rank repeats it for its part alone
            return [part] * len(call.outputs)
    arguments = _Arguments(call)
    found = face(op, arguments, layout, call.shape(name), call.outputs, call.integral)
    if found is None:
        if not (isinstance(layout, Part) and layout.sequence):
            raise Undivided(f"{call.op} takes apart what is divided", [layout])
        call.gather(name)
        found = WHOLE
    return [found] * len(call.outputs)


class _Arguments(dict):
    """The plain arguments of a call, read when asked for."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getitem__(self, name: str) -> object:
        return self._call.argument(name)

    def get(self, name: str, default: object = None) -> object:
        return self._call.argument(name, default)


def elementwise(call: Call) -> list[Layout]:
    """Operands of one shape, or broadcast to it: all divided alike, whole ones cut to fit."""
    names, shape = call.tensors, call.outputs[0] if call.outputs else call.shape(call.tensors[0])
    op = call.op.removeprefix("aten.").removesuffix("_")
    for name in names:
        if isinstance(call.layout(name), Summand) and call.summed(name):
            call.settle(name)
    if op in LINEAR and _stay_summands(call, op):
        return [SUMMAND] * len(call.outputs)
    found = {n: _aligned(call.settle(n), call.shape(n), shape) for n in names}
    parts = [part for part in found.values() if part is not None]
    if not parts:
        return [WHOLE] * len(call.outputs)
    chosen = next((p for p in parts if not p.sequence), parts[0])
    for name in names:
        offset = len(shape) - len(call.shape(name))
        here = chosen.dim - offset
        if here < 0 or (call.shape(name)[here] == 1 and shape[chosen.dim] != 1):
            if found[name] is not None:
                _undo(call, name)
        elif not chosen.fits(found[name] or WHOLE):
            if found[name] is not None:
                _undo(call, name)
            call.want(name, chosen.moved(here))
    return [_back(chosen, shape, out) for out in call.outputs]


def _stay_summands(call: Call, op: str) -> bool:
    """Whether summands go through: scaled, or added. Another gradient joins them rather than being summed first."""
    kinds = [isinstance(call.layout(n), Summand) for n in call.tensors]
    if op in ("mul", "div"):
        return kinds == [True]
    alike = call.backward and all(call.shape(n) == call.outputs[0] and _joins(call.layout(n)) for n, k in zip(call.tensors, kinds, strict=True) if not k)
    return any(kinds) and (all(kinds) or (op in ("add", "sub") and alike))


def _joins(layout: Layout) -> bool:
    """Whether a gradient can be added to one rank's summand: a whole one by one of the ranks, a part by each in its place."""
    return layout == WHOLE or (isinstance(layout, Part) and layout.sequence)


def _undo(call: Call, name: str) -> None:
    layout = call.layout(name)
    if not (isinstance(layout, Part) and layout.sequence):
        raise Undivided(f"{call.op} meets two divisions", [call.layout(n) for n in call.tensors])
    call.gather(name)


def _aligned(layout: Layout, shape: Shape, whole: Shape) -> Part | None:
    return layout.moved(layout.dim + len(whole) - len(shape)) if isinstance(layout, Part) else None


def _back(part: Part, whole: Shape, out: Shape) -> Layout:
    dim = part.dim - (len(whole) - len(out))
    return WHOLE if dim < 0 or (out[dim] == 1 and whole[part.dim] != 1) else part.moved(dim)


def _in_lists(call: Call) -> list[Layout]:
    """Lists of parameters, gradients and states, each held as its parameter is: nothing moves."""
    first = [call.layout(n) for n in call.tensors if n.startswith("self.")]
    return first[: len(call.outputs)] + [WHOLE] * (len(call.outputs) - len(first))


def reduced(summed: bool) -> Law:
    """A reduction: over the divided dimension it leaves summands, else the division stays."""

    def law(call: Call) -> list[Layout]:
        name = call.tensors[0]
        layout = call.settle(name)
        for other in call.tensors[1:]:
            call.settle(other)
        if not isinstance(layout, Part):
            return [WHOLE] * len(call.outputs)
        rank = len(call.shape(name))
        given = call.argument("dim")
        listed = given if isinstance(given, tuple) else (given,) if given is not None else ()
        dims = sorted({int(d) % rank for d in listed} or range(rank))
        if layout.dim in dims:
            if not summed:
                if not layout.sequence:
                    raise Undivided(f"{call.op} goes over what is divided", [layout])
                call.gather(name)
                return [WHOLE] * len(call.outputs)
            return [SUMMAND] * len(call.outputs)
        kept = bool(call.argument("keepdim", False))
        return [layout if kept else layout.moved(layout.dim - sum(d < layout.dim for d in dims))] * len(call.outputs)

    return law


def softmax(call: Call) -> list[Layout]:
    """exp(x - max) / sum: over a divided dimension the ranks agree on the maximum and on the sum."""
    name = call.tensors[0]
    layout = call.settle(name)
    shape = call.shape(name)
    for other in call.tensors[1:]:
        if not isinstance(layout, Part):
            layout = call.settle(other)
    for other in call.tensors:
        if isinstance(layout, Part) and not layout.fits(call.settle(other)):
            call.want(other, layout)
    if not isinstance(layout, Part):
        return [WHOLE] * len(call.outputs)
    along = call.argument("dim", -1)
    dim = int(along if isinstance(along, int) else int(str(along))) % len(shape)
    if layout.dim == dim:
        if layout.sequence:
            for other in call.tensors:
                call.gather(other)
            return [WHOLE] * len(call.outputs)
        rows = shape[:dim] + shape[dim + 1 :]
        backward = "backward" in call.op
        known = backward and call.made_by(name).startswith("aten.nll_loss")  # that gradient adds up to a constant
        for _ in range(0 if known else 1 if backward else 2):
            call.reduce(rows)
    return [layout] * len(call.outputs)


def concatenated(call: Call) -> list[Layout]:
    """Tensors one behind the other: a division of another dimension stays; of this one, each piece is divided."""
    stacked = call.op == "aten.stack"
    parts = [call.settle(n) for n in call.tensors]
    layout = next((p for p in parts if isinstance(p, Part)), None)
    if layout is None:
        return [WHOLE] * len(call.outputs)
    for name in call.tensors:
        if not layout.fits(call.layout(name)):
            call.want(name, layout)
    rank = len(call.outputs[0])
    dim = int(str(call.argument("dim", 0) or 0)) % rank
    if stacked:
        return [layout.moved(layout.dim + (layout.dim >= dim))]
    if dim != layout.dim:
        return [layout]
    sizes = tuple(call.shape(n)[dim] for n in call.tensors)
    if all(sp.expand(size - sizes[0]) == 0 for size in sizes):
        return [layout.at(dim, sp.Integer(len(sizes)))]
    return [Part(dim, pieces=sizes, origin=layout.origin)]


LAWS: dict[str, Law] = {
    **dict.fromkeys(("sum", "mean"), reduced(True)),
    **dict.fromkeys(("amax", "amin", "max", "min", "any", "all", "var", "std", "argmax", "logsumexp", "prod"), reduced(False)),
    **dict.fromkeys(("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), softmax),
    **dict.fromkeys(("cat", "stack"), concatenated),
}
