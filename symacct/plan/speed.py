"""What a measured step says: achieved FLOP/s, MFU and HFU, tokens and bytes a second, all from integers.

Times are whole nanoseconds of a clock. The clock, and the step that it times, are arguments: nothing here
knows torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import quantiles
from typing import Any

from sympy import Expr

from symacct.account import Ledger
from symacct.devices import Device, precision_of
from symacct.evaluation import Number, evaluate
from symacct.plan.roofline import Roofline, chief_dtype, model_flops, roofline
from symacct.plan.training_time import samples_of, tokens_of

Clock = Callable[[], int]
SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Product:
    """A square product that was timed: side, dtype (torch's name), and the least nanoseconds of several."""

    side: int
    dtype: str
    nanoseconds: int

    @property
    def rate(self) -> Fraction:
        """FLOP/s."""
        return Fraction(2 * self.side**3 * SECOND, max(self.nanoseconds, 1))


@dataclass(frozen=True, slots=True)
class Timing:
    """What a run of the step left: nanoseconds of each timed step, and the device that it ran on.

    `peak` is the most memory that tensors held at once, in bytes; None where the device does not count it.
    `narrow` says that float32 products were allowed to run in tf32.
    """

    nanoseconds: tuple[int, ...]
    warmup: int
    device: str
    named: str
    product: Product
    peak: int | None = None
    narrow: bool = False


def timed(
    step: Callable[[Any], Any],
    count: int,
    warmup: int,
    clock: Clock,
    prepare: Callable[[], Any] = lambda: None,
) -> tuple[int, ...]:
    """Nanoseconds of `count` steps after `warmup` others. `prepare` makes what a step works on, untimed."""
    found = []
    for at in range(warmup + count):
        given = prepare()
        begin = clock()
        step(given)
        end = clock()
        if at >= warmup:
            found.append(end - begin)
    return tuple(found)


@dataclass(frozen=True)
class Speed:
    """A ledger at sizes and the timing of its step there. `card` is what MFU is measured against."""

    ledger: Ledger
    sizes: Mapping[str, int]
    timing: Timing
    card: Device | None = None
    precision: str | None = None

    @property
    def seconds(self) -> tuple[Fraction, ...]:
        """Of each step, in order."""
        return tuple(Fraction(max(n, 1), SECOND) for n in self.timing.nanoseconds)

    @property
    def quartiles(self) -> tuple[Fraction, Fraction, Fraction]:
        """A quarter, half and three quarters of the steps took no longer."""
        if len(self.seconds) == 1:
            return self.seconds * 3
        first, median, third = quantiles(self.seconds, n=4, method="inclusive")
        return first, median, third

    @property
    def median(self) -> Fraction:
        """Seconds of the middle step."""
        return self.quartiles[1]

    @property
    def spread(self) -> Fraction:
        """The middle half of the steps, as a part of the median."""
        return (self.quartiles[2] - self.quartiles[0]) / self.median

    @property
    def model_flops(self) -> Number:
        """What MFU counts, under the ledger's convention."""
        return evaluate(model_flops(self.ledger), self.sizes)

    @property
    def hardware_flops(self) -> Number | None:
        """With what is computed again in backward; None for a pass without backward."""
        flops = self.ledger.formulas.get("flops.hardware")
        if flops is None:
            return None
        return evaluate(2 * flops if self.ledger.convention.unit == "MAC" else flops, self.sizes)

    @property
    def bytes(self) -> Number:
        """Read and written if each op runs alone."""
        found = self.ledger.formulas
        return evaluate(found["bytes.read"] + found["bytes.written"], self.sizes)

    @property
    def work(self) -> tuple[str, Expr] | None:
        """What a step works on, and how many: tokens, else samples; None where its inputs do not tell."""
        graph = self.ledger.graph
        tokens, samples = tokens_of(graph), samples_of(graph)
        if tokens is not None:
            return "tokens", tokens
        return ("samples", samples) if samples is not None else None

    def per_second(self, amount: Number) -> Fraction:
        """An amount of one step in each second, by the median."""
        return Fraction(amount) / self.median

    @property
    def peaks(self) -> dict[str, tuple[str, Fraction]]:
        """What FLOP/s are measured against: "card" by the table, "product" as measured; with its words."""
        product = self.timing.product
        found = {"product": (f"a product of {product.side}³ in {product.dtype}, measured here", product.rate)}
        if self.card is None:
            return found
        precision = self.at_precision
        return {
            "card": (f"{self.card.name}, {precision} by the table", Fraction(self.card.peak(precision)))
        } | found

    @property
    def at_precision(self) -> str:
        """The card's peak that counts: the one asked for, else that in which the model's products ran."""
        own = precision_of(chief_dtype(self.ledger, self.sizes))
        return self.precision or ("tf32" if own == "fp32" and self.timing.narrow else own)

    def utilisation(self, flops: Number) -> dict[str, Fraction]:
        """These FLOPs of a step against each peak."""
        return {name: self.per_second(flops) / peak for name, (_, peak) in self.peaks.items()}

    @property
    def roof(self) -> Roofline | None:
        """The roofline of the step on the card, if it has a bandwidth."""
        if self.card is None or self.card.bandwidth is None:
            return None
        return roofline(self.ledger, self.card, self.sizes, self.precision or self._narrowed)

    @property
    def _narrowed(self) -> str | None:
        return "tf32" if self.timing.narrow and self.at_precision == "tf32" else None
