"""What a derivation says beside its formulas: what was pinned or folded and where, and what its symbols mean."""

from __future__ import annotations

from dataclasses import replace

from symacct.formula_text import to_text
from symacct.graph import Graph, Item, Loop, Node, SymbolInfo, loops_in
from symacct.records import Pin, Trace
from symacct.routing import active_parameters
from symacct.symbols import meaning_of, symbol
from symacct.tracing.source import ModelSource


def announced(pins: list[Pin], structural: tuple[str, ...], trace: Trace) -> list[str]:
    """What a run remarks, and a sentence for each branch on data that was fixed and each size that the code turned into a number."""
    said = [f"a branch on data was taken as true ({line})" for line in dict.fromkeys(trace.branches)]
    said += dict.fromkeys(trace.remarks)
    for pin in pins:
        how = "repeats ops; folded" if pin.expression in structural else "was pinned; lifted"
        where = f" ({pin.source})" if pin.source else ""
        said.append(f"{pin.expression} {how} from runs at several values{where}")
    return said


def kinds(items: tuple[Item, ...], structural: tuple[str, ...]) -> list[str]:
    """Where layers are of several kinds: regions of the forward pass that repeat less often than their size says."""
    said = []
    for name in structural:
        counts = {loop.count for loop in loops_in(items) if loop.size == name and _phase(loop) == "forward"}
        if counts - {symbol(name)}:
            spelled = ", ".join(to_text(count) for count in sorted(counts, key=str))
            said.append(f"the {name} repetitions are not all alike: they fold by kind, in regions that repeat {spelled} times")
    return said


def of_all_experts(graph: Graph) -> Graph:
    """The graph of a decoding step with a remark where few tokens choose among experts that are all counted as read."""
    if graph.mode != "decode" or active_parameters(graph) is None:
        return graph
    said = "bytes.read takes the weights of all E experts as read; B tokens choose no more than B·k of them in a layer"
    return replace(graph, remarks=(*graph.remarks, said))


def symbols_of(items: tuple[Item, ...], source: ModelSource) -> dict[str, SymbolInfo]:
    """Every symbol of a graph with its meaning and example; one that no size has is a count that depends on data."""
    meant = _axes(items) | source.meanings
    known = {name: SymbolInfo(meant.get(name, meaning_of(name)), value) for name, value in source.dims.items()}
    for name in sorted(_free_names(items) - set(known)):
        known[name] = SymbolInfo("a count that depends on the data", 1)
    return known


def _axes(items: tuple[Item, ...]) -> dict[str, str]:
    """What N, C, H and W mean where they are the axes of an input in that order: no states, classes nor a window."""
    words = {"N": (0, "batch size"), "C": (1, "channels"), "H": (-2, "height"), "W": (-1, "width")}
    shapes = [out.shape for item in items if isinstance(item, Node) and item.op == "input" for out in item.outputs]
    return {
        name: word
        for shape in shapes
        for name, (axis, word) in words.items()
        if len(shape) > 2 and str(shape[axis]) == name
    }


def _phase(loop: Loop) -> str:
    first = loop.items[0]
    return _phase(first) if isinstance(first, Loop) else first.phase


def _free_names(items: tuple[Item, ...]) -> set[str]:
    found: set[str] = set()
    for item in items:
        if isinstance(item, Loop):
            found |= {s.name for s in item.count.free_symbols} | (_free_names(item.items) - {item.index})
        else:
            found |= {s.name for out in item.outputs for size in (*out.shape, out.times) for s in size.free_symbols}
    return found
