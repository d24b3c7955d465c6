"""The only place that makes sympy symbols, and the glossary of the field's names for sizes.

Every symbol is a positive integer. Two symbols of one name are therefore always the same symbol.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import sympy as sp


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name stands for, and how LaTeX writes it."""

    name: str
    meaning: str
    latex: str


GLOSSARY: dict[str, Meaning] = {
    row.name: row
    for row in (
        Meaning("B", "batch size", "B"),
        Meaning("T", "sequence length", "T"),
        Meaning("S", "encoder sequence length", "S"),
        Meaning("V", "vocabulary size", "V"),
        Meaning("P", "positions in the table", "P"),
        Meaning("L", "layers", "L"),
        Meaning("d", "model width", "d"),
        Meaning("h", "attention heads", "h"),
        Meaning("h_kv", "key/value heads", r"h_{\mathrm{kv}}"),
        Meaning("d_h", "head width", "d_h"),
        Meaning("d_c", "key/value latent width", "d_c"),
        Meaning("d_q", "query latent width", "d_q"),
        Meaning("d_r", "rope width of a head", "d_r"),
        Meaning("d_n", "head width without rope", "d_n"),
        Meaning("d_v", "value head width", "d_v"),
        Meaning("f", "feed-forward width", "f"),
        Meaning("f_e", "expert feed-forward width", "f_e"),
        Meaning("E", "experts", "E"),
        Meaning("k", "experts per token", "k"),
        Meaning("W", "attention window", "W"),
        Meaning("C", "classes", "C"),
        Meaning("N", "state size", "N"),
        Meaning("R", "rank of the time-step projection", "R"),
    )
}

_SMALL = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi "
    "chi psi omega"
)
GREEK = frozenset((*_SMALL.split(), *"Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()))
LETTERS = dict(zip("αβγδεζηθικλμνξπρστυφχψω", _SMALL.split(), strict=True))
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_INDEX = re.compile(r"i[0-9]+\Z")


@cache
def symbol(name: str) -> sp.Symbol:
    """The symbol of this name: a positive integer, or for a loop index (i1, i2, …) an integer from 0."""
    if _INDEX.match(name):
        return sp.Symbol(name, integer=True, nonnegative=True)
    return sp.Symbol(name, integer=True, positive=True)


def is_name(text: str) -> bool:
    """Whether a size may have this name: a letter, then letters, digits and underscores; i1, i2, … are loop indices."""
    return bool(_NAME.match(text)) and not _INDEX.match(text)


def latex_name(name: str) -> str:
    """LaTeX for a symbol's name: the glossary's, else `d_model` as d_{\\mathrm{model}}."""
    if name in GLOSSARY:
        return GLOSSARY[name].latex
    head, _, tail = name.partition("_")
    base = head if len(head) == 1 else f"\\{head}" if head in GREEK else rf"\mathrm{{{head}}}"
    if not tail:
        return base
    sub = tail.replace("_", r"\_")
    return f"{base}_{{{sub}}}" if len(tail) == 1 else rf"{base}_{{\mathrm{{{sub}}}}}"


def meaning_of(name: str) -> str:
    """The glossary's meaning of a name, or an empty string."""
    return GLOSSARY[name].meaning if name in GLOSSARY else ""
