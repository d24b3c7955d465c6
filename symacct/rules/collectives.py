"""What ranks send each other. Sums inside a collective are the network's work: bytes, no FLOPs."""

from __future__ import annotations

from symacct.rules.table import Cost, rule


@rule("c10d.all_gather", "c10d.all_reduce", "c10d.all_to_all", "c10d.reduce_scatter")
def collective() -> Cost:
    """A collective between ranks: what it is given is read once, what it gives is written once."""
    return Cost()
