"""Folding a run whose length depends on a size: A · Cⁿ · A′ · C′ᵐ · …, found by comparing two runs.

Two runs that differ in one structural size by a step differ in whole copies of what repeats. Runs are aligned by
record keys (phase, op, module path without indices), never by shapes. A `Repeat` counts its copies as an affine
function of the size; nested sizes fold one after the other, the outermost first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy as sp

from symacct.errors import TraceError
from symacct.symbols import symbol

_ENDING = re.compile(r"\d+\Z")
Key = tuple[Any, ...]
Point = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One record of the folded run. `path` is the module path of an example, indices included."""

    key: Key
    path: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """A region that runs `count` times; `size` is the structural size that the count depends on."""

    size: str
    count: sp.Expr
    items: tuple[Leaf | Repeat, ...]

    @property
    def key(self) -> Key:
        return ("repeat", self.size, self.items[0].key)

    @property
    def path(self) -> str:
        return self.items[0].path


Item = Leaf | Repeat


def fold(runs: Callable[[Mapping[str, int]], Sequence[Leaf]], base: Mapping[str, int], steps: Mapping[str, int]) -> tuple[Item, ...]:
    """The folded form of a run, from runs at `base` and one step further in each structural size.

    `runs` gives the leaves of the run at these sizes. Raises TraceError when two runs cannot be aligned.
    """

    def at(sizes: tuple[str, ...], point: dict[str, int]) -> tuple[Item, ...]:
        if not sizes:
            return tuple(runs(point))
        *rest, size = sizes
        step = steps[size]
        short = at(tuple(rest), point)
        long = at(tuple(rest), {**point, size: point[size] + step})
        return merge(short, long, size, point[size] + step, step)

    return at(tuple(steps), dict(base))


def merge(short: tuple[Item, ...], long: tuple[Item, ...], size: str, value: int, step: int) -> tuple[Item, ...]:
    """Fold `long`, the run at `value`, by comparison with `short`, the run at `value - step`."""
    pairs, sites = align(short, long, size)
    items: list[Item] = []
    position = 0
    partner = dict(pairs)
    for start, length in sites:
        begin, end = _run(long, start, length, position)
        copies = (end - begin) // length
        begin, copies = _settled(long, begin, length, copies, (end - begin) - copies * length)
        items += _merged(short, long, partner, position, begin, size, value, step)
        count = (symbol(size) - value) / step + copies
        unit = _merged_unit(short, long, partner, begin, length, copies, size, value, step)
        items.append(Repeat(size, count, unit))
        position = begin + copies * length
    items += _merged(short, long, partner, position, len(long), size, value, step)
    return tuple(items)


