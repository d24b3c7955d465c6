"""Graphs as JSON, byte for byte the same each time: one node a line, expressions as text, numbers as integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sympy as sp

from symacct.errors import FormulaError, GraphError
from symacct.expressions import parse, to_text
from symacct.graph import Assumption, Death, Graph, Item, Limit, Loop, Node, Ref, SymbolInfo, Tensor

VERSION = 3


def dumps(graph: Graph) -> str:
    """The graph as JSON text that `loads` reads back to an equal graph."""
    head = {
        "symacct": VERSION,
        "target": graph.target,
        "mode": graph.mode,
        "device": graph.device,
        "symbols": {name: [info.meaning, info.traced_at] for name, info in graph.symbols.items()},
        "assumptions": [[a.kind, _write_condition(a), to_text(a.right) if a.right is not None else None, a.source] for a in graph.assumptions],
        "values": dict(graph.values),
        "remarks": list(graph.remarks),
        "storages": {name: to_text(size) for name, size in graph.storages.items()},
        "kept": None if graph.kept is None else {name: to_text(count) for name, count in graph.kept.items()},
    }
    head["peak"] = None if graph.peak is None else [[name, to_text(live)] for name, live in graph.peak]
    head["deaths"] = None if graph.deaths is None else {name: [_write_death(rule) for rule in rules] for name, rules in graph.deaths.items()}
    if graph.variant:
        head["variant"] = graph.variant
    if graph.limits:
        head["limits"] = [_write_limit(limit) for limit in graph.limits]
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    body = ",\n".join(_write_items(graph.items, "  "))
    return "{\n" + ",\n".join(lines) + ',\n"items": [\n' + body + "\n]\n}\n"


def loads(text: str, name: str = "graph") -> Graph:
    """The graph of a JSON text. Raises GraphError when it is no graph, of another version, or damaged."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise GraphError(f"{name}: no complete JSON (line {error.lineno}: {error.msg}); build it again with 'symacct graphs build'") from error
    if not isinstance(data, dict) or "symacct" not in data:
        raise GraphError(f"{name}: JSON, but no symacct graph")
    if data["symacct"] != VERSION:
        raise GraphError(f"{name}: a graph of version {data['symacct']}, this symacct reads version {VERSION}; build it again")
    try:
        return _read_graph(data)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, FormulaError) as error:
        raise GraphError(f"{name}: a damaged graph ({type(error).__name__}: {error}); build it again") from error


