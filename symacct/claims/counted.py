"""The choices of N, for claims: see `symacct.report.choices`."""

from __future__ import annotations

from symacct.report.choices import MEANINGS, counts, idle_parameters

__all__ = ["MEANINGS", "counts", "idle_parameters"]
