"""What the configurations of a search cost, one row each: bytes of the fullest rank, seconds of a step, in
arrays.

The same arithmetic as `parallel.rank` does on formulas, here on numbers, for many degrees of one way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr

from symacct.parallel.holdings import AFTER, BEFORE, INSIDE
from symacct.parallel.peak import Nature
from symacct.plan.moments import Moments
from symacct.plan.setting import Setting
from symacct.plan.shares import Held, Share
from symacct.plan.waiting import waited

Arrays = Mapping[str, Any]
_SIDES = ((BEFORE, AFTER), (AFTER, BEFORE))  # the end of the layers that a stage has, and the other one


def given_of(columns: Arrays, batch: str) -> dict[str, Any]:
    """The sizes that a share's formulas are left in."""
    context = columns["c"].astype(float)
    return {batch: columns["B"].astype(float), "c": context, "cp": context}


# Bytes


def bytes_of(share: Share, columns: Arrays, batch: str) -> Any:
    """The peak of the fullest rank, at most. It is on the first or the last stage.

    Where deaths follow no rule, what is alive for sure as backward begins and as the optimizer steps.
    """
    given = given_of(columns, batch)
    kept = {where: numeric(expr, given) for where, expr in share.kept.items()}
    found = [_on_stage(share, columns, given, kept, last) for last in (False, True)]
    return np.maximum(*found)


def _on_stage(share: Share, columns: Arrays, given: Arrays, kept: Arrays, last: bool) -> Any:
    p, m, v = columns["p"], columns["m"], columns["v"]
    mine, other = _SIDES[last]
    under_way = _under_way(p - 1 if last else 0, p, m, v)
    entered = np.where(last & (p > 1), 0, _entered(p, m, v))
    inside = kept[INSIDE] / p
    whole = inside * under_way + kept[BEFORE] * entered + kept[AFTER] * np.where(p == 1, 1, int(last))
    states = [
        _states(share, columns, held, least, mine, other)
        for held, least in ((share.params, 3), (share.grads, 2), (share.states, 1))
    ]
    counts = sum(
        _of_stage(share.scalars, x, p, mine, other) / (columns["e"] if x else 1) for x in (False, True)
    )
    if share.moments is None:
        return states[0] + states[2] + counts + np.maximum(whole, states[1])
    others = inside * (under_way - 1) + kept[BEFORE] * np.maximum(entered - 1, 0)
    beside = others + _gathered(share, columns, mine, other) + np.where(m > 1, states[1], 0)
    return _alive(share.moments, columns, given, share.depth, last) + beside


def _alive(moments: Moments, columns: Arrays, given: Arrays, layers: int, last: bool) -> Any:
    """The most that is alive at a moment of one pass."""
    p = columns["p"]
    depth = layers / p
    known = {**given, moments.depth: depth}
    monomials = [numeric(expr, known) for expr in moments.monomials]
    weights = [_weight(nature, columns, last) for nature in moments.natures]
    sizes = np.empty((len(moments.columns), len(p)))
    for row, (nature, monomial, behind) in zip(sizes, moments.columns, strict=True):
        np.multiply(
            weights[nature], monomials[monomial] * (depth - 1) if behind else monomials[monomial], out=row
        )
    return (moments.bytes @ sizes).max(axis=0)


def _weight(nature: Nature, columns: Arrays, last: bool) -> Any:
    """The part of a storage of this nature that a rank holds, as `parallel.peak` has it."""
    n, e, p = columns["dp"] * columns["c"], columns["e"], columns["p"]
    here = not {BEFORE, AFTER}.issuperset(nature.where) or (AFTER if last else BEFORE) in nature.where
    part: Any = 1.0 if here else p == 1
    if nature.gradient:
        part = part * (columns["m"] == 1)
    if nature.apart:
        part = part / e
    return part / np.where(columns["zero"] >= nature.least, n / e if nature.expert else n, 1)


def _under_way(i: Any, p: Any, m: Any, v: Any) -> Any:
    """Passes of all layers of stage i that are under way at once, as in `parallel.pipeline`."""
    parts = v * p + p - 1 - 2 * i
    return np.where(p == 1, 1, np.where(v == 1, np.minimum(m, p - i), np.where(m * v < parts, m, parts / v)))


def _entered(p: Any, m: Any, v: Any) -> Any:
    """Passes under way of what stands before the layers."""
    return np.where(p == 1, 1, np.minimum(m, np.where(v == 1, p, 2 * p)))


def _states(share: Share, columns: Arrays, held: Held, least: int, mine: str, other: str) -> Any:
    """Bytes of weights, gradients or states on a stage, divided from a ZeRO stage on."""
    n, e, divided = columns["dp"] * columns["c"], columns["e"], columns["zero"] >= least
    whole, apart = (_of_stage(held, x, columns["p"], mine, other) for x in (False, True))
    return whole / np.where(divided, n, 1) + apart / np.where(divided, n, e)


def _gathered(share: Share, columns: Arrays, mine: str, other: str) -> Any:
    """What FSDP gathers for a while: the largest unit, perhaps the one ahead, its gradient; the root and
    its gradient. On a stage of a pipeline, all of it with its gradients. With ZeRO stage 2 gradients alone,
    of a unit and the root.
    """
    e, p, gathering = columns["e"], columns["p"], share.gathering
    here = [
        sum((held[INSIDE, x] + _outside(held, x, p, mine, other)) / (e if x else 1) for x in (False, True))
        for held in (*gathering.units, gathering.root)
    ]
    unit = np.maximum.reduce(np.broadcast_arrays(*here[:-1])) if gathering.units else 0
    each = sum(_of_stage(gathering.each, x, p, mine, other) / (e if x else 1) for x in (False, True))
    most = np.where(p > 1, 2 * each, (3 if gathering.ahead else 2) * unit)
    zero = columns["zero"]
    return np.select([zero == 3, zero == 2], [most + 2 * here[-1], unit + here[-1]], 0)


