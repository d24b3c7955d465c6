"""How wide a formula is, about, in points of a 10 pt paper: enough to know where to break a line."""

from __future__ import annotations

import re

from symacct.symbols import GREEK

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\\]", re.DOTALL)
_COMMANDS = {
    r"\,": 1.7,
    r"\ ": 3.4,
    r"\_": 4.0,
    r"\quad": 10.0,
    r"\cdot": 7.3,
    r"\times": 12.3,
    r"\bmod": 26.0,
    r"\max": 20.0,
    r"\min": 18.5,
    r"\lfloor": 4.5,
    r"\rfloor": 4.5,
    r"\lceil": 4.5,
    r"\rceil": 4.5,
    r"\mid": 8.4,
    r"\le": 13.4,
    r"\ge": 13.4,
}
_SIGNS = {
    "+": 12.3,
    "-": 12.3,
    "=": 13.4,
    "(": 3.9,
    ")": 3.9,
    ",": 4.5,
    " ": 0.0,
    "'": 3.0,
    "{": 0.0,
    "}": 0.0,
}
_SMALL = 0.75


def width(formula: str) -> float:
    """The width of a formula in points, a little more than TeX will need."""
    return _Measure(_TOKEN.findall(formula)).whole()


class _Measure:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def whole(self) -> float:
        total = 0.0
        while self.at < len(self.tokens) and self.tokens[self.at] != "}":
            total += self.one()
        return total

    def one(self) -> float:
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            inner = self.whole()
            self.at += 1
            return inner
        if token in ("^", "_"):
            return _SMALL * self.one() + 0.5
        if token in (r"\frac", r"\tfrac"):
            return max(self.one(), self.one()) + 2.4
        if token in _COMMANDS or token in _SIGNS:
            return _COMMANDS.get(token, _SIGNS.get(token, 0.0))
        if token.startswith("\\"):
            return 7.2 if token[1:] in GREEK else 0.0
        return 5.0 if token.isdigit() else 8.2 if token.isupper() or token in "mw" else 5.6
