"""The least time of a step on a device: each kernel takes as long as its arithmetic or its bytes need.

    found = roofline(ledger, device, {"B": 8, "T": 4096, ...})        # or with precision="bf16"
    found.fused.seconds, found.fused.mfu                              # exact fractions
    found.fused.modules[0].limit                                      # "compute" or "memory"
    slowness.losses(found)                                            # why MFU is low, the largest loss first
    report.roofed.as_text(page, found)                                # a section of a page

Products run at the device's peak for their dtype, other arithmetic at its fp32 peak if it has one, bytes at
its memory bandwidth; kernels run one after the other and launches take no time. Of a causal mask only the
unmasked pairs are computed. All of it is a lower bound for these kernels, so the MFU that follows is an upper
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import sympy as sp
from sympy import Expr

from symacct.account import Ledger, add
from symacct.devices import Device, precision_of
from symacct.dtypes import FLOATING
from symacct.errors import DeviceError, SizeError, UnknownOps
from symacct.evaluation import evaluate
from symacct.graph import SOURCES, total_over
from symacct.plan.fusion import Kernel, kernels, launches

TRAFFIC = ("unfused", "fused", "products")
_VECTOR = "fp32"


@dataclass(frozen=True, slots=True)
class Bound:
    """A kernel at given sizes, over all its repetitions: FLOPs, bytes, and the least seconds that each takes.

    `peak` is the FLOP/s at which its products run.
    """

    kernel: Kernel
    product: int
    other: int
    bytes: int
    peak: int
    computing: Fraction
    moving: Fraction

    @property
    def seconds(self) -> Fraction:
        """The longer of the two."""
        return max(self.computing, self.moving)

    @property
    def limit(self) -> str:
        """What bounds it: "compute" or "memory"."""
        return _limit(self.computing, self.moving)

    @property
    def intensity(self) -> Fraction:
        """FLOPs of every kind for each byte moved."""
        return Fraction(self.product + self.other, self.bytes) if self.bytes else Fraction(0)


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels together: those of one module, of the loss, of the optimizer, or of one op."""

    name: str
    bounds: tuple[Bound, ...]

    @property
    def seconds(self) -> Fraction:
        return sum((bound.seconds for bound in self.bounds), Fraction(0))

    @property
    def product(self) -> int:
        """FLOPs of products."""
        return sum(bound.product for bound in self.bounds)

    @property
    def bytes(self) -> int:
        return sum(bound.bytes for bound in self.bounds)

    @property
    def limit(self) -> str:
        """What bounds the kernels that take most of its time."""
        compute = sum((b.seconds for b in self.bounds if b.limit == "compute"), Fraction(0))
        return "compute" if 2 * compute > self.seconds else "memory"

    @property
    def intensity(self) -> Fraction:
        """Product FLOPs for each byte moved."""
        return Fraction(self.product, self.bytes) if self.bytes else Fraction(0)

    @property
    def totals(self) -> tuple[Expr, Expr]:
        """Product FLOPs and bytes, as formulas."""
        return add(b.kernel.product for b in self.bounds), add(b.kernel.bytes for b in self.bounds)

    @property
    def formula(self) -> Expr:
        """Product FLOPs for each byte moved, as a formula."""
        return quotient(*self.totals)