def _of_stage(held: Held, apart: bool, p: Any, mine: str, other: str) -> Any:
    """Bytes on a stage that stands at the end `mine` of the layers; a single one has both ends."""
    return held[INSIDE, apart] / p + _outside(held, apart, p, mine, other)


def _outside(held: Held, apart: bool, p: Any, mine: str, other: str) -> Any:
    return held["both", apart] + held[mine, apart] + np.where(p == 1, held[other, apart], 0)


# Time


def seconds_of(share: Share, columns: Arrays, setting: Setting, batch: str) -> Any:
    """A step's time, by the model that `search` states."""
    given, p, m = given_of(columns, batch), columns["p"], columns["m"]
    work = work_of(share, given, p) * m / (setting.card.peak(setting.precision) * setting.efficiency)
    sent = sent_of(share, columns, batch)
    rates = _rates(share.way.tensor, columns, setting)
    alone = {axis: sent[axis] / rates[axis] for axis in sent}
    idle = (p - 1) / (columns["v"] * m)
    return work * (1 + idle) + waited(alone, work, np.maximum)


def work_of(share: Share, given: Arrays, p: Any) -> Any:
    """FLOPs of a pass on the rank that has most."""
    before, inside, after = (numeric(share.flops[k], given) for k in (BEFORE, INSIDE, AFTER))
    return inside / p + np.where(p == 1, before + after, np.maximum(before, after))


def sent_of(share: Share, columns: Arrays, batch: str) -> dict[str, Any]:
    """Bytes that a rank sends in a step over each axis, by ring."""
    given, p, m, e = given_of(columns, batch), columns["p"], columns["m"], columns["e"]
    handed = np.where(
        p > 1,
        np.where((p > 2) | (columns["v"] > 1), 2, 1) * numeric(share.handed, given) * m * columns["v"],
        0,
    )
    return {
        "tp": _of_layers(share, "tp", given, p, m),
        "cp": _of_layers(share, "cp", given, p, m),
        "ep": numeric(share.routed, given) * m / p * (e - 1) / e,
        "pp": handed + np.where(p > 1, share.tied, 0),
        "dp": np.maximum(*(_summed(share, columns, *side) for side in _SIDES)),
    }


def _of_layers(share: Share, axis: str, given: Arrays, p: Any, m: Any) -> Any:
    """What is sent within the layers of a stage, and at that end of them which sends more."""
    parts = dict.fromkeys((BEFORE, INSIDE, AFTER), np.zeros(len(p)))
    for (key, place, once), expr in share.sent.items():
        if key == axis:
            parts[place] = parts[place] + numeric(expr, given) * (1 if once else m)
    ends = np.where(p == 1, parts[BEFORE] + parts[AFTER], np.maximum(parts[BEFORE], parts[AFTER]))
    return parts[INSIDE] / p + ends


def _summed(share: Share, columns: Arrays, mine: str, other: str) -> Any:
    """What replicas send; experts are on n/e of the n ranks that hold the rest."""
    n, e, p, m, zero = columns["dp"] * columns["c"], columns["e"], columns["p"], columns["m"], columns["zero"]
    total = 0.0
    called, each, root = share.gathering.called, share.gathering.each, share.gathering.root
    for apart, ranks, parts in ((False, n, 1), (True, n / e, e)):
        weights, grads, units, once, rest = (
            _of_stage(held, apart, p, mine, other) for held in (share.params, share.summed, called, each, root)
        )
        sent = np.where(
            zero == 3,
            np.where(p > 1, units * m + once + rest + grads, (2 * units + rest + grads) * m),
            np.where(zero == 0, 2 * grads, grads * np.where(zero == 2, m, 1) + weights),
        )
        total = total + sent / parts * (ranks - 1) / ranks
    return total


def _rates(tensor: int, columns: Arrays, setting: Setting) -> dict[str, Any]:
    """Bytes a second one way on each axis: ranks of tp are neighbours, then those of ep and cp, dp, and pp.
    """
    c, dp, p, e = (columns[k] for k in ("c", "dp", "p", "e"))
    spans = {
        "tp": np.full_like(dp, tensor),
        "cp": tensor * c,
        "ep": tensor * e,
        "dp": tensor * c * dp,
        "pp": tensor * c * dp * p,
    }
    link = setting.card.link
    near = link / 2 if link else (setting.network or 25_000_000_000)
    return {
        axis: np.where(span <= setting.node, near, setting.network or near) for axis, span in spans.items()
    }


def numeric(expr: Expr, given: Arrays) -> Any:
    """A formula at arrays of sizes, in floating point."""
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
    functions: dict[Any, Callable[[Any], Any]] = {
        sp.floor: np.floor,
        sp.ceiling: np.ceil,
        sp.Max: np.maximum.reduce,
        sp.Min: np.minimum.reduce,
    }
    function = functions[expr.func]
    arguments = [numeric(arg, given) for arg in expr.args]
    return function(arguments[0]) if len(arguments) == 1 else function(np.broadcast_arrays(*arguments))
