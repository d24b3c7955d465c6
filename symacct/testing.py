"""For the tests of a paper or a model: `assert_formula`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from symacct.account import Ledger
from symacct.api import derive
from symacct.claims import Verdict, check
from symacct.claims.files import VERDICTS, Filed, claims_of, naming
from symacct.claims.written import in_words
from symacct.conventions import convention as named
from symacct.errors import FormulaError


def assert_formula(
    target: Ledger | str | Path,
    claim: str,
    *,
    given: str | Iterable[str] = (),
    at: Mapping[str, int] | None = None,
    map: Mapping[str, str] | None = None,
    convention: str | None = None,
    verdict: str | None = None,
    **switches: str,
) -> Verdict:
    """Fail unless the claim is proved for a target or a ledger, or has the `verdict` that is named.

    >>> assert_formula("gpt2", "flops.step = 3*flops.forward").verdict
    'equal'
    """
    if verdict is not None and verdict not in VERDICTS:
        raise FormulaError(f"verdict = {verdict!r}; there are {', '.join(VERDICTS)}")
    ledger = target if isinstance(target, Ledger) else _ledger(str(target))
    if convention is not None or switches:
        ledger = ledger.under(named(convention, **switches))
    found = check(ledger, claim, [given] if isinstance(given, str) else given, at, map)
    good = found.verdict == verdict if verdict else found.proved
    if not good:
        raise AssertionError(("" if verdict is None else f"expected {verdict}\n") + in_words(found))
    return found


def assert_claims(target: Ledger | str | Path, path: str | Path) -> None:
    """Fail unless every claim of a TOML file has the verdict that the file expects of it."""
    for filed in claims_of(Path(path)):
        with naming(filed):
            assert_filed(target, filed)


def assert_filed(target: Ledger | str | Path, filed: Filed) -> Verdict:
    """One claim of a file."""
    options: dict[str, Any] = {
        "given": filed.given,
        "at": filed.sizes or None,
        "map": filed.mapped,
        "convention": filed.convention,
        **filed.switches,
    }
    return assert_formula(target, filed.formula, verdict=filed.verdict or None, **options)


@lru_cache(maxsize=16)
def _ledger(target: str) -> Ledger:
    return derive(target)
