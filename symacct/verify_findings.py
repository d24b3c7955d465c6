"""What a comparison with torch's parallelism found, and the sizes it was made at."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import sympy as sp
from sympy import Expr

from symacct import verify_runs as runs
from symacct.certificate import Check
from symacct.errors import SymacctError, TraceError, Unsupported
from symacct.formula_text import to_text
from symacct.graph import Graph
from symacct.symbols import symbol
from symacct.tracing.source import ModelSource
from symacct.verify_points import points_with

_TRIES = 12


@dataclass
class Findings:
    """Checks, what is to be said of them, and the points at which they were made."""

    checks: list[Check] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    points: list[Mapping[str, int]] = field(default_factory=list)


def models_at(
    source: ModelSource, graph: Graph, given: Mapping[str, int], found: Findings, seed: int
) -> Iterator[tuple[Mapping[str, int], runs.Real]]:
    """Sizes of the divided graph's domain at the given degrees, with the real model there, undivided."""
    names = (*source.dims, *given)
    try:
        for _, point in zip(range(_TRIES), points_with(graph, names, seed, given), strict=False):
            try:
                yield point.sizes, runs.build(source, point.sizes)
            except SymacctError:
                raise
            except Exception as error:  # the model's own code says no to these sizes
                why = " ".join(str(error).split())[:120]
                found.notes[f"passed over sizes that the model refuses: {type(error).__name__}: {why}"] = None
    except TraceError as error:
        found.notes[f"no sizes found for {', '.join(f'{k}={v}' for k, v in given.items())}: {error}"] = None


@contextmanager
def torch_running(what: str) -> Iterator[None]:
    """Whatever torch raises in the block becomes Unsupported: it cannot run `what` so. Its own log of that is not shown."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    quiet, log.disabled = log.disabled, True
    try:
        yield
    except SymacctError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise Unsupported(f"torch cannot run {what} so; {type(error).__name__}: {reason}") from error
    finally:
        log.disabled = quiet


def check_of(quantity: str, formula: Expr, observed: int, oracle: str, point: Mapping[str, int]) -> Check:
    """A formula at a point against what was observed there."""
    formula = sp.expand(formula)
    expected = formula.xreplace(numbers_of(point))
    shown = int(expected) if expected.is_Integer else to_text(expected)
    return Check(quantity, oracle, point, to_text(formula), observed, shown, expected == observed)


def numbers_of(sizes: Mapping[str, int]) -> dict[sp.Symbol, sp.Integer]:
    """Sizes as sympy takes them."""
    return {symbol(name): sp.Integer(value) for name, value in sizes.items()}


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape in words."""
    return "(" + ", ".join(map(str, shape)) + ")"
