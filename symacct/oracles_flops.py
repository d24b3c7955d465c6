"""Product FLOPs of a real execution: torch's own counter with its blind spots closed.

A multiply-add is 2 FLOPs; matrix products, convolutions and the products of attention count, nothing else.
Convolutions count every kernel tap, also those on padding; attention counts the full score matrix.
`torch.utils.flop_counter` sees the ops that reach the dispatcher. What it gives as 0 or too high:

- attention on CPU is 0: run with the MATH kernel, whose two products are `bmm` (or, to count the kernel that
  really ran, torch's own formula for CUDA's flash kernel, which has a fifth product in backward);
- the fused LSTM is 0: run without oneDNN, which unrolls it into `addmm`;
- the eval-mode fast path of `nn.MultiheadAttention` is 0: run without it;
- `mv`, `dot`, `addbmm`, in-place `addmm_`, `_grouped_mm`, `_int_mm`, … are 0: formulas below;
- a grouped convolution's weight gradient is `groups` times too high: formula below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
Shape = tuple[int, ...]
Formula = Callable[..., int]


class Phases:
    """Which part of a step runs now, and the FLOPs that fell into each part.

    Recomputation is told from the phase around it by watching the functions that checkpointing was given.
    """

    def __init__(self, total: Callable[[], int] = lambda: 0) -> None:
        self.flops: Counter[str] = Counter()
        self._total, self._seen, self._open = total, total(), ["outside"]

    @property
    def now(self) -> str:
        return self._open[-1]

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:  # checkpointing leaves a recomputation early by an exception
            self._settle()
            self._open.pop()

    def _settle(self) -> None:
        total = self._total()
        self.flops[self.now] += total - self._seen
        self._seen = total


@contextmanager
def recomputation_watched(phases: Phases) -> Iterator[None]:
    """Calls of checkpointed functions from inside a backward pass run as phase "recompute"."""

    def watched(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch._C._current_graph_task_id() == -1:
                return function(*args, **kwargs)
            with phases.within("recompute"):
                return function(*args, **kwargs)

        return call

    frame, function = checkpoint._CheckpointFrame, checkpoint.CheckpointFunction
    frame_init, forward = frame.__init__, function.forward

    def init(self: Any, recompute: Callable, *args: Any, **kwargs: Any) -> None:
        frame_init(self, watched(recompute), *args, **kwargs)

    def reentrant(ctx: Any, run: Callable, *args: Any) -> Any:
        return forward(ctx, watched(run), *args)

    frame.__init__, function.forward = init, staticmethod(reentrant)
    try:
        yield
    finally:
        frame.__init__, function.forward = frame_init, staticmethod(forward)


@contextmanager
def unfused(*, attention: bool) -> Iterator[None]:
    """Kernels that show their products: no oneDNN, no fast path and, if asked, no fused attention."""
    fast, onednn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns on machines without an Intel GPU
    try:
        with sdpa_kernel(SDPBackend.MATH) if attention else nullcontext():
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch.backends.mha.set_fastpath_enabled(fast)


class _NoModules:
    """Stands in for torch's ModuleTracker, whose hooks keep gradients alive and so change which ops run."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def counter(notes: dict[str, None]) -> FlopCounterMode:
    """torch's counter with the stand-ins; each one that is used leaves a line in `notes`."""

    def noted(packet: Any, formula: Formula, why: str) -> Formula:
        line = why if packet in _ATTENTION else f"aten.{packet.__name__}: {why}"

        def count(*args: Any, **kwargs: Any) -> int:
            if formula is not convolution_backward or args[9] != 1:  # at one group torch's own is right
                notes[line] = None
            return formula(*args, **kwargs)

        return count

    mode = FlopCounterMode(
        display=False,
        custom_mapping={packet: noted(packet, formula, why) for packet, (formula, why) in STAND_INS.items()},
    )
    mode.mod_tracker = _NoModules()
    return mode


# Formulas: shapes as torch's counter passes them (tensors replaced by their shapes), FLOPs out


