"""What bounds a step, in one sentence."""

from __future__ import annotations

from symacct.plan.bound import LINKS, MEMORY, Bound
from symacct.report.rates import duration

_UNSETTLED = "what bounds the step is not settled"


def bounded(found: Bound, divided: bool) -> str:
    """The verdict, and the seconds that it compares; what has no figure is named."""
    limit, seconds = found.limit, found.seconds
    verdict = f"the step is {limit}-bound" if limit else _UNSETTLED
    skipped = ", pairs behind a causal mask left out" * found.masked
    said = [f"arithmetic takes {duration(found.compute)} at the peak{skipped}"]
    how = "chains of element-wise ops merged" if found.merged else "every op by itself"
    how += " and with the weights of all experts" * found.unsure
    said.append(
        f"memory {'at most ' * found.unsure}{duration(seconds[MEMORY])}, {how}"
        if MEMORY in seconds
        else "memory is left out, as the card has no bandwidth"
    )
    if LINKS in seconds:
        said.append(f"links {duration(seconds[LINKS])} waited for (dp runs beside backward)")
    elif divided:
        said.append("links are left out, as the card has no figure for them")
    return f"{verdict}: {'; '.join(said)}"
