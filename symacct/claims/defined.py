"""What a verdict says of how the claim was read: what holds by definition alone, and names that are sizes."""

from __future__ import annotations

from dataclasses import replace

from symacct.claims.cases import Setting
from symacct.claims.names import Names
from symacct.claims.owned import mistaken
from symacct.claims.verdict import Verdict

_SO = {
    "twice": "by definition: that counts a backward as 2 × forward, whatever the model runs",
    "once": "by definition: that counts a backward as the forward, whatever the model runs",
}


def with_readings(found: Verdict, setting: Setting, names: Names) -> Verdict:
    """The verdict, with a note where its claim says only how to count, or may have meant another name."""
    notes = []
    asked = setting.ledger.convention
    if found.proved:
        if setting.defines(setting.base):
            notes.append(f"under backward = {asked.backward} the claim holds {_SO[asked.backward]}")
    else:
        if setting.defines(setting.doubled):
            notes.append(f"under backward = twice the claim would hold {_SO['twice']}")
        sides = (setting.claim.left, setting.claim.right)
        alone = {s.name for side in sides if not side.is_Add for s in side.free_symbols}
        notes += [told for word, told in mistaken(names).items() if word in alone]
    return replace(found, notes=(*found.notes, *notes)) if notes else found
