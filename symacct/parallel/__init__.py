"""What each of many devices holds, computes and sends: tensor, sequence, context, expert, pipeline and data parallel."""

from __future__ import annotations

from symacct.parallel.degrees import Degrees, read_degrees, spelled
from symacct.parallel.rank import Rank, Share, rank

__all__ = ["Degrees", "Rank", "Share", "rank", "read_degrees", "spelled"]
