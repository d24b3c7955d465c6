"""The second derivation: the same formulas found from runs at plain numbers alone, without a symbolic run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy as sp

from symacct.account import Ledger
from symacct.certificate import Check
from symacct.domain import Domain
from symacct.errors import SymacctError
from symacct.formula_text import to_text
from symacct.symbols import symbol
from symacct.tracing.build import Builder
from symacct.tracing.source import ModelSource

KEYS = ("params.total", "flops.forward", "flops.backward")
ORACLE = "lifting: every size fitted to runs at plain numbers"
_WITNESSES = 60


def lifted(ledger: Ledger, source: ModelSource, notes: dict[str, None]) -> Iterator[Check]:
    """Each formula against its lifted twin. What lifting refuses is no check, and a note says so."""
    graph = ledger.graph
    try:
        builder = Builder(source, graph.mode, graph.device, sampled_in=ledger.domain)
        twin = Ledger(builder.graph(graph.target), ledger.convention, ledger.allow_unknown).formulas
    except SymacctError as error:
        notes[f"lifting as a second derivation is not possible: {error}"] = None
        return
    names = tuple(source.dims)
    for key in KEYS:
        if key not in ledger.formulas or key not in twin:
            continue
        derived, other = ledger.formulas[key], twin[key]
        witness = None if _same(derived, other) else _witness(ledger, names, derived, other)
        if witness is None and not _same(derived, other):
            notes[f"{key}: the lifted formula is written otherwise, and equal at {_WITNESSES} random points"] = None
        where = "" if witness is None else f"they differ at {', '.join(f'{n}={v}' for n, v in witness.items())}"
        yield Check(key, ORACLE, witness or {}, to_text(derived), to_text(other), to_text(derived), witness is None, where)


def _same(one: sp.Expr, other: sp.Expr) -> bool:
    return sp.expand(one - other) == 0


def _witness(ledger: Ledger, names: tuple[str, ...], one: sp.Expr, other: sp.Expr) -> Mapping[str, int] | None:
    """Sizes of the domain at which the two differ, if any of those tried does."""
    domain = Domain(names, ledger.graph.assumptions)
    for _, point in zip(range(_WITNESSES), domain.points(seed=5, low=2, high=40), strict=False):
        numbers = {symbol(name): sp.Integer(value) for name, value in point.items()}
        if one.xreplace(numbers) != other.xreplace(numbers):
            return point
    return None