def load(path: str | Path) -> Graph:
    """The graph stored in a file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: not text, so no graph") from error
    return loads(text, str(path))


# Writing

def _write_condition(a: Assumption) -> Any:
    if a.kind == "branch":
        return [type(a.left).__name__, to_text(a.left.lhs), to_text(a.left.rhs)]
    return to_text(a.left)


def _write_limit(limit: Limit) -> list[Any]:
    return [limit.key, to_text(limit.where.lhs), to_text(limit.where.rhs), None if limit.more is None else to_text(limit.more)]


def _write_death(rule: Death) -> list[Any]:
    return [rule.after, [to_text(i) for i in rule.at], [[to_text(low), to_text(high)] for low, high in rule.over]]


def _write_items(items: tuple[Item, ...], indent: str) -> list[str]:
    lines = []
    for item in items:
        if isinstance(item, Loop):
            head = json.dumps([item.index, item.size, to_text(item.count)])
            inner = ",\n".join(_write_items(item.items, indent + "  "))
            lines.append(f'{indent}{{"loop": {head}, "items": [\n{inner}\n{indent}]}}')
        else:
            lines.append(indent + json.dumps(_write_node(item), ensure_ascii=False))
    return lines


def _write_node(node: Node) -> list[Any]:
    arguments = [[name, _write_argument(argument)] for name, argument in node.arguments]
    outputs = [_write_tensor(out) for out in node.outputs]
    return [node.name, node.op, arguments, outputs, node.phase, node.module, node.source, node.label, list(node.notes)]


def _write_tensor(tensor: Tensor) -> list[Any]:
    base = [tensor.value, [to_text(s) for s in tensor.shape], tensor.dtype, tensor.storage]
    return base if tensor.times == 1 else [*base, to_text(tensor.times)]


def _write_argument(argument: Any) -> Any:
    match argument:
        case Ref():
            shape = None if argument.shape is None else [to_text(s) for s in argument.shape]
            return {"ref": [argument.value, argument.back, to_text(argument.times), shape]}
        case tuple():
            return [_write_argument(part) for part in argument]
        case sp.Basic():
            return {"size": to_text(argument)}
        case float():
            return {"number": repr(argument)}
        case _:
            return argument


# Reading

def _read_graph(data: dict[str, Any]) -> Graph:
    return Graph(
        target=data["target"],
        mode=data["mode"],
        device=data["device"],
        symbols={name: SymbolInfo(*info) for name, info in data["symbols"].items()},
        assumptions=tuple(_read_assumption(*row) for row in data["assumptions"]),
        items=_read_items(data["items"]),
        values=dict(data["values"]),
        remarks=tuple(data["remarks"]),
        storages={name: parse(size) for name, size in data["storages"].items()},
        peak=None if data["peak"] is None else tuple((name, parse(live)) for name, live in data["peak"]),
        deaths=None if data["deaths"] is None else {name: tuple(_read_death(*rule) for rule in rules) for name, rules in data["deaths"].items()},
        kept=None if data["kept"] is None else {name: parse(count) for name, count in data["kept"].items()},
        variant=data.get("variant", ""),
        limits=tuple(_read_limit(*row) for row in data.get("limits", ())),
    )


_RELATIONS: dict[str, Callable[..., Any]] = {
    "StrictLessThan": sp.Lt, "LessThan": sp.Le, "StrictGreaterThan": sp.Gt, "GreaterThan": sp.Ge, "Unequality": sp.Ne, "Equality": sp.Eq,
}


def _read_assumption(kind: str, left: Any, right: str | None, source: str) -> Assumption:
    if kind == "branch":
        relation, a, b = left
        return Assumption(kind, _RELATIONS[relation](parse(a), parse(b)), None, source)
    return Assumption(kind, parse(left), parse(right or ""), source)


def _read_limit(key: str, left: str, right: str, more: str | None) -> Limit:
    return Limit(key, sp.Eq(parse(left), parse(right), evaluate=False), None if more is None else parse(more))


def _read_death(after: str, at: list[str], over: list[list[str]]) -> Death:
    return Death(after, tuple(parse(i) for i in at), tuple((parse(low), parse(high)) for low, high in over))


def _read_items(rows: list[Any]) -> tuple[Item, ...]:
    return tuple(_read_loop(row) if isinstance(row, dict) else _read_node(row) for row in rows)


def _read_loop(row: dict[str, Any]) -> Loop:
    index, size, count = row["loop"]
    return Loop(index, size, parse(count), _read_items(row["items"]))


def _read_node(row: list[Any]) -> Node:
    name, op, arguments, outputs, phase, module, source, label, notes = row
    return Node(
        name, op, tuple((key, _read_argument(value)) for key, value in arguments), tuple(_read_tensor(*out) for out in outputs),
        phase, module, source, label, tuple(notes),
    )


def _read_tensor(value: str, shape: list[str], dtype: str, storage: str, times: str = "1") -> Tensor:
    return Tensor(value, tuple(parse(s) for s in shape), dtype, storage, parse(times))


def _read_argument(argument: Any) -> Any:
    if isinstance(argument, list):
        return tuple(_read_argument(part) for part in argument)
    if not isinstance(argument, dict):
        return argument
    if "ref" in argument:
        value, back, times, shape = argument["ref"]
        return Ref(value, back, parse(times), None if shape is None else tuple(parse(s) for s in shape))
    return parse(argument["size"]) if "size" in argument else float(argument["number"])
