"""Every way to spread a step over a number of cards: evaluated at once, the best that fit, and why each
other loses.

The model of time is simple and stated: arithmetic at `efficiency` of the peak, and longer by the pipeline's
idle share; tensor, context, expert and pipeline traffic is waited for, at the card's links within a node
and at the network's rate beyond it; data-parallel traffic runs beside the backward pass, two thirds of the
arithmetic, and what is left of it is waited for. Bytes are the peak of the fullest rank, at most, as
`parallel` counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symacct.errors import SizeError
from symacct.plan.rows import Arrays, bytes_of, given_of, numeric, seconds_of
from symacct.plan.setting import Setting
from symacct.plan.shares import Share, Way

_CHUNK = 1 << 14  # rows whose arrays stay in cache
BIG, BEATEN = "does not fit", "no faster than one that needs no more memory"
COLUMNS = ("dp", "t", "c", "e", "p", "v", "m", "B", "zero")


@dataclass(frozen=True)
class Outcome:
    """Every configuration of a search, one row each in every array.

    `columns` are the degrees, `way` the index of the way in `ways`, `bytes` the peak of the fullest rank,
    at most, `seconds` a step's time. `reason` is an index into `reasons`: 0 for those on the front, else
    why a row loses.
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
    """All configurations of these ways on `setting.cards` cards. Raises SizeError where none divides the
    cards.
    """
    parts = [(number, share, grid(share, setting)) for number, share in enumerate(shares)]
    parts = [(number, share, columns) for number, share, columns in parts if len(columns["dp"])]
    if not parts:
        raise SizeError(
            f"no degrees make {setting.cards} cards and {setting.batch} samples; "
            "choose numbers with more divisors"
        )
    reasons = ["", BIG, BEATEN]
    found = [evaluated(share, columns, setting, batch, reasons) for _, share, columns in parts]
    columns = {name: np.concatenate([c[name] for _, _, c in parts]) for name in COLUMNS}
    way = np.concatenate([np.full(len(c["dp"]), number) for number, _, c in parts])
    held, seconds, said = (np.concatenate([f[k] for f in found]) for k in range(3))
    reason = np.where((said == 0) & (held > setting.card.needed("memory")), reasons.index(BIG), said)
    held = np.floor(held * (1 + 2.0**-46))  # whole bytes are exact in spite of rounding
    return Outcome(
        tuple(share.way for share in shares),
        columns,
        way,
        held,
        seconds,
        _dominated(held, seconds, reason),
        tuple(reasons),
    )


def grid(share: Share, setting: Setting) -> dict[str, Any]:
    """All degrees of a way: data, context, expert and pipeline ranks, parts of a stage, micro-batches, ZeRO
    stage.
    """
    left = setting.cards // share.way.tensor if setting.cards % share.way.tensor == 0 else 0
    blocks = [np.empty((len(COLUMNS), 0), dtype=np.int64)]
    for p in _divisors(left) if left else ():
        for c in _divisors(left // p):
            dp = left // p // c
            if (c > 1) == share.way.context and setting.batch % dp == 0:
                each = setting.batch // dp
                passes = [B for B in _divisors(each) if share.way.adds in (None, each > B)]
                choices = (
                    _spread(share, dp * c),
                    _parts(share, p),
                    passes,
                    range(4 if dp * c > 1 else 1),
                )
                e, v, B, zero = (x.ravel() for x in np.meshgrid(*map(np.array, choices), indexing="ij"))
                blocks.append(
                    np.stack(
                        [
                            *(np.full_like(B, x) for x in (dp, share.way.tensor, c)),
                            e,
                            np.full_like(B, p),
                            v,
                            each // B,
                            B,
                            zero,
                        ]
                    )
                )
    return dict(zip(COLUMNS, np.concatenate(blocks, axis=1), strict=True))


def _spread(share: Share, ranks: int) -> list[int]:
    """Over how many of the data and context ranks experts may be spread."""
    return [e for e in _divisors(ranks) if e <= max(share.experts, 1)]


def _parts(share: Share, p: int) -> list[int]:
    """Of how many parts a stage may be: 1, and with stages each divisor of its layers."""
    return _divisors(share.layers // p) if p > 1 and share.layers and share.layers % p == 0 else [1]


def evaluated(
    share: Share, columns: Arrays, setting: Setting, batch: str, reasons: list[str]
) -> tuple[Any, Any, Any]:
    """Bytes of the fullest rank, seconds of a step and what forbids it, by its number in `reasons`, for
    every row.
    """
    pieces = []
    for start in range(0, len(columns["dp"]), _CHUNK):
        rows = {name: column[start : start + _CHUNK] for name, column in columns.items()}
        pieces.append(
            (
                bytes_of(share, rows, batch),
                seconds_of(share, rows, setting, batch),
                _forbidden(share, rows, batch, reasons),
            )
        )
    held, seconds, said = (np.concatenate([piece[k] for piece in pieces]) for k in range(3))
    return held, seconds, said


def _forbidden(share: Share, columns: Arrays, batch: str, reasons: list[str]) -> Any:
    p, m, e, given = columns["p"], columns["m"], columns["e"], given_of(columns, batch)
    said = np.zeros(len(p), dtype=np.int16)

    def because(where: Any, why: str) -> None:
        if why not in reasons:
            reasons.append(why)
        said[where & (said == 0)] = reasons.index(why)

    for text, multiple, divisor in share.conditions:
        because(np.mod(numeric(multiple, given), numeric(divisor, given)) != 0, f"breaks {text}")
    if not share.layers:
        because(p > 1, "its layers cannot be cut into stages")
    else:
        what = "layers" if share.layers == share.depth else "groups of layers"
        because(share.layers % p != 0, f"the stages do not divide {share.layers} {what}")
    if share.experts:
        because(share.experts % e != 0, f"the ranks of experts do not divide {share.experts} experts")
    because(m < p, "fewer micro-batches than stages leave some without work")
    because(
        (columns["v"] > 1) & (m % p != 0),
        "the micro-batches are no multiple of the stages, as parts of stages in turn need",
    )
    return said


def _dominated(held: Any, seconds: Any, reason: Any) -> Any:
    """The reasons, with one for each row that another beats: no slower in no more memory."""
    rows = np.flatnonzero(reason == 0)
    order = rows[np.lexsort((held[rows], seconds[rows]))]
    best = np.minimum.accumulate(held[order])
    reason = reason.copy()
    reason[order[1:][held[order[1:]] >= best[:-1]]] = 2
    return reason


def _divisors(n: int) -> list[int]:
    return (
        [k for k in range(1, n + 1) if n % k == 0]
        if n < 1 << 14
        else sorted({d for k in range(1, int(n**0.5) + 1) if n % k == 0 for d in (k, n // k)})
    )


def ways(tensor: Iterable[int], traced: Iterable[tuple[str, bool | None]], context: bool) -> list[Way]:
    """Every way of these tensor-parallel degrees and graphs, with and without sequence and context
    division.
    """
    return [
        Way(recompute, t, sequence, divided, adds)
        for recompute, adds in traced
        for t in tensor
        for sequence in ((False, True) if t > 1 else (False,))
        for divided in ((False, True) if context else (False,))
    ]
