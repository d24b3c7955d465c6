"""Which FLOPs a plan counts: the estimates of a step, those that hardware executes, a rank's own."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

import sympy as sp

import symacct
from symacct.account import Ledger
from symacct.conventions import convention
from symacct.devices import device
from symacct.parallel import rank, read_degrees
from symacct.plan.inference import serve
from symacct.plan.planning import plan
from symacct.plan.question import Case, Question
from symacct.plan.roofline import roofline
from symacct.plan.training_time import estimates, tokens_of
from symacct.symbols import symbol
from symacct.targets import graph_of

ROOT = Path(__file__).parents[1]
B, T, V, L, d = map(symbol, "BTVLd")
H100 = device("h100").peak("bf16")
LLAMA2_13B = {"V": 32000, "L": 40, "d": 5120, "h": 40, "h_kv": 40, "d_h": 128, "f": 13824}


@cache
def stored(name, author=None):
    return Ledger(graph_of(name), convention(author))


def test_the_estimates_of_a_step():
    ledger = stored("gpt2")
    found = estimates(ledger.graph, ledger.formulas, ledger.convention)
    assert set(found) == {"exact", "6ND", "6ND+attention"}
    assert sp.expand(found["6ND"] - 6 * ledger.formulas["params.total"] * B * T) == 0
    assert sp.expand(found["6ND+attention"] - found["6ND"] - 12 * B * L * T**2 * d) == 0
    kaplan = estimates(ledger.graph, ledger.formulas, convention("kaplan"))["6ND"]
    tables = (V + T) * d
    assert sp.expand(kaplan - 6 * (ledger.formulas["params.total"] - tables) * B * T) == 0
    macs = Ledger(ledger.graph, convention(None, unit="MAC"))
    assert estimates(macs.graph, macs.formulas, macs.convention)["exact"] == found["exact"]


def test_models_without_tokens_have_one_count():
    ledger = stored("resnet50")
    assert tokens_of(ledger.graph) is None
    assert set(estimates(ledger.graph, ledger.formulas, ledger.convention)) == {"exact"}
    assert tokens_of(stored("t5").graph) is None  # the encoder's and the decoder's differ
    electra = stored("gpt2", "electra")  # every operation, and a backward of one forward: no 6·N of a token
    assert set(estimates(electra.graph, electra.formulas, electra.convention)) == {"exact"}


def test_a_rank_of_experts_reads_its_own():
    """Half of the experts' weights on each of two ranks; 4 prompts of 8 tokens pick nearly all of 4."""
    sizes = {"B": 4, "T": 8, "V": 64, "L": 2, "d": 16, "h": 4, "h_kv": 2, "d_h": 4, "f": 32, "E": 4, "k": 2}
    ledger = stored("mixtral")
    made = rank(ledger.graph, read_degrees("dp=2,ep=2"), sizes)
    case = Case(ledger, ledger.formulas, lambda expr: expr, {**sizes, **made.numbers})
    served = serve(case, Question(device("h100"), cards=2, replicas=2), "bf16", made)
    experts = 4 * 2 * 4 * 3 * 16 * 32  # bytes of all
    others = ledger.at(**sizes)["bytes.params"] - experts
    assert served.least.bytes == others + Fraction(experts, 2) * (1 - Fraction(1, 2) ** 32)


def test_a_prompt_takes_as_long_as_the_pairs_that_are_computed():
    """Of a causal square of T² pairs, T·(T + 1)/2: latency and the roofline's products then take the same time."""
    sizes = {**LLAMA2_13B, "B": 1, "T": 16384}
    ledger = symacct.derive(str(ROOT / "examples" / "llama.py"), mode="prefill", dtype="bf16")
    case = Case(ledger, ledger.formulas, lambda expr: expr, sizes, ledger.graph.assumptions)
    served = plan(case, Question(device("h100"), rate=Fraction(1000))).served
    d, f, length, layers = 5120, 13824, 16384, 40
    others = 2 * length * (32000 * d + layers * (4 * d * d + 3 * d * f))
    pairs = length * (length + 1) // 2
    assert served.least.flops == others + 4 * layers * pairs * d
    assert served.counted == others + 4 * layers * length**2 * d == ledger.at(**sizes)["flops.forward"]
    assert served.least.seconds == roofline(ledger, device("h100"), sizes).computing
    assert served.mfu == Fraction(1000, length) * served.counted / H100  # as its convention has it
