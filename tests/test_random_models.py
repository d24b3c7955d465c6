"""Random models at random sizes: formulas equal executions.

`SYMACCT_EXAMPLES=500 pytest tests/test_random_models.py` tries that many.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from random_models import EXAMPLES, inputs, module, plans

import symacct
from symacct.account import Ledger
from symacct.oracles import measure

COUNT = int(os.environ.get("SYMACCT_EXAMPLES", "10"))
STEPS = {"d": 8, "f": 8, "c": 4}
LEAST = {"H": 12, "W": 12, "T": 1, "L": 1}


@st.composite
def sizes(draw, names):
    """Sizes unlike the examples; channels are multiples of 4, so that every number of heads and groups divides them."""
    found = {}
    for name in names:
        few = draw(st.integers(1, 5))
        if name == "h":  # no head is one wide: torch.einsum turns a product over one element into a multiplication
            found[name] = draw(st.integers(1, 2))
        else:
            found[name] = few * STEPS.get(name, 1) + LEAST.get(name, 0)
    return found


def with_sizes(function, names):
    """`function(sizes)` as a function whose parameters are these names, as model files write them."""
    source = f"def of_sizes({', '.join(names)}):\n    return function({{{', '.join(f'{n!r}: {n}' for n in names)}}})"
    scope = {"function": function}
    exec(source, scope)
    return scope["of_sizes"]


def derived(plan, grad):
    names = plan.names
    made = symacct.derive(
        model=with_sizes(lambda now: module(plan, now), names),
        inputs=with_sizes(lambda now: inputs(plan, now, grad), names),
        dims={name: EXAMPLES[name] for name in names},
    )
    # kept bytes at sizes of 1 are not looked at here, and would cost runs
    return Ledger(replace(made.graph, limits=(), measured=None))


@settings(max_examples=COUNT, suppress_health_check=list(HealthCheck))
@given(st.data(), plans(), st.booleans())
def test_formulas_equal_execution(data, plan, grad):
    grad = grad and plan.start != "tokens"
    ledger = derived(plan, grad)
    note(f"{ledger.formulas}")
    for _ in range(2):
        point = data.draw(sizes(plan.names))
        torch.manual_seed(0)
        run = measure(module(plan, point), inputs(plan, point, grad))
        got = ledger.at(**point)
        shown = {
            "params.total": run.params_total,
            "params.trainable": run.params_trainable,
            "params.embedding": run.params_embedding,
            "bytes.params": run.params_bytes,
            "bytes.grads": run.grads_bytes,
            "bytes.optimizer": run.optimizer_bytes,
            "flops.forward": run.flops_forward,
            "flops.backward": run.flops_backward,
            "flops.hardware": run.flops_forward + run.flops_hardware_backward,
            "flops.optimizer": 0,
        }
        assert {key: got.get(key, 0) for key in shown} == shown, f"at {point}: {run.notes}"