def rows_by_vector(left: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """(…, k) with k numbers for each output: mv, dot and packed integer products."""
    return 2 * prod(out_shape) * left[-1]


def added_vector(_: Shape, matrix: Shape, *__: Any, **___: Any) -> int:
    """addmv: c (m) + A (m, k) · x (k)."""
    return 2 * prod(matrix)


def added_product(_: Shape, left: Shape, right: Shape, *__: Any, **___: Any) -> int:
    """addbmm, and addmm and baddbmm in place: c + A (…, m, k) · B (…, k, n), summed over the batch or not."""
    return 2 * prod(left) * right[-1]


def grouped_product(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Groups are slices of m (2-d · 3-d), of n (3-d · 2-d) or of k (2-d · 2-d); 3-d · 3-d is a plain batch.

    Every row counts, also rows past the last offset, which belong to no group.
    """
    batch = left[0] if len(left) == len(right) == 3 else 1
    return 2 * batch * left[-2] * left[-1] * right[-1]


def convolution_backward(
    grad: Shape, x: Shape, weight: Shape, _bias: Any, _stride: Any, _padding: Any, _dilation: Any,
    transposed: bool, _output_padding: Any, _groups: int, mask: list[bool], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """The input gradient and the weight gradient each pair the same numbers as the forward, group by group.

    A convolution meets all of `weight` (out, in/groups, *taps) at each output position; a transposed one
    (in, out/groups, *taps) at each input position.
    """
    positions = x[2:] if transposed else grad[2:]
    return 2 * grad[0] * prod(positions) * prod(weight) * (int(mask[0]) + int(mask[1]))


def time_first_convolution(_: Shape, weight: Shape, *__: Any, out_shape: Shape, **___: Any) -> int:
    """conv_tbc: weight (taps, in, out); its backward is in-place `addmm_`."""
    return 2 * prod(out_shape) * weight[0] * weight[1]


def trilinear(
    one: Shape, two: Shape, three: Shape, expand_1: list[int], expand_2: list[int], expand_3: list[int],
    summed: list[int], *_: Any, **__: Any,
) -> int:  # fmt: skip
    """nn.Bilinear and its gradients: `one` times `two`, then times `three`, summed as early as possible.

    `expand_i` are the dimensions that operand i lacks. A pair without a summed dimension is elementwise.
    """
    rank = len(one) + len(expand_1)
    size: dict[int, int] = {}
    for shape, missing in ((one, expand_1), (two, expand_2), (three, expand_3)):
        size.update(zip((d for d in range(rank) if d not in missing), shape, strict=True))
    first = [d for d in range(rank) if not (d in expand_1 and d in expand_2)]
    early = [d for d in summed if d in expand_3]
    second = [d for d in range(rank) if d not in early]
    products = [prod(size[d] for d in first)] if early else []
    products += [prod(size[d] for d in second)] if len(early) < len(summed) else []
    return 2 * sum(products)


def fused_attention(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def fused_attention_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, q, k, v)


_ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
_NO_FORMULA = "torch's counter has no formula; counted from its operands' shapes"
_FLASH = (
    "scaled_dot_product_attention: torch's counter says 0 on CPU; counted through the math kernel, "
    "its hardware backward with torch's formula for the flash kernel on CUDA"
)
_GROUPS = "torch's counter gives groups times too much for the weight gradient; counted group by group"

_WITHOUT_FORMULA: dict[Formula, tuple[Any, ...]] = {
    rows_by_vector: (aten.mv, aten.dot, aten.vdot, aten._int_mm, aten._weight_int8pack_mm),
    added_vector: (aten.addmv, aten.addmv_),
    added_product: (aten.addbmm, aten.addbmm_, aten.addmm_, aten.baddbmm_, aten._addmm_activation),
    grouped_product: (aten._grouped_mm, aten._scaled_grouped_mm),
    time_first_convolution: (aten.conv_tbc,),
    trilinear: (aten._trilinear,),
}
STAND_INS: dict[Any, tuple[Formula, str]] = {
    **{op: (formula, _NO_FORMULA) for formula, ops in _WITHOUT_FORMULA.items() for op in ops},
    _ATTENTION[0]: (fused_attention, _FLASH),
    _ATTENTION[1]: (fused_attention_backward, _FLASH),
    aten.convolution_backward: (convolution_backward, _GROUPS),
}

# Kernels that hold products and have no stand-in, and ops named alike that hold none.
_OPAQUE = (
    "aten.linalg_", "aten._linalg_", "aten._cdist_", "aten._euclidean_dist", "aten._pdist", "aten.cholesky",
    "aten._cholesky", "aten.triangular_solve", "aten.lu_solve", "aten.ormqr", "aten.mkldnn_",
    "aten._sparse_mm", "aten._sparse_sparse", "aten.sparse_sampled_addmm", "aten._dyn_quant_matmul",
    "aten._weight_int4pack_mm",
)  # fmt: skip
_NOT_OPAQUE = ("aten.linalg_vector_norm", "aten.linalg_cross", "aten._linalg_check_errors")


def uncounted(op: str) -> bool:
    """True of an op that may hold products which nothing here counts: custom ops, solvers, distances."""
    if not op.startswith("aten."):
        return not op.startswith("higher_order.")
    return op.startswith(_OPAQUE) and op not in _NOT_OPAQUE
