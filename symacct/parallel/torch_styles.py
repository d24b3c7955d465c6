"""A tensor-parallel plan as text that torch's `parallelize_module` takes: a style for each module's path.

The model's own code stays as it is, so column-parallel outputs go on as DTensors
(`use_local_output=False`), and where scores stay divided the loss is computed within `loss_parallel()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Expr

from symacct.graph import Graph
from symacct.parallel.faces import FACES, RESHAPED, SAME
from symacct.parallel.layout import Part
from symacct.parallel.proposal import Plan
from symacct.parallel.shared_inputs import Shared, shared_inputs

_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
_SEQUENCES = ("T", "S")
_PASSED = frozenset((*SAME.split(), *RESHAPED, "t", "transpose", "permute", "unsqueeze", "squeeze"))
_PLACED = {
    ("linear", "colwise"): 0,
    ("linear", "rowwise"): 1,
    ("table", "rowwise"): 0,
    ("table", "colwise"): 1,
}


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """Styles by module path, with stars for the numbers of layers. `apart`: how ranks hold what no style
    says. `gathered`: the ops, with their source lines, before which the ranks' parts of the sequence are brought
    together though no style says so.

    `loss`: the loss is computed from divided scores. `tied`: the other paths of a divided weight, of which torch makes
    another parameter until the two are tied again, with the first one's. `shared`: the modules that read one tensor.
    """

    styles: Mapping[str, str]
    apart: Mapping[str, str]
    gathered: tuple[str, ...]
    tied: Mapping[str, str]
    loss: bool
    own: bool
    shared: tuple[Shared, ...] = ()


def torch_plan(graph: Graph, local: Graph, plan: Plan, ranks: Expr, sequence: bool) -> TorchPlan:
    """The plan of a graph, of which `local` is one of these ranks', in torch's words."""
    dims = sequence_dims(graph, local, ranks) if sequence else set()
    between = f"Shard({dims.pop()})" if len(dims) == 1 else ""
    kinds = _kinds(graph)
    fed = _fed_by_gathers(local, ranks)
    styles: dict[str, str] = {}
    apart: dict[str, str] = {}
    for label, part in plan.params.items():
        path, _, attribute = label.rpartition(".")
        style, kind = plan.styles.get(label, ""), kinds.get(label, "")
        if attribute == "bias" and plan.styles.get(f"{path}.weight") == style:
            continue  # goes with its weight
        if (
            attribute == "weight"
            and part.outer == 1
            and not part.pieces
            and _PLACED.get((kind, style)) == part.dim
        ):
            styles[path] = _spelled(kind, style, between, label in fed)
        else:
            apart[label] = _placement(part)
    if between:
        in_parts = _read_in_parts(graph, local)
        for label, kind in kinds.items():
            path, _, attribute = label.rpartition(".")
            if attribute == "weight" and path not in styles and label not in plan.params:
                if kind == "norm":
                    place = between.removeprefix("Shard")
                    styles[path] = f"SequenceParallel(sequence_dim={place[1:-1]}, use_local_output=True)"
                else:
                    apart[label] = "whole, on each rank's part of the sequence" if label in in_parts else "whole"
    tied = _tied(graph, plan, styles)
    for path in tied:
        styles[path.rpartition(".")[0]] = _spelled("linear", "colwise", between, True)
    divided = {label for label in plan.params if label.rpartition(".")[0] in styles}
    gathered = tuple(dict.fromkeys(place for label, place in fed.items() if label not in divided)) if between else ()
    columns = {label for label in divided if plan.styles[label] == "colwise"}
    shared = shared_inputs(graph, columns, fed if between else ())
    return TorchPlan(styles, apart, gathered, tied, _scores_divided(graph, local), plan.own, shared)


def _tied(graph: Graph, plan: Plan, styles: Mapping[str, str]) -> dict[str, str]:
    """The other names of each divided table: those of the heads that multiply by it, column by column of theirs."""
    found = dict[str, str]()
    for place in graph.sources("parameter"):
        label = place.node.label
        if label.rpartition(".")[0] in styles and plan.styles.get(label) == "rowwise":
            others = (note.removeprefix("tied:") for note in place.node.notes if note.startswith("tied:"))
            found |= {other: label for other in others if other.endswith(".weight")}
    return found


def _fed_by_gathers(local: Graph, ranks: Expr) -> dict[str, str]:
    """What reads parts of a sequence that these ranks gather in forward: the label of a product's weight, or else the op,
    with its place in words. Views and copies between them are passed through.
    """
    labels = {p.node.outputs[0].storage: p.node.label for p in local.sources("parameter")}
    tensors, found, ahead = local.tensors(), dict[str, str](), set[str]()
    for place in local.ops:
        node = place.node
        if node.phase not in ("forward", "loss"):
            continue
        if node.op == "c10d.all_gather" and f"axis:{ranks}" in node.notes:
            parts = tensors[next(node.refs).value].shape
            ahead |= {out.value for out in node.outputs if any(whole != part and _of_sequence(whole) for whole, part in zip(out.shape, parts, strict=True))}
        elif any(ref.value in ahead for ref in node.refs):
            roots = [labels[root] for ref in node.refs if (root := tensors[ref.value].storage) in labels]
            if node.op.removeprefix("aten.") in _PASSED:
                ahead |= {out.value for out in node.outputs}
            else:
                found[roots[-1] if node.op in _PRODUCTS and roots else node.place] = node.place
    return found


def _scores_divided(graph: Graph, local: Graph) -> bool:
    """Whether a softmax with logarithm, as losses take, runs over a divided vocabulary."""
    whole = graph.tensors()
    ends = [p.node.outputs[0] for p in local.ops if p.node.op == "aten._log_softmax"]
    return any(out.value in whole and whole[out.value].shape[-1] != out.shape[-1] for out in ends)


def _kinds(graph: Graph) -> dict[str, str]:
    """What each parameter is to its module: a table, a linear weight, or a norm's scale."""
    labels = {p.node.outputs[0].storage: p.node.label for p in graph.sources("parameter")}
    tensors, found = graph.tensors(), {}
    for place in graph.sources("parameter"):
        if len(place.node.outputs[0].shape) == 1:
            found[place.node.label] = "norm"
    for place in graph.ops:
        for name, ref in place.node.arguments:
            root = tensors[value].storage if (value := getattr(ref, "value", None)) in tensors else None
            if root in labels and place.node.phase in ("forward", "loss"):
                if place.node.op == "aten.embedding" and name == "weight":
                    found[labels[root]] = "table"
                elif place.node.op in _PRODUCTS and len(tensors[root].shape) == 2:
                    found.setdefault(labels[root], "linear")
    return found


