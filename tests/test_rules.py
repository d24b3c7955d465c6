"""Every rule against counts made by hand, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import rule_rows_sums  # noqa: F401, its rows join the table
import sympy as sp
from rule_rows import OUT, ROWS, t
from rule_rows_products import MN, SMALL, A, B

from symacct.graph import Tensor
from symacct.rules import RULES, Cost, DuplicateRule, find, price, rule
from symacct.symbols import symbol

KINDS = ("product", "elementwise", "reduction", "transcendental", "recomputed", "causal", "read", "written")


def operands(value):
    """Tensors given by themselves, each once, and all entries of lists."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for entry in value for tensor in operands(entry)] if isinstance(value, tuple) else []


def defaults(values, out):
    once = {v.value: v for v in values.values() if isinstance(v, Tensor)}
    listed = [tensor for v in values.values() if isinstance(v, tuple) for tensor in operands(v)]
    return {
        "read": sum(tensor.bytes for tensor in [*once.values(), *listed]),
        "written": sum(tensor.bytes for tensor in operands(out)),
    }


@pytest.mark.parametrize(("op", "values", "out", "expected"), ROWS, ids=[f"{n}-{r[0]}" for n, r in enumerate(ROWS)])
def test_a_rule_counts_what_a_person_counts(op, values, out, expected):
    cost = price(op, values, out)
    wanted = {**dict.fromkeys(KINDS, 0), "causal": None, **defaults(values, out), **expected}
    assert {kind: getattr(cost, kind) for kind in KINDS} == wanted


def test_every_rule_has_a_row():
    exercised = {find(op).op for op, *_ in ROWS if find(op)} | {op for op, *_ in ROWS}
    assert {op for op in RULES if not op.startswith("c10d.")} - exercised == set()
    assert all(find(op) for op, *_ in ROWS)


def test_every_rule_states_its_law_on_one_line():
    for entry in RULES.values():
        assert entry.law.endswith(".") and len(entry.law) > 20, entry.op


def test_costs_of_symbolic_sizes_are_exact_expressions():
    b, m, k, n = map(symbol, "BmkN")
    cost = price(
        "aten.addmm", {"self": t("c", n), "mat1": t("a", b * m, k), "mat2": t("w", k, n)}, t("o", b * m, n)
    )
    assert cost == Cost(
        product=2 * b * m * k * n,
        elementwise=b * m * n,
        read=4 * n + 4 * b * m * k + 4 * k * n,
        written=4 * b * m * n,
    )
    query, key = t("q", b, 3, n, k), t("k", b, 3, n, k)
    causal = price(
        "aten._scaled_dot_product_flash_attention",
        {"query": query, "key": key, "value": key, "is_causal": True},
        query,
    )
    assert sp.expand(causal.causal - 4 * k * 3 * b * (n * n - n * (n - 1) / 2)) == 0
    assert not any(getattr(causal, kind).atoms(sp.Float) for kind in KINDS)


def symbolic(value):
    """The same argument with a symbol for each size above 1, the same for equal sizes."""
    if isinstance(value, Tensor):
        return replace(value, shape=tuple(n if n <= 1 else symbol(f"n{n}") for n in value.shape))
    return tuple(map(symbolic, value)) if isinstance(value, tuple) else value


SYMBOLIC = [(op, values, out) for op, values, out, _ in ROWS if "grid_sampler" not in op]


@pytest.mark.parametrize(("op", "values", "out"), SYMBOLIC, ids=[f"{n}-{r[0]}" for n, r in enumerate(SYMBOLIC)])
def test_a_symbolic_cost_is_exact_and_has_the_hand_counted_value(op, values, out):
    symbols = {name: symbolic(value) for name, value in values.items()}
    cost, counted = price(op, symbols, symbolic(out)), price(op, values, out)
    for kind in KINDS:
        expression = sp.sympify(getattr(cost, kind))
        assert expression is None or not expression.atoms(sp.Float)
        sizes = {s: int(s.name[1:]) for s in expression.free_symbols} if expression is not None else {}
        assert (expression if expression is None else expression.xreplace(sizes)) == getattr(counted, kind)


def test_alike_tensors_of_a_list_count_as_often_as_they_stand_for():
    layers = symbol("L")
    weights = Tensor("w", (sp.Integer(30),), "float32", "w", times=layers)
    cost = price("aten._foreach_sqrt", {"self": (weights, SMALL)}, (weights, SMALL))
    assert (cost.transcendental, cost.read) == (30 * layers + 4, 120 * layers + 16)


def test_an_op_without_a_rule_is_an_error_and_never_zero():
    assert find("bugpool.secret_mm") is None
    with pytest.raises(KeyError, match="secret_mm"):
        price("bugpool.secret_mm", {}, OUT)


def test_a_users_rule_joins_without_changing_the_table():
    mine = {**RULES, "my.op": RULES["aten.mm"]}
    assert price("my.op", {"self": A, "mat2": B}, MN, mine).product == 60
    assert "my.op" not in RULES
    with pytest.raises(TypeError):
        RULES["my.op"] = mine["my.op"]


def test_two_rules_for_one_op_are_refused():
    with pytest.raises(DuplicateRule, match=r"aten\.mm: product and .*again"):

        @rule("aten.mm")
        def again() -> Cost:
            """Nothing."""
            return Cost()