@dataclass(frozen=True)
class Roof:
    """A step as a sequence of kernels. `model` are its FLOPs under the convention, `peak` those a second."""

    bounds: tuple[Bound, ...]
    model: int
    peak: int
    sizes: Mapping[str, int]

    @cached_property
    def seconds(self) -> Fraction:
        """The least time of the step."""
        return sum((bound.seconds for bound in self.bounds), Fraction(0))

    @property
    def mfu(self) -> Fraction:
        """The most that model FLOPs / (peak · time) can be."""
        return self.model / (self.peak * self.seconds) if self.seconds else Fraction(0)

    @property
    def bytes(self) -> int:
        return sum(bound.bytes for bound in self.bounds)

    @cached_property
    def launches(self) -> Expr:
        """Kernels launched, as a formula: at least one for each op that moves a byte."""
        return launches(tuple(bound.kernel for bound in self.bounds))

    @property
    def launched(self) -> int:
        """Kernels launched at these sizes."""
        return int(evaluate(self.launches, self.sizes))

    @cached_property
    def modules(self) -> tuple[Part, ...]:
        """The step by module, the longest time first."""
        return self._by(_name)

    @cached_property
    def ops(self) -> tuple[Part, ...]:
        """The step by op, of a merged kernel its last one, the longest time first."""
        return self._by(lambda kernel: kernel.last.op.removeprefix("aten."))

    def _by(self, name: Callable[[Kernel], str]) -> tuple[Part, ...]:
        parts: dict[str, list[Bound]] = {}
        for bound in self.bounds:
            parts.setdefault(name(bound.kernel), []).append(bound)
        made = [Part(key, tuple(found)) for key, found in parts.items()]
        return tuple(sorted(made, key=lambda part: (-part.seconds, part.name)))


@dataclass(frozen=True)
class Roofline:
    """A step's kernels on a device, op by op and with element-wise chains merged (see `fusion`)."""

    ledger: Ledger
    device: Device
    sizes: Mapping[str, int]
    precision: str
    unfused: Roof
    fused: Roof

    @property
    def ridge(self) -> Fraction:
        """FLOPs a byte above which arithmetic at the chief precision is the limit."""
        return self.device.ridge(self.precision)

    @cached_property
    def computing(self) -> Fraction:
        """The least time of the products alone, were no byte moved."""
        return sum((Fraction(b.product, b.peak) for b in self.unfused.bounds if b.product), Fraction(0))


def roofline(
    ledger: Ledger, device: Device, sizes: Mapping[str, int], precision: str | None = None, spread: int = 1
) -> Roofline:
    """The least time of a step at these sizes, unfused and fused.

    `precision` (a name of the device's peaks, such as bf16 or tf32) is what floating products run in; None
    takes each op's own dtype. Bytes are always those of the dtypes in the graph. `spread` is among how many
    ranks the optimizer's step is divided, evenly: those of ZeRO. Raises SizeError for sizes
    outside the domain, UnknownOps where an op has no rule, DeviceError for a peak or bandwidth that the
    device lacks.
    """
    if ledger.unknown:
        raise UnknownOps(ledger.graph.target, ledger.unknown)
    sizes = {**ledger.graph.values, **sizes}
    ledger.checked(sizes)
    bandwidth = device.needed("bandwidth")
    model = int(evaluate(model_flops(ledger), sizes))
    work = lambda kernel: _work(kernel, sizes, spread)  # noqa: E731
    plain = [work(kernel) for kernel in kernels(ledger)]
    chief = precision or precision_of(chief_dtype(ledger, sizes))
    vector = _vector_peak(device)

    def roof(works: Iterable[tuple[Kernel, int, int, int]]) -> Roof:
        made = []
        for kernel, product, other, moved in works:
            peak = device.peak(precision_at(kernel, precision)) if product else device.peak(chief)
            computing = max(Fraction(product, peak), Fraction(other, vector) if vector else Fraction(0))
            made.append(Bound(kernel, product, other, moved, peak, computing, Fraction(moved, bandwidth)))
        return Roof(tuple(made), model, device.peak(chief), sizes)

    merged = [work(kernel) for kernel in kernels(ledger, fused=True)]
    return Roofline(ledger, device, sizes, chief, roof(plain), roof(merged))


def model_flops(ledger: Ledger) -> Expr:
    """What MFU counts of a step: forward and backward without recomputation, or the one pass there is."""
    found = ledger.formulas
    flops = found.get("flops.step", found["flops.forward"])
    return 2 * flops if ledger.convention.unit == "MAC" else flops


def precision_at(kernel: Kernel, asked: str | None) -> str:
    """The peak at which a kernel's products run: the one asked for, else that of their operands' dtype."""
    return asked if asked and kernel.dtype in FLOATING else precision_of(kernel.dtype)