def align(short: tuple[Item, ...], long: tuple[Item, ...], size: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs (position in long, position in short) and sites (position, length) of the copies that long has more."""
    a, b = [item.key for item in short], [item.key for item in long]
    pairs: list[tuple[int, int]] = []
    sites: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and j < len(b) and a[i] == b[j]:
            pairs.append((j, i))
            i, j = i + 1, j + 1
            continue
        length = _inserted(a, b, i, j)
        if length == 0:
            here = b[j] if j < len(b) else a[i]
            raise TraceError(
                f"the run does not repeat regularly in {size}: it cannot be folded at {here[1]} in {here[2] or 'the model'}"
            )
        sites.append((j, length))
        j += length
    return pairs, sites


def _inserted(a: list[Key], b: list[Key], i: int, j: int) -> int:
    """Length of the copy that b holds at j beyond a: what precedes j repeats, and a goes on after it."""
    best, best_reach = 0, -1
    for length in range(1, min(j, len(b) - j) + 1):
        if i < len(a):
            if j + length >= len(b) or b[j + length] != a[i]:
                continue
        elif j + length != len(b):
            continue
        if b[j - length] != b[j] or b[j - length : j] != b[j : j + length]:
            continue
        reach = _reach(a, b, i, j + length)
        if reach > best_reach:
            best, best_reach = length, reach
    return best


def _reach(a: list[Key], b: list[Key], i: int, j: int) -> int:
    reach = 0
    while i + reach < len(a) and j + reach < len(b) and a[i + reach] == b[j + reach]:
        reach += 1
    return reach


def _run(items: tuple[Item, ...], start: int, length: int, floor: int) -> tuple[int, int]:
    """The maximal stretch around `start` that has this period, not reaching before `floor`."""
    begin, end = start - length, start + length
    while begin > floor and items[begin - 1].key == items[begin - 1 + length].key:
        begin -= 1
    while end < len(items) and items[end].key == items[end - length].key:
        end += 1
    return max(begin, floor), end


def _settled(items: tuple[Item, ...], begin: int, length: int, copies: int, slack: int) -> tuple[int, int]:
    """Where the first copy begins, and how many there are: as many as fit, if they are layers of one list.

    What stands beside a list of layers may run the same ops as one of them, as the first block of the next stage does:
    a copy that lies across two layers, or in another list than the others, is then left out.
    """
    offset = _rotation(items, begin, length, copies, slack)
    if copies < 3 or _strays(items, begin + offset, length, copies) == 0:
        return begin + offset, copies
    for later in range(slack + length + 1):
        fewer = copies - 1
        if later + fewer * length <= copies * length + slack and _strays(items, begin + later, length, fewer) == 0:
            return begin + later, fewer
    return begin + offset, copies


def _rotation(items: tuple[Item, ...], begin: int, length: int, copies: int, slack: int) -> int:
    """Where in the slack a copy begins: there where one copy stays within one index of the module list."""
    if copies < 2 or slack == 0:
        return 0
    return min(range(slack + 1), key=lambda offset: (_breaks(items, begin + offset, length), offset))


def _breaks(items: tuple[Item, ...], begin: int, length: int) -> int:
    """How often the index of the layer changes within a copy."""
    indices = [_index(items[begin + p].path, items[begin + p + length].path) for p in range(length)]
    known = [index for index in indices if index is not None]
    return sum(x != y for x, y in pairwise(known))


def _strays(items: tuple[Item, ...], begin: int, length: int, copies: int) -> int:
    """Changes of the layer within a copy, and steps between copies that change more of a path than the others do."""
    steps = [
        tuple(_differing(items[begin + p].path, items[begin + p + length].path) for p in range(start, start + length))
        for start in range(0, (copies - 1) * length, length)
    ]
    plainest = min(steps, key=lambda step: sum(map(len, step)))
    return _breaks(items, begin, length) + sum(step != plainest for step in steps)


def _differing(path: str, later: str) -> tuple[int, ...]:
    """At which parts two module paths differ."""
    return tuple(k for k, (mine, other) in enumerate(zip(path.split("."), later.split("."), strict=False)) if mine != other)


def _index(path: str, later: str) -> int | None:
    """The first index in which the module paths of two copies of a node differ, as the earlier one has it."""
    for mine, other in zip(path.split("."), later.split("."), strict=False):
        ending = _ENDING.search(mine)
        if mine != other and ending and _ENDING.search(other):
            return int(ending.group())
    return None


def _merged(
    short: tuple[Item, ...], long: tuple[Item, ...], partner: dict[int, int], begin: int, end: int,
    size: str, value: int, step: int,
) -> list[Item]:
    return [_deepen(short, long[p], partner.get(p), size, value, step) for p in range(begin, end)]


def _merged_unit(
    short: tuple[Item, ...], long: tuple[Item, ...], partner: dict[int, int], begin: int, length: int, copies: int,
    size: str, value: int, step: int,
) -> tuple[Item, ...]:
    unit = []
    for p in range(begin, begin + length):
        match = next((partner[q] for q in range(p, p + copies * length, length) if q in partner), None)
        unit.append(_deepen(short, long[p], match, size, value, step))
    return tuple(unit)


def _deepen(short: tuple[Item, ...], item: Item, match: int | None, size: str, value: int, step: int) -> Item:
    """Fold inside a region that an outer size already repeats."""
    if isinstance(item, Leaf) or match is None:
        return item
    other = short[match]
    if not isinstance(other, Repeat) or other.count != item.count:
        raise TraceError(f"the number of repetitions in {item.size} also depends on {size}; that cannot be folded")
    return Repeat(item.size, item.count, merge(other.items, item.items, size, value, step))


# Unfolding

def unfold(items: Sequence[Item], sizes: Mapping[str, int], at: tuple[int, ...] = (), where: tuple[int, ...] = ()) -> Iterator[
    tuple[tuple[int, ...], tuple[int, ...], Leaf]
]:
    """The leaves in execution order at these sizes: (position in the tree, iteration of each loop around, leaf).

    Raises TraceError when a count is not a nonnegative integer there.
    """
    for number, item in enumerate(items):
        if isinstance(item, Leaf):
            yield (*where, number), at, item
            continue
        count = item.count.xreplace({symbol(item.size): sp.Integer(sizes[item.size])})
        if not count.is_Integer or count < 0:
            raise TraceError(f"{item.size} = {sizes[item.size]} gives {count} repetitions of {item.path or 'a region'}")
        for iteration in range(int(count)):
            yield from unfold(item.items, sizes, (*at, iteration), (*where, number))


def leaves(items: Sequence[Item], where: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Leaf]]:
    """Every leaf once, with its position in the tree."""
    for number, item in enumerate(items):
        if isinstance(item, Leaf):
            yield (*where, number), item
        else:
            yield from leaves(item.items, (*where, number))


def _named(leaf: Leaf) -> str:
    """A record in words: op, the path of a parameter or the like, and module."""
    return " ".join(filter(None, (leaf.key[1], *leaf.key[3:4], f"in {leaf.path}" if leaf.path else "in the model")))


def locate(items: Sequence[Item], run: Sequence[Leaf], sizes: Mapping[str, int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each record of a run at these sizes, its leaf's position and iteration. Raises TraceError on a mismatch."""
    places = []
    unfolded = unfold(items, sizes)
    for number, leaf in enumerate(run):
        place = next(unfolded, None)
        if place is None or place[2].key != leaf.key:
            expected = _named(place[2]) if place is not None else "the end"
            raise TraceError(
                f"{_named(leaf)} comes where {expected} was expected (record {number}), so what repeats follows no order "
                "that is known; a list of its own, or a class, for each kind of layer may help"
            )
        places.append((place[0], place[1]))
    if next(unfolded, None) is not None:
        raise TraceError("the run ends before its folded form does")
    return places
