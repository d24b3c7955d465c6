"""A recorded run as a `torch.fx.Graph`: it lints, prints, and `torch.fx.Interpreter` executes it at concrete sizes.

Placeholders are the sizes of a symbolic run, by name, then every tensor that existed before the step. Sizes inside
arguments become small integer computations on the size placeholders.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy as sp
import torch
import torch.fx

from symacct.errors import Unsupported
from symacct.graph import SOURCES
from symacct.records import Record, Trace, Use, Value


def fx_graph(trace: Trace, symbolic: bool) -> torch.fx.Graph:
    """The run as a torch.fx.Graph; nodes carry phase, module, source line and shapes in `meta`."""
    return _Emitter(trace, symbolic).emit()


class _Emitter:
    def __init__(self, trace: Trace, symbolic: bool) -> None:
        self.trace = trace
        self.graph = torch.fx.Graph()
        self.values: dict[int, torch.fx.Node] = {}
        self.sizes: dict[str, torch.fx.Node] = {}
        self.computed: dict[Any, Any] = {}
        names = list(trace.sizes) if symbolic else []
        for name in names:
            self.sizes[name] = self.graph.placeholder(f"size_{name}")
            self.sizes[name].meta["size"] = name

    def emit(self) -> torch.fx.Graph:
        made: set[int] = set()
        for number, record in enumerate(self.trace.records):
            if record.op in SOURCES and record.outputs[0].id not in made:
                node = self.graph.placeholder(f"{record.op}_{number}")
                self._describe(node, record, record.outputs)
                self.values[record.outputs[0].id] = node
            made.update(out.id for out in record.outputs)
        for number, record in enumerate(self.trace.records):
            if number in self.trace.calls:
                target, positions = self.trace.calls[number]
                self._call(target, positions, record)
        self.graph.output(tuple(self.values[v] for v in self.trace.outputs))
        self.graph.lint()
        return self.graph

    def _call(self, target: Any, positions: tuple[int, ...] | None, record: Record) -> None:
        keyword_only = {a.name for a in target._schema.arguments if a.kwarg_only}
        args = tuple(self._argument(value) for name, value in record.arguments if name not in keyword_only)
        kwargs = {name: self._argument(value) for name, value in record.arguments if name in keyword_only}
        node = self.graph.call_function(target, args, kwargs)
        self._describe(node, record, record.outputs)
        if positions is None:
            self.values[record.outputs[0].id] = node
            return
        for position, out in zip(positions, record.outputs, strict=True):
            part = self.graph.call_function(operator.getitem, (node, position))
            self._describe(part, record, (out,))
            self.values[out.id] = part

    def _describe(self, node: torch.fx.Node, record: Record, outputs: tuple[Value, ...]) -> None:
        node.meta.update(
            phase=record.phase, module=record.module, source=record.source,
            shapes=tuple(out.shape for out in outputs), dtypes=tuple(out.dtype for out in outputs),
        )

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Use):
            return self.values[value.value]
        if isinstance(value, tuple):
            return [self._argument(part) for part in value]
        if isinstance(value, str) and value.startswith("torch."):
            return getattr(torch, value.removeprefix("torch."))
        return self._size(value) if isinstance(value, sp.Basic) else value

    def _size(self, expr: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol and expr.name in self.sizes:
            return self.sizes[expr.name]
        if expr not in self.computed:
            self.computed[expr] = self._compute(expr)
        return self.computed[expr]

    def _compute(self, expr: Any) -> Any:
        if expr.is_Add or expr.is_Mul:
            numerator, denominator = sp.fraction(sp.together(expr))
            if denominator != 1:
                return self._binary(operator.floordiv, numerator, denominator)
            head, *rest = expr.args
            return self._binary(operator.add if expr.is_Add else operator.mul, head, expr.func(*rest))
        if expr.is_Pow:
            return self._binary(operator.pow, *expr.args)
        if isinstance(expr, sp.floor):
            return self._binary(operator.floordiv, *sp.fraction(sp.together(expr.args[0])))
        if isinstance(expr, sp.Mod):
            return self._binary(operator.mod, *expr.args)
        if isinstance(expr, (sp.Max, sp.Min)):
            head, *rest = expr.args
            return self._binary(max if isinstance(expr, sp.Max) else min, head, expr.func(*rest))
        raise Unsupported(f"a size of the recorded run has no fx form: {expr}")

    def _binary(self, function: Callable[..., Any], left: Any, right: Any) -> torch.fx.Node:
        return self.graph.call_function(function, (self._size(left), self._size(right)))

