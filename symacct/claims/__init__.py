"""Claims: formulas that someone else wrote, and what is true about them. Nothing here imports torch."""

from __future__ import annotations

from symacct.claims.judging import check
from symacct.claims.verdict import Term, Verdict

__all__ = ["Term", "Verdict", "check"]
