"""The answer of `measure`: how long a step took, and how near that is to what the device can do."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from symacct.evaluation import evaluate
from symacct.plan.speed import Speed
from symacct.report.answer import Answer
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import flops, grouped, size
from symacct.report.rates import duration, percent, rate
from symacct.report.summary import headline, sizes

_TABLE = 80  # below it, lines instead of a table
_LABEL = 17
_NOT_COUNTED = "skipped: torch counts the memory of tensors on CUDA only"


def as_text(page: Page, answer: Answer, speed: Speed) -> None:
    """The head, the time of a step, and what it achieved."""
    timing = speed.timing
    page.line(headline(answer), "bold")
    page.hanging("sizes", sizes(answer), 13, " · ")
    page.hanging("measured on", [f"{timing.named} ({timing.device}), {_steps(speed)}"], 13)
    page.line()
    if page.width >= _TABLE:
        columns = (Column("what"), Column("value", "right"), Column("of what", "text"))
        page.grid(Grid(columns, tuple(_rows(speed))), heading=False)
    else:
        for label, value, words in _rows(speed):
            page.hanging(label, [f"{value} · {words}"], _LABEL)
    for note in _notes(speed):
        page.hanging("note", [note], 13)


def _steps(speed: Speed) -> str:
    count = len(speed.timing.nanoseconds)
    return f"{count} step{'s' * (count != 1)} after {speed.timing.warmup} of warm-up"


def _rows(speed: Speed) -> Iterator[tuple[str, str, str]]:
    first, median, third = speed.quartiles
    between = f"half of the steps between {duration(first)} and {duration(third)}"
    yield (
        "step",
        duration(median),
        f"median; {between}; fastest {duration(min(speed.seconds))}, slowest {duration(max(speed.seconds))}",
    )
    if speed.work is not None:
        word, amount = speed.work
        number = evaluate(amount, speed.sizes)
        yield (
            f"{word} a second",
            grouped(round(speed.per_second(number))),
            f"{grouped(int(number))} {word} a step",
        )
    yield from _flops(speed, "model", "MFU", speed.model_flops)
    hardware = speed.hardware_flops
    if hardware is not None and hardware != speed.model_flops:
        yield from _flops(speed, "hardware", "HFU", hardware)
    yield "bytes", rate(speed.per_second(speed.bytes), "B"), _bytes(speed)
    yield from _roof(speed)
    yield "peak memory", *_peak(speed)


def _flops(speed: Speed, kind: str, name: str, number: Any) -> Iterator[tuple[str, str, str]]:
    yield f"{kind} FLOPs", rate(speed.per_second(number), "FLOP"), f"{flops(round(number))} a step"
    shares = speed.utilisation(number)
    for at, (words, peak) in speed.peaks.items():
        yield f"{name}", percent(shares[at]), f"of {rate(peak, 'FLOP')}: {words}"


def _bytes(speed: Speed) -> str:
    words = f"{size(int(speed.bytes)).partition(' (')[0]} a step, were each op alone"
    if speed.card is None or speed.card.bandwidth is None:
        return words
    share = percent(speed.per_second(speed.bytes) / speed.card.bandwidth)
    return f"{words}; {share} of {rate(speed.card.bandwidth, 'B')} of {speed.card.name}"


def _roof(speed: Speed) -> Iterator[tuple[str, str, str]]:
    found = speed.roof
    if found is not None:
        least = found.unfused.seconds
        yield (
            "roofline",
            percent(least / speed.median),
            f"of the time is what these ops need at least on {found.device.name}, {duration(least)}; "
            f"{duration(found.fused.seconds)} with fused chains",
        )


def _peak(speed: Speed) -> tuple[str, str]:
    foretold = speed.ledger.formulas.get("bytes.peak")
    said = "" if foretold is None else f"{size(int(evaluate(foretold, speed.sizes)))} by the formula"
    if speed.timing.peak is None:
        return "—", f"{_NOT_COUNTED}{f'; {said}' if said else ''}"
    return size(speed.timing.peak).partition(" (")[
        0
    ], f"torch.cuda.max_memory_allocated{f'; {said}' if said else ''}"


def _notes(speed: Speed) -> Iterator[str]:
    if speed.card is None:
        yield "no --card: FLOP/s are compared with the measured product only"
    over = [name for name, share in speed.utilisation(speed.model_flops).items() if share > 1]
    if over:
        yield (
            f"MFU passes 100 % of the {' and the '.join(over)}: the peak is not this device's, or the FLOPs "
            "that are counted are not all computed (a causal mask's half, with --attention full)"
        )


def as_json(answer: Answer, speed: Speed) -> dict[str, Any]:
    """The answer for `json.dumps`: nanoseconds, FLOPs and bytes exact, rates and shares as numbers."""
    timing, hardware = speed.timing, speed.hardware_flops
    first, median, third = speed.quartiles
    work: dict[str, Any] | None = (
        None
        if speed.work is None
        else {"unit": speed.work[0], "a_step": int(evaluate(speed.work[1], speed.sizes))}
    )
    found = speed.roof
    return {
        "target": answer.ledger.graph.target,
        "mode": answer.ledger.graph.mode,
        "sizes": dict(speed.sizes),
        "convention": answer.ledger.convention.as_json(),
        "device": {"kind": timing.device, "name": timing.named},
        "steps": {
            "count": len(timing.nanoseconds),
            "warmup": timing.warmup,
            "nanoseconds": list(timing.nanoseconds),
            "median_seconds": float(median),
            "quartiles_seconds": [float(first), float(third)],
            "spread": float(speed.spread),
        },
        "work": None if work is None else work | {"per_second": float(speed.per_second(work["a_step"]))},
        "flops": {
            "model": _exact(speed.model_flops),
            "hardware": None if hardware is None else _exact(hardware),
        },
        "flops_per_second": float(speed.per_second(speed.model_flops)),
        "peaks": {
            name: {"flops_per_second": float(peak), "what": words}
            for name, (words, peak) in speed.peaks.items()
        },
        "mfu": {name: float(share) for name, share in speed.utilisation(speed.model_flops).items()},
        "hfu": None
        if hardware is None
        else {name: float(share) for name, share in speed.utilisation(hardware).items()},
        "bytes": _exact(speed.bytes),
        "bytes_per_second": float(speed.per_second(speed.bytes)),
        "product": {
            "side": timing.product.side,
            "dtype": timing.product.dtype,
            "flops_per_second": float(timing.product.rate),
        },
        "roofline": None
        if found is None
        else {"unfused_seconds": float(found.unfused.seconds), "fused_seconds": float(found.fused.seconds)},
        "peak_memory": {
            "measured": timing.peak,
            "skipped": _NOT_COUNTED if timing.peak is None else None,
            "formula": answer.number(answer.formulas["bytes.peak"])
            if "bytes.peak" in answer.formulas
            else None,
        },
    }


def _exact(number: int | Fraction) -> int | str:
    return number if isinstance(number, int) else str(number)
