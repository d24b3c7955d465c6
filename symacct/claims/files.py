"""Files of claims: many claims about one target, each with its source.

[[claim]]
formula = "flops.step = 6*N*D"
source = "Kaplan et al. 2020, section 2.1"
given = ["f = 4*d"]                 # optional, as are the rest
map = { s = "T" }
convention = "kaplan"               # or switches: attention = "half", params = "matmul", …
verdict = "leading-order"           # what is expected; without it, a proof is
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symacct.conventions import CHOICES
from symacct.errors import FormulaError, SizeError, UnknownSymbol

VERDICTS = ("equal", "equal-under", "leading-order", "refuted", "unsettled")
_KEYS = {"formula", "source", "given", "map", "at", "convention", "verdict", *CHOICES}


@dataclass(frozen=True)
class Filed:
    """A claim of a file, how it is meant, and the verdict that its author expects."""

    formula: str
    source: str = ""
    given: tuple[str, ...] = ()
    mapped: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    convention: str | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    where: str = ""


@contextmanager
def naming(filed: Filed) -> Iterator[None]:
    """An error about a claim of a file says which claim of which file."""
    try:
        yield
    except (FormulaError, SizeError, UnknownSymbol) as error:
        raise type(error)(f"{filed.where}: {error}" if filed.where else str(error)) from error


def claims_of(path: Path) -> tuple[Filed, ...]:
    """The claims of a TOML file. Raises FormulaError for a file that holds none, or holds something else."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormulaError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FormulaError(f"{path} is no TOML: {error}") from error
    rows = data.get("claim")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise FormulaError(
            f'{path} holds no claims; write each as [[claim]] with formula = "flops.step = 6*N*D"'
        )
    return tuple(_filed(f"{path}, claim {at}", row) for at, row in enumerate(rows, 1))


def _filed(where: str, row: Mapping[str, Any]) -> Filed:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise FormulaError(f"{where}: no key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    if not isinstance(row.get("formula"), str):
        raise FormulaError(f"{where} has no formula")
    given = row.get("given", [])
    given = [given] if isinstance(given, str) else given
    mapped, sizes = row.get("map", {}), row.get("at", {})
    texts = [*given, *mapped.values()] if isinstance(given, list) and isinstance(mapped, dict) else [None]
    words = [row[key] for key in ("source", "convention", "verdict", *CHOICES) if key in row]
    if not all(isinstance(text, str) for text in [*texts, *words]) or not isinstance(sizes, dict):
        raise FormulaError(f"{where}: given is a list of texts, map and at are tables, the rest is text")
    if row.get("verdict", "equal") not in VERDICTS:
        raise FormulaError(f"{where}: verdict = {row['verdict']!r}; there are {', '.join(VERDICTS)}")
    switches = {key: row[key] for key in CHOICES if key in row}
    return Filed(
        row["formula"],
        row.get("source", ""),
        tuple(given),
        mapped,
        sizes,
        row.get("convention"),
        switches,
        row.get("verdict", ""),
        where,
    )
