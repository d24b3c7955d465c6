"""The choices of N: how many parameters a model has, by what they are counted for."""

from __future__ import annotations

import sympy as sp
from sympy import Expr

from symacct.account import Ledger, add
from symacct.graph import Placed, total_over
from symacct.routing import copied_from

MEANINGS = {
    "all": "all parameters, tied ones once",
    "trainable": "trainable parameters",
    "active": "parameters that work on one token",
    "non-embedding": "parameters outside lookup tables",
    "matmul": "parameters used in products",
    "active matmul": "parameters used in products on one token",
}
PER_TOKEN = "per token"  # N' of 6·N'·D: what is linear in the tokens, whatever it counts


def counts(ledger: Ledger) -> dict[str, Expr]:
    """N by choice, in the model's sizes. Where no experts are routed, all parameters are active."""
    formulas = ledger.formulas
    total = formulas["params.total"]
    active = formulas.get("params.active", total)
    found = {
        "all": total,
        "trainable": formulas.get("params.trainable", total),
        "active": active,
        "non-embedding": sp.expand(total - formulas.get("params.embedding", 0)),
        "matmul": _in_products(ledger),
    }
    if active != total:
        found["active matmul"] = sp.expand(found["matmul"] - (total - active))
    return found


def _in_products(ledger: Ledger) -> Expr:
    """Parameters that are an operand of a forward product, each once; a cast copy counts as its parameter."""
    idle = {p.node.name for p in idle_parameters(ledger)}
    weights = [p for p in ledger.graph.sources("parameter") if p.node.name not in idle]
    return add(sp.expand(total_over(p.node.outputs[0].numel, p.loops)) for p in weights)


def idle_parameters(ledger: Ledger) -> list[Placed]:
    """Parameters that no forward product multiplies with: biases, norms, tables that are only looked up."""
    storages = {name: value.storage for name, value in ledger.graph.tensors().items()}
    copied = copied_from(ledger.graph, storages)
    used = {
        copied.get(storages[ref.value], storages[ref.value])
        for entry in ledger.entries
        if entry.phase == "forward" and entry.product != 0
        for ref in entry.place.node.refs
    }
    return [
        p
        for p in ledger.graph.sources("parameter")
        if storages[p.node.outputs[0].value] not in used or len(p.node.outputs[0].shape) < 2
    ]
