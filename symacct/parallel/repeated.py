"""What a region hands from one repetition to the next, and what enters its first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from symacct.graph import SOURCES, Item, Loop, Node, Ref, Tensor

_VIEWS = ("aten.view", "aten._unsafe_view", "aten.t", "aten.transpose")


def nodes_of(items: Iterable[Item]) -> Iterable[Node]:
    """Every node, those of inner regions too."""
    for item in items:
        if isinstance(item, Loop):
            yield from nodes_of(item.items)
        else:
            yield item


def passed_on(loop: Loop, carried: set[str]) -> set[str]:
    """Carried gradients that a repetition does no more with than to add them to others.

    Such is the gradient of a weight that all repetitions share. Their readers bring them together where
    they must.
    """
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in nodes_of(loop.items):
        for ref in node.refs:
            readers.setdefault(ref.value, []).append((node, ref.back))

    def added(node: Node) -> bool:
        """Whether an op adds, or makes a view that is but added."""
        if node.op in _VIEWS:
            return all(added(reader) for reader, _ in readers.get(node.outputs[0].value, ()))
        return node.op == "aten.add"

    def loose(value: str) -> bool:
        return all(back and node.phase == "backward" and added(node) for node, back in readers[value])

    return {value for value in carried if loose(value)}


def entrance(
    value: str, maker: Mapping[str, Node], tensors: Mapping[str, Tensor], before: Sequence[Item]
) -> tuple[Node, str] | None:
    """What gives the first repetition of a region what `value` gives the later ones, and its name.

    A repetition that stands before the region makes it by the same op in the same module; the first of a
    sum is what the sum adds. Else it is the last value of that shape.
    """
    made = maker[value]
    alike = [(made, value)]
    if made.op == "aten.add" and any(ref.back and ref.value == value for ref in made.refs):
        alike += [
            (maker[ref.value], ref.value) for ref in made.refs if ref.value != value and ref.value in maker
        ]
    shape = tensors[value].shape
    earlier = [
        item
        for item in reversed(before)
        if isinstance(item, Node) and item.op not in SOURCES and item.outputs
    ]
    for node, name in alike:
        number = [out.value for out in node.outputs].index(name)
        for item in earlier:
            if (item.op, item.module, item.phase) == (node.op, node.module, node.phase) and number < len(
                item.outputs
            ):
                twin = item.outputs[number].value
                if twin in tensors and tensors[twin].shape == shape:
                    return item, twin
    for item in earlier:
        first = item.outputs[0].value
        if first in tensors and tensors[first].shape == shape:
            return item, first
    return None


def renamed(item: Item, old: str, new: str, made: Tensor | None = None) -> Item:
    """The item with a value of this iteration called otherwise; `made` is what its maker then gives."""
    if isinstance(item, Loop):
        return replace(item, items=tuple(renamed(inner, old, new, made) for inner in item.items))
    name = lambda value: new if value == old else value  # noqa: E731
    outputs = tuple(
        made
        if made is not None and out.value == old
        else replace(out, value=name(out.value), storage=name(out.storage))
        for out in item.outputs
    )
    return replace(
        item, arguments=tuple((key, _rename(a, old, new)) for key, a in item.arguments), outputs=outputs
    )


def _rename(argument: Any, old: str, new: str) -> Any:
    if isinstance(argument, tuple):
        return tuple(_rename(part, old, new) for part in argument)
    return (
        replace(argument, value=new)
        if isinstance(argument, Ref) and argument.value == old and not argument.back
        else argument
    )
