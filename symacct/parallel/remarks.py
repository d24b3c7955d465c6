"""What a reader must know of a divided step beside its formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from symacct.account import Ledger
from symacct.graph import Graph
from symacct.parallel.degrees import Degrees, Names


def remarks(graph: Graph, degrees: Degrees, names: Names) -> tuple[str, ...]:
    """Sentences. `graph` is one rank's."""
    return tuple(_said(graph, degrees, names))


def _said(graph: Graph, degrees: Degrees, names: Names) -> Iterator[str]:
    if degrees.data * degrees.context > 1 and not degrees.zero:
        yield "gradients are summed where they lie; DDP holds a copy of all in buckets, unless gradient_as_bucket_view=True"
    if degrees.zero:
        yield "ZeRO parts are taken as even; FSDP pads a tensor whose rows the ranks do not divide"
    if degrees.experts > 1:
        yield "tokens are taken as spread evenly over the experts"
    if degrees.context > 1:
        yield "a causal mask leaves context ranks unequal work unless they hold a piece of both ends of the sequence"
        if _attends(graph):
            yield (
                "context ranks gather keys and values, in backward anew, and scatter the sums of their gradients; a ring that "
                "passes them on sends as much, torch's one hop more of the gradients, and those in float32"
            )
        if said := undivided(graph, names):
            yield said


def undivided(graph: Graph, names: Names) -> str:
    """Of which modules every context rank computes all, and why; empty for none."""
    modules = _on_all(graph, names)
    if not modules:
        return ""
    routing = f"; ranks that route their own tokens alone do 1/{names.of['cp']} of that" * ("E" in graph.symbols)
    return f"products of {', '.join(modules)} are of the whole sequence on every context rank, as no law divides the ops around them{routing}"


def held_whole(whole: Mapping[str, str]) -> list[str]:
    """Of weights that every rank holds whole, by label with the reason: a sentence for each reason, with all that share it."""
    by_reason: dict[str, list[str]] = {}
    for label, why in whole.items():
        by_reason.setdefault(why, []).append(label)
    return [f"{', '.join(labels)} {'is' if len(labels) == 1 else 'are'} held whole by every rank: {why}" for why, labels in by_reason.items()]


def _attends(graph: Graph) -> bool:
    return any(place.node.op.startswith("aten._scaled_dot_product_") for place in graph.ops)


def _on_all(graph: Graph, names: Names) -> list[str]:
    """Modules whose products all context ranks do alike."""
    c, sequences = names.of["cp"], {"T", "S"}
    return list(
        dict.fromkeys(
            entry.place.node.module or "the model"
            for entry in Ledger(graph, allow_unknown=True).entries
            if entry.phase == "forward" and c not in entry.product.free_symbols and sequences & {s.name for s in entry.product.free_symbols}
        )
    )
