"""Sizes of traced models solved for, against brute force: batch, sequence, depth, fewest ranks."""

from __future__ import annotations

from functools import cache

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from symacct.account import Ledger
from symacct.evaluation import evaluate
from symacct.parallel import rank, read_degrees
from symacct.plan.fitting import demand, solve
from symacct.plan.ranks import demand_of, fewest_ranks
from symacct.symbols import symbol
from symacct.targets import graph_of

SIZES = {"B": 2, "T": 16, "V": 96, "L": 3, "d": 32, "h": 4, "h_kv": 2, "d_h": 8, "f": 64}


@cache
def wanted(name, degrees=""):
    """What a step of the model needs, or of one of its ranks, and the sizes and numbers of ranks."""
    graph = graph_of(name)
    sizes = {key: SIZES[key] for key in graph.symbols}
    if not degrees:
        return demand(graph, Ledger(graph).formulas), sizes, graph.assumptions
    mine = rank(graph, read_degrees(degrees), sizes)
    return demand_of(mine, lambda expr: expr), {**sizes, **mine.numbers}, mine.conditions


def needs(found, sizes):
    return max(evaluate(form.bytes, sizes) for form in found.forms)


@pytest.mark.parametrize("size", ["B", "T", "L"])
@pytest.mark.parametrize(
    ("name", "degrees"),
    [("gpt2", ""), ("llama", ""), ("gpt2", "pp=3,m=6"), ("llama", "tp=2,sp,dp=2,zero=3,m=2")],
)
@given(largest=st.integers(1, 40), extra=st.floats(0, 1))
@settings(max_examples=6, deadline=None)
def test_the_largest_size_is_what_counting_up_finds(name, degrees, size, largest, extra):
    """A memory between what two neighbouring sizes need: the largest that the conditions allow is found."""
    found, sizes, conditions = wanted(name, degrees)
    allowed = [
        x
        for x in range(1, 80)
        if all(a.holds({symbol(k): sp.Integer(v) for k, v in {**sizes, size: x}.items()}) for a in conditions)
    ]
    low, high = (needs(found, {**sizes, size: x}) for x in (largest, largest + 1))
    memory = int(low + (high - low) * extra)
    truth = [x for x in allowed if needs(found, {**sizes, size: x}) <= memory]
    solution = solve(found, memory, size, sizes, conditions)
    assert solution.solved.number == (truth[-1] if truth else None)
    if solution.closed is not None:  # the written bound lies below the next size that its form stops
        known = {symbol(k): sp.Integer(v) for k, v in sizes.items() if k != size}
        bound = solution.closed.number(memory, known)
        at = {**sizes, size: bound}
        assert bound < 1 or evaluate(solution.form.bytes, at) <= memory
        assert evaluate(solution.form.bytes, {**at, size: max(bound, 0) + 1}) > memory


@pytest.mark.parametrize(
    "degrees", ["dp=2,zero=1", "dp=2,zero=3", "dp=2,zero=3,tp=2", "dp=2,zero=2,pp=3,m=6"]
)
@given(ranks=st.integers(1, 40), extra=st.floats(0, 1))
@settings(max_examples=6, deadline=None)
def test_the_fewest_ranks_are_what_counting_up_finds(degrees, ranks, extra):
    graph = graph_of("llama")
    sizes = {key: SIZES[key] for key in graph.symbols}
    mine, (found, known, _) = rank(graph, read_degrees(degrees), sizes), wanted("llama", degrees)
    less, more = (needs(found, {**known, "dp": n}) for n in (ranks + 1, ranks))
    memory = int(less + (more - less) * extra)
    truth = next((n for n in range(1, 200) if needs(found, {**known, "dp": n}) <= memory), None)
    fewest = fewest_ranks(mine, found, memory, known)
    assert fewest.number == truth
    if truth is not None:  # the inequality that is written is that of the form that asks for so many
        numbers = {symbol(name): value for name, value in known.items()}
        over, rest = (part.xreplace(numbers) for part in (fewest.over, fewest.rest))
        assert sp.ceiling(over / (memory - rest)) == truth or truth == 1


def test_of_forms_that_ask_for_as_many_ranks_the_one_that_binds_is_written():
    """In 2.2 MB two forms of gpt2's rank ask for 3 ranks, by 2.11 and by 2.77: at 2 ranks the second is the peak."""
    graph, memory = graph_of("gpt2"), 2_200_000
    sizes = {"B": 1, "T": 8, "V": 40, "L": 4, "d": 64, "h": 2, "f": 256}
    mine = rank(graph, read_degrees("dp=2,zero=2"), sizes)
    found, known = demand_of(mine, lambda expr: expr), {**sizes, **mine.numbers}
    fewest = fewest_ranks(mine, found, memory, known)
    assert fewest.number == 3 and evaluate(fewest.form.bytes, {**known, "dp": 2}) == needs(found, {**known, "dp": 2})
