"""A user's own tensor-parallel plan: `blocks.*.attn.q=colwise,blocks.*.attn.o=rowwise`, as for `parallelize_module`."""

from __future__ import annotations

from fnmatch import fnmatchcase

from symacct.errors import SizeError
from symacct.graph import Graph
from symacct.parallel.layout import Part
from symacct.parallel.proposal import Plan

_STYLES = ("colwise", "rowwise")


def read_styles(text: str, graph: Graph) -> Plan:
    """The plan that modules' paths, with `*`, and styles spell. Raises SizeError for a style or a path that is none,
    and where nothing is divided.

    As torch has it: `colwise` divides a linear weight's outputs and its bias, and a table's columns; `rowwise` a linear
    weight's inputs, and a table's rows. A fused weight, such as of q, k and v, is divided as one.
    """
    if not text.strip(" ,"):
        raise SizeError("styles are empty and divide nothing; write some, as in 'blocks.*.attn.q=colwise', or leave out --styles for the plan proposed")
    tables = {ref.value for p in graph.ops if p.node.op == "aten.embedding" for k, ref in p.node.arguments if k == "weight"}
    params: dict[str, Part] = {}
    styles: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        pattern, _, style = (word.strip() for word in entry.partition("="))
        if style not in _STYLES:
            raise SizeError(f"{entry!r}: a style is {' or '.join(_STYLES)}, as in 'blocks.*.attn.q=colwise'")
        fitting = [p for p in graph.sources("parameter") if fnmatchcase(p.node.module, pattern) or p.node.module == pattern]
        if not fitting:
            paths = sorted({p.node.module for p in graph.sources("parameter")})
            raise SizeError(f"{pattern!r} fits no module with parameters; there are {', '.join(paths)}")
        for place in fitting:
            out, label = place.node.outputs[0], place.node.label
            table = out.value in tables
            if len(out.shape) > 1:
                params[label] = Part(int((style == "colwise") == table), origin=label)
                styles[label] = style
            elif style == "colwise" and out.shape:
                params[label], styles[label] = Part(0, origin=label), style
    if not params:
        raise SizeError(f"{text!r} divides nothing of {graph.target}: rowwise divides weights of two dimensions, and there are none in these modules")
    return Plan(params, styles, {}, own=True)
