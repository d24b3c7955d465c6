"""Every way to spread a step over a number of cards: evaluated at once, the best that fit, and why each other loses.

The model of time is simple and stated: arithmetic at `efficiency` of the peak, and longer by the pipeline's idle
share; tensor, context and pipeline traffic is waited for, at the card's links within a node and at the network's rate
beyond it; data-parallel traffic runs beside the backward pass, two thirds of the arithmetic, and what is left of it is
waited for. A rank's bytes are its states and what it keeps, as `parallel` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.devices import Device
from symacct.errors import SizeError
from symacct.parallel.holdings import AFTER, BEFORE, INSIDE
from symacct.plan.shares import Share, Way

Arrays = Mapping[str, Any]
_CHUNK = 1 << 14  # rows whose arrays stay in cache
BIG, BEATEN = "does not fit", "slower than one that needs no more memory"
COLUMNS = ("dp", "t", "c", "p", "m", "B", "zero")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is searched over and on what: cards in all and in a node, samples in a step, rates in B/s and FLOP/s."""

    cards: int
    batch: int
    card: Device
    precision: str
    efficiency: float = 0.5
    node: int = 8
    network: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Every configuration of a search, one row each in every array.

    `columns` are the degrees, `way` the index of the way in `ways`, `bytes` what the fullest rank holds, `seconds` a
    step's time. `reason` is an index into `reasons`: 0 for those on the front, else why a row loses.
    """

    ways: tuple[Way, ...]
    columns: Arrays
    way: Any
    bytes: Any
    seconds: Any
    reason: Any
    reasons: tuple[str, ...]

    @property
    def front(self) -> Any:
        """Rows of the front, the fastest first."""
        rows = np.flatnonzero(self.reason == 0)
        return rows[np.argsort(self.seconds[rows], kind="stable")]


def search(shares: Sequence[Share], setting: Setting, sizes: Mapping[str, int], batch: str = "B") -> Outcome:
    """All configurations of these ways on `setting.cards` cards. Raises SizeError where none divides the cards."""
    parts = [(number, share, grid(share, setting)) for number, share in enumerate(shares)]
    parts = [(number, share, columns) for number, share, columns in parts if len(columns["dp"])]
    if not parts:
        raise SizeError(f"no degrees make {setting.cards} cards and {setting.batch} samples; choose numbers with more divisors")
    reasons = ["", BIG, BEATEN]
    found = [evaluated(share, columns, setting, batch, reasons) for _, share, columns in parts]
    columns = {name: np.concatenate([c[name] for _, _, c in parts]) for name in COLUMNS}
    way = np.concatenate([np.full(len(c["dp"]), number) for number, _, c in parts])
    held, seconds, said = (np.concatenate([f[k] for f in found]) for k in range(3))
    reason = np.where((said == 0) & (held > setting.card.needed("memory")), reasons.index(BIG), said)
    return Outcome(tuple(share.way for share in shares), columns, way, held, seconds, _dominated(held, seconds, reason), tuple(reasons))


def grid(share: Share, setting: Setting) -> dict[str, Any]:
    """All degrees of a way: data, context and pipeline ranks, micro-batches, batch and ZeRO stage."""
    left = setting.cards // share.way.tensor if setting.cards % share.way.tensor == 0 else 0
    blocks = [np.empty((len(COLUMNS), 0), dtype=np.int64)]
    for p in _divisors(left) if left else ():
        for c in _divisors(left // p):
            dp = left // p // c
            if (c > 1) == share.way.context and setting.batch % dp == 0:
                each = setting.batch // dp
                micro = np.array(_divisors(each), dtype=np.int64)
                zero = np.arange(4 if dp * c > 1 else 1)
                B, stage = (x.ravel() for x in np.meshgrid(micro, zero, indexing="ij"))
                blocks.append(np.stack([np.full_like(B, x) for x in (dp, share.way.tensor, c, p)] + [each // B, B, stage]))
    return dict(zip(COLUMNS, np.concatenate(blocks, axis=1), strict=True))


def evaluated(share: Share, columns: Arrays, setting: Setting, batch: str, reasons: list[str]) -> tuple[Any, Any, Any]:
    """Bytes of the fullest rank, seconds of a step and what forbids it, by its number in `reasons`, for every row."""
    pieces = [
        _piece(share, {name: column[start : start + _CHUNK] for name, column in columns.items()}, setting, batch, reasons)
        for start in range(0, len(columns["dp"]), _CHUNK)
    ]
    held, seconds, said = (np.concatenate([piece[k] for piece in pieces]) for k in range(3))
    return held, seconds, said


def _piece(share: Share, columns: Arrays, setting: Setting, batch: str, reasons: list[str]) -> tuple[Any, Any, Any]:
    given = {batch: columns["B"].astype(float), "c": columns["c"].astype(float), "cp": columns["c"].astype(float)}
    kept = {where: numeric(expr, given) for where, expr in share.kept.items()}
    return _bytes(share, kept, columns), _seconds(share, columns, given, setting), _forbidden(share, columns, reasons)


def _bytes(share: Share, kept: Arrays, columns: Arrays) -> Any:
    n, p, m, zero = columns["dp"] * columns["c"], columns["p"], columns["m"], columns["zero"]
    way = np.minimum(m, p)
    alone = p == 1

    def states(first: bool) -> Any:
        end = BEFORE if first else AFTER
        total = 0.0
        for held, stage in ((share.params, 3), (share.grads, 2), (share.states, 1)):
            whole = held[INSIDE] / p + held["both"] + held[end] + np.where(alone, held[AFTER if first else BEFORE], 0)
            total = total + whole / np.where(zero >= stage, n, 1)
        unit = share.params[INSIDE] / max(share.layers, 1)
        rest = share.params["both"] + share.params[end] + np.where(alone, share.params[AFTER if first else BEFORE], 0)
        single = share.scalars[INSIDE] / p + share.scalars["both"] + share.scalars[end] + np.where(alone, share.scalars[AFTER if first else BEFORE], 0)
        return total + single + np.where(zero == 3, 3 * unit + 2 * rest, 0)

    first = states(True) + (kept[INSIDE] / p + kept[BEFORE]) * way + np.where(alone, kept[AFTER], 0)
    last = states(False) + kept[INSIDE] / p + kept[AFTER] + np.where(alone, kept[BEFORE], 0)
    return np.maximum(first, last)


def _seconds(share: Share, columns: Arrays, given: Arrays, setting: Setting) -> Any:
    dp, c, p, m, zero = (columns[k] for k in ("dp", "c", "p", "m", "zero"))
    before, inside, after = (numeric(share.flops[k], given) for k in (BEFORE, INSIDE, AFTER))
    work = (inside / p + np.where(p == 1, before + after, np.maximum(before, after))) * m / (setting.card.peak(setting.precision) * setting.efficiency)
    tensor = share.way.tensor
    rates = {"tp": _rate(setting, np.full_like(dp, tensor)), "cp": _rate(setting, tensor * c), "dp": _rate(setting, tensor * c * dp), "pp": _rate(setting, tensor * c * dp * p)}
    parts = {end: np.zeros(len(dp)) for end in (BEFORE, INSIDE, AFTER)}
    for (axis, place), expr in share.sent.items():
        parts[place] = parts[place] + numeric(expr, given) * m / rates[axis]
    ends = np.where(p == 1, parts[BEFORE] + parts[AFTER], np.maximum(parts[BEFORE], parts[AFTER]))
    waited = parts[INSIDE] / p + ends + np.where(p > 1, np.where(p > 2, 2, 1) * numeric(share.handed, given) * m / rates["pp"], 0)
    n = dp * c
    gradients, weights = (_of_stage(held, p) * (n - 1) / n for held in (share.grads, share.params))
    beside = np.where(zero == 3, (2 * weights + gradients) * m, np.where(zero == 0, 2 * gradients, gradients * np.where(zero == 2, m, 1) + weights)) / rates["dp"]
    idle = 1 + (p - 1) / m
    return work * idle + waited + np.maximum(0, beside - 2 * work / 3)


def _of_stage(held: Mapping[str, int], p: Any) -> Any:
    """Bytes on the stage that holds most: with the layers one of their ends, on a single stage both."""
    ends = np.where(p == 1, held[BEFORE] + held[AFTER], max(held[BEFORE], held[AFTER]))
    return held[INSIDE] / p + held["both"] + ends


def _rate(setting: Setting, span: Any) -> Any:
    """Bytes a second one way for ranks that span so many neighbouring cards."""
    link = setting.card.link
    near = link / 2 if link else (setting.network or 25_000_000_000)
    far = setting.network or near
    return np.where(span <= setting.node, near, far)


def _forbidden(share: Share, columns: Arrays, reasons: list[str]) -> Any:
    p, m, c = columns["p"], columns["m"], columns["c"].astype(float)
    said = np.zeros(len(p), dtype=np.int16)

    def because(where: Any, why: str) -> None:
        if why not in reasons:
            reasons.append(why)
        said[where & (said == 0)] = reasons.index(why)

    for text, multiple, divisor in share.conditions:
        given = {"c": c, "cp": c}
        because(np.mod(numeric(multiple, given), numeric(divisor, given)) != 0, f"breaks {text}")
    if not share.layers:
        because(p > 1, "its layers cannot be cut into stages")
    else:
        because(share.layers % p != 0, f"the stages do not divide {share.layers} layers")
    because(m < p, "fewer micro-batches than stages leave some without work")
    return said


def _dominated(held: Any, seconds: Any, reason: Any) -> Any:
    """The reasons, with one for each row that another beats: no slower in no more memory."""
    rows = np.flatnonzero(reason == 0)
    order = rows[np.lexsort((held[rows], seconds[rows]))]
    best = np.minimum.accumulate(held[order])
    reason = reason.copy()
    reason[order[1:][held[order[1:]] >= best[:-1]]] = 2
    return reason


def numeric(expr: Expr, given: Arrays) -> Any:
    """A formula at arrays of sizes, in floating point: a search ranks, and what it finds is worked out exactly."""
    if expr.is_Symbol:
        return given[expr.name]
    if expr.is_number:
        return float(expr)
    if expr.is_Add:
        return sum(numeric(arg, given) for arg in expr.args)
    if expr.is_Mul:
        total: Any = 1.0
        for arg in expr.args:
            total = total * numeric(arg, given)
        return total
    if expr.is_Pow:
        return numeric(expr.base, given) ** float(expr.exp)
    functions: dict[Any, Callable[[Any], Any]] = {sp.floor: np.floor, sp.ceiling: np.ceil, sp.Max: np.maximum.reduce, sp.Min: np.minimum.reduce}
    function = functions[expr.func]
    arguments = [numeric(arg, given) for arg in expr.args]
    return function(arguments[0]) if len(arguments) == 1 else function(np.broadcast_arrays(*arguments))


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0] if n < 1 << 14 else sorted({d for k in range(1, int(n**0.5) + 1) if n % k == 0 for d in (k, n // k)})


def ways(tensor: Iterable[int], recompute: Iterable[str], context: bool) -> list[Way]:
    """Every way of these tensor-parallel degrees and recomputations, with and without sequence and context division."""
    return [
        Way(kind, t, sp_, cp) for kind in recompute for t in tensor for sp_ in ((False, True) if t > 1 else (False,)) for cp in ((False, True) if context else (False,))
    ]
