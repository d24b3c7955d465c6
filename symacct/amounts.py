"""Numbers as people write them for hardware and training runs, `15e12` or `0.4`, read exactly: never as
floats.
"""

from __future__ import annotations

import re
from fractions import Fraction

from symacct.errors import SizeError

_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]{1,2})?\Z")
_LONGEST = 60


def amount(text: str | int | Fraction, what: str, most: int | None = None) -> Fraction:
    """The positive number that `text` spells, such as 312e12, 0.4 or 15_000. Raises SizeError naming `what`.

    >>> amount("15e12", "--tokens")
    Fraction(15000000000000, 1)
    """
    spelled = str(text).strip()
    if isinstance(text, int | Fraction) and not isinstance(text, bool):
        value = Fraction(text)
    elif len(spelled) <= _LONGEST and _NUMBER.match(spelled):
        value = Fraction(spelled)
    elif spelled[:1] == "-" and _NUMBER.match(spelled[1:]):
        value = -Fraction(spelled[1:])
    else:
        raise SizeError(f"{what} = {spelled[:_LONGEST]!r}: write a number, as in 15e12 or 0.4")
    if value <= 0:
        raise SizeError(f"{what} = {spelled}: it must be more than 0")
    if most is not None and value > most:
        raise SizeError(f"{what} = {spelled}: it can be at most {most}")
    return value


def whole(text: str | int | Fraction, what: str) -> int:
    """The positive integer that `text` spells, such as 80e9. Raises SizeError for a number with a
    fraction.
    """
    value = amount(text, what)
    if value.denominator != 1:
        raise SizeError(f"{what} = {text}: it must be a whole number")
    return int(value)
