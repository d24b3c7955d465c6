"""Pipeline parallelism: which layers a stage holds, how many micro-batches are under way on it, and how long it waits.

Schedules: 1F1B (Narayanan et al. 2019) and interleaved 1F1B with `v` parts of the model on each stage (Narayanan et
al. 2021, section 2.2). Stage i of p has min(m, p - i) micro-batches under way in 1F1B. Interleaved it runs
(v - 1)·p + 2(p - i - 1) passes of a part ahead and one more, so the first stage keeps L·(1 + (p - 1)/(p·v)) layers
(Korthikanti et al. 2022, section 4.2.3) and up to 2p passes of what stands before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from sympy import Expr


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: how it is called, its share of the layers, what stands before and after them, passes under way.

    `under_way`: passes of its layers whose activations it keeps at once; `entered`: passes of what stands before them.
    """

    name: str
    layers: Expr
    before: bool
    after: bool
    under_way: Expr
    entered: Expr


def stages(p: Expr, m: Expr, v: Expr, count: int, micro_batches: int, interleave: int) -> tuple[Stage, ...]:
    """The kinds of stages: the first, the second (of those in between it has most under way) and the last.

    One alone where there is no pipeline. `count`, `micro_batches` and `interleave` are the numbers behind the symbols
    p, m and v: they decide which of two counts is the smaller one.
    """
    one = sp.Integer(1)
    if count == 1:
        return (Stage("every rank", one, True, True, one, one),)
    way = lambda i: _under_way(i, p, m, v, count, micro_batches, interleave)  # noqa: E731
    entered = way(0) if interleave == 1 else sp.Min(m, 2 * p) if micro_batches < 2 * count else 2 * p
    found = [Stage("first stage", 1 / p, True, False, way(0), entered)]
    if count > 2:
        found.append(Stage("second stage", 1 / p, False, False, way(1), one))
    return (*found, Stage("last stage", 1 / p, False, True, way(count - 1), one))


def _under_way(i: int, p: Expr, m: Expr, v: Expr, count: int, micro_batches: int, interleave: int) -> Expr:
    """Passes of all layers of stage i under way at once: min(m, p - i), interleaved (v·p + p - 1 - 2i)/v."""
    last = i == count - 1
    if interleave == 1:
        return m if micro_batches < count - i else sp.Integer(1) if last else p - i
    parts = v * p + p - 1 - 2 * (p - 1 if last else i)
    if micro_batches * interleave < interleave * count + count - 1 - 2 * i:
        return m
    return sp.expand(parts / v)


def bubble(p: Expr, m: Expr, v: Expr) -> Expr:
    """Idle time of a stage as a share of its working time: (p - 1)/(v·m) (Narayanan et al. 2021, section 2.2)."""
    return sp.cancel((p - 1) / (v * m))