def _of_sequence(size: Expr) -> bool:
    return any(s.name in _SEQUENCES for s in size.free_symbols)


def _read_in_parts(graph: Graph, local: Graph) -> set[str]:
    """The parameters from which this rank's ops in forward make other lengths of a sequence than the whole graph's, or
    make the whole and take a part.
    """
    labels = {p.node.outputs[0].storage: p.node.label for p in graph.sources("parameter")}
    whole, tensors, found = graph.tensors(), local.tensors(), set[str]()
    made: dict[str, set[str]] = {}
    for node in (place.node for place in local.ops if place.node.phase == "forward"):
        roots = {labels[root] for ref in node.refs if (root := tensors[ref.value].storage) in labels}
        if node.op == "aten.narrow":
            ref, out = next(node.refs), node.outputs[0]
            found |= made.get(ref.value, set()) if _shorter(out.shape, tensors[ref.value].shape) else set()
        elif any(_shorter(out.shape, whole[out.value].shape) for out in node.outputs if out.value in whole):
            found |= roots
        if node.op == "aten.embedding" or node.op.removeprefix("aten.") in _PASSED:
            roots |= {label for ref in node.refs for label in made.get(ref.value, ())}
            made |= {out.value: roots for out in node.outputs}
    return found


def _shorter(part: tuple[Expr, ...], whole: tuple[Expr, ...]) -> bool:
    return any(a != b and _of_sequence(b) for a, b in zip(part, whole, strict=False))


def _spelled(kind: str, style: str, between: str, gathered: bool) -> str:
    said = []
    if style == "rowwise":
        said += ["input_layouts=Replicate()"] if kind == "table" else []
        said += [f"output_layouts={between}"] if between else []
        return f"RowwiseParallel({', '.join(said)})"
    said += [f"input_layouts={between}"] if between and kind == "linear" and gathered else []
    return f"ColwiseParallel({', '.join([*said, 'use_local_output=False'])})"


def _placement(part: Part) -> str:
    parts = len(part.pieces) or part.outer
    return f"Shard({part.dim})" + ("" if parts == 1 else f" of each of its {parts} parts")


def sequence_dims(graph: Graph, local: Graph, ranks: Expr) -> set[int]:
    """Where the sequence lies in the outputs that these ranks scatter: not in what context ranks do, keys and values."""
    shapes, made, found = graph.tensors(), local.tensors(), set[int]()
    for place in local.ops:
        summed = place.node.op == "c10d.reduce_scatter" and place.node.phase in ("forward", "loss")  # others of keys, in backward
        if summed and f"axis:{ranks}" in place.node.notes:
            value = next(place.node.refs).value
            shape = (shapes.get(value) or made[value]).shape
            found |= {k for k, size in enumerate(shape) if str(size) in _SEQUENCES}
    return found


def given_in_parts(graph: Graph, local: Graph) -> tuple[int | None, ...]:
    """Of each input of the graph the dimension of which these ranks have parts, if any."""
    tensors, found = local.tensors(), []
    for place in graph.sources("input"):
        whole = place.node.outputs[0]
        part = tensors[whole.value].shape
        found.append(next((k for k, size in enumerate(whole.shape) if size != part[k]), None))
    return tuple(found)


def needed_in_parts(local: Graph, ranks: Expr) -> dict[str, bool]:
    """The whole weights of products of whose outputs, in forward, each rank then takes its part; whether that is of
    the outputs as they are, at most repeated.
    """
    makers = {out.value: place.node for place in local.ops for out in place.node.outputs}
    tensors = local.tensors()
    labels = {p.node.outputs[0].storage: p.node.label for p in local.sources("parameter")}
    cut = [p.node for p in local.ops if p.node.op == "aten.narrow" and f"axis:{ranks}" in p.node.notes]
    ahead = [(ref.value, True) for node in cut if node.phase in ("forward", "loss") for ref in node.refs]
    found, seen = dict[str, bool](), set[tuple[str, bool]]()
    while ahead:
        value, plain = step = ahead.pop()
        maker = makers.get(value)
        if maker is None or step in seen:
            continue
        seen.add(step)
        roots = {tensors[ref.value].storage for ref in maker.refs} & labels.keys()
        if maker.op in _PRODUCTS or maker.op.startswith("c10d."):
            found |= {labels[root]: plain and found.get(labels[root], True) for root in roots}
        else:
            plain = plain and (maker.op.removeprefix("aten.") in FACES or maker.op == "aten.repeat")
            ahead += [(ref.value, plain) for ref in maker.refs]
    return found
