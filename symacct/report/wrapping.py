"""Long formulas over several lines, broken where a reader would break them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a formula, broken before a sign, outside brackets where a whole bracket fits in a line.

    After a leading `= ` or an indent, later lines are indented by as much.
    """
    if text[:2] in ("= ", "  "):
        first, *rest = wrapped(text[2:], width - 2)
        return [text[:2] + first, *(f"  {line}" for line in rest)]
    lines: list[str] = []
    for piece in _split(text, depth=0):
        if len(piece) <= width:
            lines = _filled(lines, [piece], width)
        else:
            lines += _filled([], _split(piece, depth=None), width)
    return lines


def _filled(lines: list[str], parts: Iterable[str], width: int) -> list[str]:
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _split(text: str, depth: int | None) -> Iterator[str]:
    """The text cut before each sign between blanks, at this bracket depth or (None) outside floors."""
    level = floors = begin = 0
    for at, character in enumerate(text):
        level += (character in "(⌊⌈") - (character in ")⌋⌉")
        floors += (character in "⌊⌈") - (character in "⌋⌉")
        free = level == depth if depth is not None else not floors
        if free and character in "+-" and text[at - 1 : at] == " " and text[at + 1 : at + 2] == " ":
            yield text[begin : at - 1]
            begin = at
    yield text[begin:]
