"""Where a division lies in a view of a tensor, or in a copy that only moves elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.parallel.layout import Layout, Part, viewed

Shape = tuple[Expr, ...]
Face = Callable[[dict[str, Any], Part, Shape, Sequence[Shape]], "Part | None"]

SAME = "detach alias lift_fresh lift clone contiguous _to_copy positive _conj _neg_view"
RESHAPED = ("view", "_unsafe_view", "reshape", "_reshape_alias")


def face(
    op: str, arguments: Any, layout: Layout, shape: Shape, outputs: Sequence[Shape], integral: Callable[[Expr], bool]
) -> Layout | None:
    """The layout of each output of a view of one operand; None where the division cannot be seen in it.

    A split or unbind may leave another number of outputs: one layout holds for all of them.
    """
    if not isinstance(layout, Part):
        return layout
    if op in RESHAPED:
        return viewed(layout, shape, outputs[0], integral)
    law = FACES.get(op)
    return law(arguments, layout, shape, outputs) if law else None


def _same(_: dict[str, Any], part: Part, __: Shape, ___: Sequence[Shape]) -> Part:
    return part


def _transposed(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part:
    a, b = (_positive(arguments.get(f"dim{k}", k), len(shape)) for k in (0, 1))
    return part.moved({a: b, b: a}.get(part.dim, part.dim))


def _permuted(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part:
    order = [_positive(d, len(shape)) for d in arguments["dims"]]
    return part.moved(order.index(part.dim))


def _expanded(_: dict[str, Any], part: Part, shape: Shape, outputs: Sequence[Shape]) -> Part:
    return part.moved(part.dim + len(outputs[0]) - len(shape))


def _unsqueezed(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part:
    dim = _positive(arguments["dim"], len(shape) + 1)
    return part.moved(part.dim + (part.dim >= dim))


def _squeezed(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part:
    dims = arguments.get("dim")
    gone = [_positive(d, len(shape)) for d in (dims if isinstance(dims, tuple) else (dims,))] if dims is not None else range(len(shape))
    return part.moved(part.dim - sum(d < part.dim and shape[d] == 1 for d in gone))


def _one_less(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part | None:
    dim = _positive(arguments.get("dim", 0), len(shape))
    return None if dim == part.dim else part.moved(part.dim - (dim < part.dim))


def _cut(arguments: dict[str, Any], part: Part, shape: Shape, outputs: Sequence[Shape]) -> Part | None:
    """A slice keeps a division of another dimension, and of its own if it takes all of it."""
    dim = _positive(arguments.get("dim", 0), len(shape))
    return part if dim != part.dim or outputs[0][dim] == shape[dim] else None


def _split(arguments: dict[str, Any], part: Part, shape: Shape, outputs: Sequence[Shape]) -> Part | None:
    dim = _positive(arguments.get("dim", 0), len(shape))
    if dim != part.dim:
        return part
    sizes = tuple(out[dim] for out in outputs)
    alike = all(sp.expand(size - sizes[0]) == 0 for size in sizes)
    if part.pieces == sizes or (alike and sp.expand(part.outer - len(sizes)) == 0):
        return Part(dim, origin=part.origin)
    return None


def _inserted(arguments: dict[str, Any], part: Part, shape: Shape, outputs: Sequence[Shape]) -> Part:
    """The gradient of a select: the dimension that it dropped is back."""
    dim = _positive(arguments["dim"], len(outputs[0]))
    return part.moved(part.dim + (part.dim >= dim))


def _along(arguments: dict[str, Any], part: Part, shape: Shape, _: Sequence[Shape]) -> Part | None:
    """Work along one dimension: a division of any other one stays."""
    return None if _positive(arguments.get("dim", -1), len(shape)) == part.dim else part


def _corner(_: dict[str, Any], part: Part, shape: Shape, __: Sequence[Shape]) -> Part | None:
    return part if part.dim < len(shape) - 2 else None


def _positive(dim: Any, rank: int) -> int:
    return int(dim) % max(rank, 1)


FACES: dict[str, Face] = {
    **dict.fromkeys(SAME.split(), _same),
    **dict.fromkeys(RESHAPED, _same),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("slice", "narrow", "slice_backward", "flip", "roll"), _cut),
    **dict.fromkeys(("select", "unbind"), _one_less),
    **dict.fromkeys(("cumsum", "cumprod", "sort", "topk", "logcumsumexp"), _along),
    **dict.fromkeys(("tril", "triu"), _corner),
    "t": _transposed,
    "transpose": _transposed,
    "permute": _permuted,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "select_backward": _inserted,
}
