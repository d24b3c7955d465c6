"""When each storage dies, in words."""

from __future__ import annotations

import sympy as sp

from symacct.graph import Death, Graph, Node, Placed
from symacct.symbols import symbol

_END = "not before the step ends"


def deaths_in_words(graph: Graph) -> dict[str, str]:
    """For each value that its storage was made for: after which op it dies, and in which repetition."""
    if graph.deaths is None:
        return {}
    places = {place.node.name: place for place in graph.placed()}
    found = {}
    for place in graph.ops:
        for out in place.node.outputs:
            if out.storage == out.value and out.value in graph.storages:
                found[out.value] = _words(graph.deaths.get(out.value, ()), place, places)
    return found


def _words(rules: tuple[Death, ...], birth: Placed, places: dict[str, Placed]) -> str:
    if not rules:
        return _END
    said = [_which(rule, birth) + _one(rule, birth, places) for rule in rules[-1:] + rules[:-1]]
    return "; ".join(dict.fromkeys(said))


def _which(rule: Death, birth: Placed) -> str:
    """The repetitions that a rule is for; nothing where it is for all or for most."""
    spans = []
    for (low, high), loop in zip(rule.over, birth.loops, strict=True):
        if low == high and low.is_Integer:
            spans.append("the first" if low == 0 else f"number {int(low) + 1}")
        elif low == high:
            behind = sp.expand(loop.count - 1 - low)
            spans.append("the last" if behind == 0 else f"the last but {behind}")
    return f"{' of '.join(spans)}: " if spans else ""


def _one(rule: Death, birth: Placed, places: dict[str, Placed]) -> str:
    if not rule.after:
        return _END
    place = places[rule.after]
    own = place.node.name == birth.node.name
    when = [w for w in (_when(at, k, place, birth) for k, at in enumerate(rule.at)) if w]
    return f"after {'itself' if own and not when else _op(place.node)}" + (
        f", {', '.join(when)}" if when else ""
    )


def _op(node: Node) -> str:
    where = ", ".join(filter(None, [node.module, node.source]))
    return f"{node.op} ({node.phase}" + (f", {where})" if where else ")")


def _when(at: sp.Expr, level: int, place: Placed, birth: Placed) -> str:
    """In which repetition a death is, told from the birth's; nothing for the same one."""
    index = symbol(f"i{level + 1}")
    shared = level < len(birth.loops) and birth.loops[level] is place.loops[level]
    lag = sp.expand(at - index)
    if lag.is_Integer:
        if shared or lag == 0:
            return "" if lag == 0 else f"{lag} repetition{'s' if lag > 1 else ''} later"
        return f"in repetition i {'+' if lag > 0 else '-'} {abs(lag)} for one made in i"
    mirrored = sp.expand(place.loops[level].count - 1 - index - at)
    if mirrored.is_Integer:
        if mirrored == 0:
            return "on the way back"
        count = f"{abs(mirrored)} repetition{'s' if abs(mirrored) > 1 else ''}"
        return f"on the way back, {count} {'before' if mirrored > 0 else 'after'} its mirror"
    if not at.free_symbols & {index}:
        return (
            "in the first repetition"
            if at == 0
            else "in the last repetition"
            if sp.expand(place.loops[level].count - 1 - at) == 0
            else f"in repetition {at}"
        )
    return f"in repetition {at}"