def chief_dtype(ledger: Ledger, sizes: Mapping[str, int]) -> str:
    """The dtype (torch's name) of most product FLOPs; that of the weights where there is no product."""
    totals: dict[str, int] = {}
    for kernel in kernels(ledger):
        if product := _whole(kernel.product, sizes, kernel):
            totals[kernel.dtype] = totals.get(kernel.dtype, 0) + product
    if totals:
        return max(totals, key=lambda dtype: totals[dtype])
    parameters = [out.dtype for place in ledger.graph.sources("parameter") for out in place.node.outputs]
    return parameters[0] if parameters else "float32"


def intensity(ledger: Ledger, traffic: str = "unfused", module: str | None = None) -> Expr:
    """Product FLOPs for each byte moved, as an exact quotient of formulas.

    `traffic` "unfused" and "fused" take the bytes of the kernels; "products" those of the products alone,
    each tensor from outside the step read once, each result written once and never read back: the count of
    Stanford CS336 (lecture 10). `module` takes one module's kernels. Raises SizeError for a module that
    computes nothing.
    """
    if traffic not in TRAFFIC:
        raise SizeError(f"traffic = {traffic!r}: choose from {', '.join(TRAFFIC)}")
    chosen = [k for k in kernels(ledger, traffic == "fused") if module in (None, k.last.module)]
    if not chosen:
        raise SizeError(f"{ledger.graph.target}: no kernel runs in a module {module!r}")
    moved = _products_alone(ledger, chosen) if traffic == "products" else add(k.bytes for k in chosen)
    return quotient(add(k.product for k in chosen), moved)


def quotient(above: Expr, below: Expr) -> Expr:
    """A quotient of expanded formulas without common monomials; of polynomials also without common sums.

    One term above has monomials for divisors only; where sizes are rounded, no polynomial division is tried.
    """
    if below == 0 or above == 0:
        return sp.Integer(0)
    if above.is_Add and not (above.has(sp.Function) or below.has(sp.Function)):
        return sp.cancel(above / below)
    return sp.factor_terms(above) / sp.factor_terms(below)


def _products_alone(ledger: Ledger, chosen: Iterable[Kernel]) -> Expr:
    tensors = ledger.graph.tensors()
    outside = {
        out.value: place.loops
        for place in ledger.graph.placed()
        if place.node.op in SOURCES
        for out in place.node.outputs
    }
    read: dict[str, Expr] = {}
    written = []
    for kernel in chosen:
        if kernel.product == 0:
            continue
        written.append(kernel.written)
        for ref in kernel.last.place.node.refs:
            tensor = tensors[ref.value]
            if tensor.storage in outside:
                read[tensor.storage] = sp.expand(total_over(tensor.bytes, outside[tensor.storage]))
    return add((*read.values(), *written))


def _work(kernel: Kernel, sizes: Mapping[str, int], spread: int) -> tuple[Kernel, int, int, int]:
    product, other, moved = (_whole(expr, sizes, kernel) for expr in (kernel.product, kernel.other, kernel.bytes))
    ranks = spread if kernel.last.phase == "optimizer" else 1
    return kernel, -(-product // ranks), -(-other // ranks), -(-moved // ranks)


def _whole(expr: Expr, sizes: Mapping[str, int], kernel: Kernel) -> int:
    value = evaluate(expr, sizes)
    if not isinstance(value, int):
        where = f"{kernel.last.op} in {kernel.last.module or 'the model itself'}"
        raise SizeError(
            f"{where} costs {value} at these sizes, which is no integer: a divisibility is broken"
        )
    return value


def _vector_peak(device: Device) -> int | None:
    try:
        return device.peak(_VECTOR)
    except DeviceError:
        return None


def _limit(computing: Fraction, moving: Fraction) -> str:
    return "compute" if computing > moving else "memory"


def _name(kernel: Kernel) -> str:
    """Where a kernel's time is booked: its last op's module, or the part of the step that has none."""
    if kernel.last.phase == "optimizer":
        return "optimizer step"
    return kernel.last.module or ("loss" if kernel.last.phase == "loss" else "(the model itself)")
