"""The choices of N, for claims: see `symacct.report.choices`."""

from __future__ import annotations

from symacct.report.choices import MEANINGS, PER_TOKEN, counts, idle_parameters

__all__ = ["MEANINGS", "PER_TOKEN", "counts", "idle_parameters"]
