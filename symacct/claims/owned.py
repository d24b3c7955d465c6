"""Names that claims have for formulas or parameters and a model has for a size of its own: `mistaken`."""

from __future__ import annotations

from symacct.claims.names import COUNTS, KEYS, Names
from symacct.latex.closed import PARAMETERS


def mistaken(names: Names) -> dict[str, str]:
    """What each such name of a claim was read as, and how to say that it was meant otherwise."""
    found = {}
    for word, (how, _, _) in names.used.items():
        key = KEYS.get(word, "params.total" if word in (*COUNTS, PARAMETERS) else "")
        if how == "own" and key:
            meant = names.graph.symbols[word].meaning or "a size of the model"
            found[word] = f"{word} is read as {meant}; where it is {key}, map it with --map {word}={key}"
    return found
