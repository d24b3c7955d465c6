"""The answer of a search over degrees: the front, the fastest first, and why every other configuration
lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from symacct.plan.search import BIG, COLUMNS, Outcome
from symacct.plan.setting import Setting
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped, size
from symacct.report.rates import duration

SHOWN = 20
_INDENT = 13
_FRONT = (
    Column("--parallel"),
    Column("peak, at most", "right"),
    Column("a step takes", "right"),
    Column("MFU", "right"),
)
_NAMES = {"t": "tp", "c": "cp", "e": "ep", "p": "pp"}


def as_text(
    outcome: Outcome, setting: Setting, page: Page, target: str, sizes: Mapping[str, int], flops: float
) -> None:
    """What was searched and how time is taken, the front, and the reasons of the rest. `flops` are model
    FLOPs a step.
    """
    page.line(
        f"{target} · training step · {grouped(setting.batch)} samples on {grouped(setting.cards)} cards",
        "bold",
    )
    page.hanging("card", _card(setting), _INDENT, " · ")
    page.hanging("sizes", [f"{name} = {grouped(value)}" for name, value in sizes.items()], _INDENT, " · ")
    page.hanging("time is", _model(setting), _INDENT, "; ")
    page.line()
    front = outcome.front
    page.line(
        f"{grouped(len(outcome.seconds))} configurations, "
        f"{len(front)} of them on the front of time and memory",
        "bold",
    )
    if len(front):
        page.grid(Grid(_FRONT, tuple(_row(outcome, row, setting, flops) for row in front[:SHOWN])))
        if len(front) > SHOWN:
            page.line(f"… and {len(front) - SHOWN} more, slower and in less memory; --format json lists all")
        page.line(
            "the peak is that of the fullest rank, the bound that plan --parallel gives with its formulas"
        )
    else:
        page.line("none is left", "bold")
    page.line()
    page.grid(
        Grid(
            (
                Column("why the others lost"),
                Column("how many", "right"),
                Column("the one that came nearest", "text"),
            ),
            tuple(_losers(outcome, setting)),
        )
    )


def _card(setting: Setting) -> list[str]:
    card = setting.card
    asked = f" (asked for as {card.asked})" if card.asked not in ("", card.name) else ""
    return [
        f"{card.name}{asked}",
        f"{size(card.needed('memory'))} of memory",
        f"{setting.card.peak(setting.precision) / 1e12:.4g} TFLOP/s in {setting.precision}, dense",
    ]


def _model(setting: Setting) -> list[str]:
    link = (
        f"{setting.card.link / 2e9:.4g} GB/s one way within {setting.node} cards"
        if setting.card.link
        else "no figure for links within a node"
    )
    network = (
        f"{setting.network / 1e9:.4g} GB/s beyond" if setting.network else "the same beyond (give --network)"
    )
    return [
        f"arithmetic at {100 * setting.efficiency:.4g} % of the peak, longer by (pp - 1)/(v·m)",
        f"traffic by ring at {link}, {network}",
        "that of tp, cp, ep and pp waited for, that of dp beside the backward pass",
    ]


def _row(outcome: Outcome, row: int, setting: Setting, flops: float) -> tuple[str, ...]:
    mfu = flops / (setting.cards * setting.card.peak(setting.precision) * outcome.seconds[row])
    held, took = int(outcome.bytes[row]), float(outcome.seconds[row])
    return spelled(outcome, row), size(held).partition(" (")[0], duration(took), f"{100 * mfu:.1f} %"


def _losers(outcome: Outcome, setting: Setting) -> list[tuple[str, ...]]:
    found = []
    for code in np.unique(outcome.reason):
        rows = np.flatnonzero(outcome.reason == code)
        if code == 0:
            continue
        why = outcome.reasons[code]
        key = outcome.bytes if why == BIG else outcome.seconds
        near = rows[np.argmin(key[rows])]
        short = (
            f", short by {size(int(outcome.bytes[near]) - setting.card.needed('memory'))}"
            if why == BIG
            else ""
        )
        found.append((why, grouped(len(rows)), spelled(outcome, int(near)) + short))
    return sorted(found, key=lambda line: -int(line[1].replace(",", "")))


def spelled(outcome: Outcome, row: int) -> str:
    """A configuration as `--parallel` takes it, with its batch and recomputation."""
    way = outcome.ways[outcome.way[row]]
    words = []
    for name in COLUMNS:
        value, key = int(outcome.columns[name][row]), _NAMES.get(name, name)
        if name == "B":
            continue
        if value > (0 if name == "zero" else 1):
            words.append(f"{key}={value}")
    words += ["sp"] if way.sequence else []
    beside = f"B={int(outcome.columns['B'][row])}" + (
        "" if way.recompute == "none" else f", --checkpoint {way.recompute}"
    )
    return f"{','.join(words) or 'dp=1'} with {beside}"


def as_json(outcome: Outcome, setting: Setting, target: str, sizes: Mapping[str, int], flops: float) -> str:
    """One object: what was asked, the front in full, and every other configuration with its reason."""

    def listed(row: int) -> dict[str, Any]:
        way = outcome.ways[outcome.way[row]]
        return {
            **{_NAMES.get(name, name): int(outcome.columns[name][row]) for name in COLUMNS},
            "sp": way.sequence, "recompute": way.recompute, "bytes": int(outcome.bytes[row]),
            "seconds": float(outcome.seconds[row]),
        }  # fmt: skip

    losers = [
        {**listed(int(row)), "reason": outcome.reasons[outcome.reason[row]]}
        for row in np.flatnonzero(outcome.reason)
    ]
    body = {
        "target": target, "sizes": dict(sizes), "cards": setting.cards, "samples": setting.batch,
        "card": setting.card.name, "precision": setting.precision, "efficiency": setting.efficiency,
        "node": setting.node, "network": setting.network,
        "model_flops": flops, "front": [listed(int(row)) for row in outcome.front], "others": losers,
    }  # fmt: skip
    return json.dumps(body, indent=2, ensure_ascii=False)
