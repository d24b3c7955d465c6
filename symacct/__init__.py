"""symacct: what a neural network costs, as closed forms derived from its PyTorch code and proven against runs."""

from __future__ import annotations

from symacct.api import Ledger, derive

__all__ = ["Ledger", "derive"]
__version__ = "0.1.0"
