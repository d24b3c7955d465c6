"""Layers at either end of a list that are of other sizes than the rest, such as a first layer of its own width.

Folding aligns records by op and path, never by shape: a layer of another kind stands apart by itself, one of
other sizes does not. Where it then finds no rule for a size, such layers are told apart by their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from symacct.records import Ends, Trace, template

_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")
_ALIKE = 2  # how many layers between the ends must be alike
Shown = tuple[str, str, tuple[tuple[object, ...], ...]]


def ends_of(trace: Trace) -> Ends:
    """By list of modules (its path, inner indices as stars), how many of its first and of its last members differ
    from all between, which are alike. Lists without such members are left out."""
    found: dict[str, set[tuple[int, int]]] = {}
    for path, members in _members(trace).items():
        found.setdefault(template(path), set()).add(_at_ends([members[i] for i in sorted(members)]))
    return {path: ends.pop() for path, ends in found.items() if len(ends) == 1 and ends != {(0, 0)}}


def _members(trace: Trace) -> Mapping[str, dict[int, list[Shown]]]:
    """What runs in each member of each list: ops and the shapes that they make."""
    found: dict[str, dict[int, list[Shown]]] = {}
    for record in trace.records:
        shown = (record.phase, record.op, tuple(out.shape for out in record.outputs))
        for path, index in indices(record.module or record.name):
            found.setdefault(path, {}).setdefault(index, []).append(shown)
    return found


def indices(path: str) -> Iterator[tuple[str, int]]:
    """The lists on a path, and the index in each: "a.3.b.0.c" has a, 3 and a.3.b, 0."""
    for match in _INDEX.finditer(path):
        yield path[: max(match.start() - 1, 0)], int(match.group())


def _at_ends(members: list[list[Shown]]) -> tuple[int, int]:
    usual = members[len(members) // 2]
    differing = [k for k, member in enumerate(members) if member != usual]
    first = next((k for k, member in enumerate(members) if member == usual), 0)
    last = len(differing) - first
    whole = differing == [*range(first), *range(len(members) - last, len(members))]
    return (first, last) if whole and len(members) - first - last >= _ALIKE else (0, 0)


def place_at_ends(trace: Trace, ends: Ends) -> dict[str, str]:
    """For each path of a trace, which of the first or the last members of a list it belongs to, if to any."""
    paths = {record.module or record.name for record in trace.records}
    counts: dict[str, int] = {}
    for path in paths:
        for at, index in indices(path):
            counts[at] = max(counts.get(at, 0), index + 1)
    return {path: word for path in paths if (word := _word(path, counts, ends))}


def _word(path: str, counts: Mapping[str, int], ends: Ends) -> str:
    words = []
    for at, index in indices(path):
        first, last = ends.get(template(at), (0, 0))
        if index < first:
            words.append(f"{template(at)}: {index + 1} from the start")
        elif index >= counts[at] - last:
            words.append(f"{template(at)}: {counts[at] - index} from the end")
    return ", ".join(words)
