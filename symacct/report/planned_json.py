"""The answer of `plan` as JSON: formulas as text that reads back, bytes and FLOPs as integers, times as
numbers.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from symacct.formula_text import to_text
from symacct.parallel.torch_styles import TorchPlan
from symacct.plan.bound import bound
from symacct.plan.fitting import Form, Solution
from symacct.plan.planning import Plan
from symacct.plan.remedies import Remedy
from symacct.plan.serving import Pass
from symacct.plan.training_time import Run
from symacct.report.answer import Answer
from symacct.report.planned_formulas import closed


def as_json(plan: Plan, answer: Answer, roof: Any = None) -> str:
    """One object; a part that does not apply is absent."""
    ledger, device = plan.case.ledger, plan.question.card
    found: dict[str, Any] = {
        "target": ledger.graph.target,
        "mode": ledger.graph.mode,
        "card": {
            "name": device.name,
            "asked": device.asked,
            "count": plan.question.cards,
            "peaks": dict(device.peaks),
            "memory": device.memory,
            "bandwidth": device.bandwidth,
            "link": device.link,
            "source": device.source,
            "notes": device.notes,
            "precision": plan.precision,
        },
        "sizes": dict(plan.sizes),
        "assumptions": [a.text for a in ledger.graph.assumptions],
        "convention": ledger.convention.as_json(),
        "notes": list(plan.notes),
        "formulas": {key: to_text(value) for key, value in answer.formulas.items()},
        "values": answer.values,
        "memory": _memory(plan),
    }
    if plan.solution is not None:
        found["solved"] = _solved(plan.solution, answer, plan.fit.memory)
        if plan.enough is not None:
            found["solved"]["enough"] = {plan.enough.size.name: plan.enough.number}
    if plan.training is not None:
        found["time"] = _time(plan)
    if plan.served is not None:
        found["serving"] = _serving(plan)
    if plan.rank is not None:
        found["parallel"] = _parallel(plan)
    limit = bound(plan, roof)
    if limit is not None:
        found["bound"] = {
            "by": limit.limit,
            "seconds": {name: _number(value) for name, value in limit.seconds.items()},
            "bytes": "merged" if limit.merged else "unfused",
        }
    if plan.remedies:
        found["remedies"] = [_remedy(plan, remedy) for remedy in plan.remedies]
    if roof is not None:
        from symacct.report import roofed

        found["roofline"] = roofed.as_json(roof)
    return json.dumps(found, indent=2, ensure_ascii=False)


def _number(value: int | Fraction) -> int | float:
    """A whole number as it is; any other as the nearest float, for that is what JSON's readers make of it."""
    exact = Fraction(value)
    return int(exact) if exact.denominator == 1 else float(exact)


def _memory(plan: Plan) -> dict[str, Any]:
    found = plan.fit
    return {
        "limit": found.memory,
        "need": int(found.need),
        "bound": plan.demand.bound,
        "fits": found.fits,
        "short": int(found.short),
        "kinds": {kind: int(number) for kind, number in found.kinds.items()},
        "peak": _place(found.form),
    }


def _place(form: Form) -> dict[str, str]:
    return {"op": form.op, "module": form.module, "phase": form.phase, "formula": to_text(form.bytes)}


def _solved(solution: Solution, answer: Answer, limit: int) -> dict[str, Any]:
    found = solution.solved
    made: dict[str, Any] = {
        "size": found.size,
        "largest": found.number,
        "smallest": found.smallest,
        "next": found.next,
    }
    if found.number is None:
        made["short"] = int(found.short)
    if solution.form is not None:
        made |= {"binding": _place(solution.form), "kind": solution.kind}
    if solution.condition:
        made["condition"] = solution.condition
    if solution.closed is not None:
        parts = {"a": solution.closed.a, "b": solution.closed.b, "c": solution.closed.c}
        made["inverse"] = {key: to_text(part) for key, part in parts.items()} | {"limit": limit}
        made["closed"] = next(iter(closed(solution.closed, answer, limit)))
    if found.gaps:
        made["gaps"] = list(found.gaps)
    if found.tried is not None:
        made["tried"] = found.tried
    return made


def _time(plan: Plan) -> dict[str, Any]:
    found, question = plan.training, plan.question
    assert found is not None
    made: dict[str, Any] = {
        "step": {name: to_text(expr) for name, expr in found.step.items()},
        "counted": found.chosen,
        "flops": _number(found.run.flops),
        "at_peak": _run(found.run, question.price),
    }
    if found.at_mfu is not None:
        made["at_mfu"] = _run(found.at_mfu, question.price) | {"mfu": _number(found.at_mfu.mfu)}
    if question.amount is not None:
        made[question.unit] = _number(question.amount)
        made["optimizer_steps"] = _number(found.steps or 0)
    if found.in_time is not None:
        made["cards_in_time"] = found.in_time
    if found.mfu is not None and found.hfu is not None:
        made["measured"] = {"mfu": _number(found.mfu), "hfu": _number(found.hfu)}
    return made


def _run(run: Run, price: Fraction | None) -> dict[str, Any]:
    made = {"seconds": _number(run.seconds), "days": _number(run.days), "card_hours": _number(run.card_hours)}
    return made if price is None else {**made, "cost": _number(run.cost(price))}


def _serving(plan: Plan) -> dict[str, Any]:
    found, question = plan.served, plan.question
    assert found is not None
    made: dict[str, Any] = {"cache": to_text(found.cache), "tables": to_text(found.tables)}
    for name, part in (("least", found.least), ("traced", found.traced)):
        made[name] = _pass(part, question.price)
    rest = {
        "experts_read": found.experts,
        "seconds": found.seconds,
        "mfu": found.mfu,
        "bandwidth_used": found.mbu,
        "tokens_per_second": found.rate,
        "cost_of_a_million": found.cost(question.price) if question.price and found.rate else None,
    }
    return made | {key: _number(value) for key, value in rest.items() if value is not None}


def _pass(part: Pass, price: Fraction | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "bytes": _number(part.bytes),
        "flops": _number(part.flops),
        "seconds": _number(part.seconds),
        "limit": part.limit,
        "tokens_per_second": _number(part.throughput),
    }
    return made if price is None else {**made, "cost_of_a_million": _number(part.cost(price))}


def _remedy(plan: Plan, remedy: Remedy) -> dict[str, Any]:
    made: dict[str, Any] = {"remedy": remedy.name, "kind": remedy.kind, "how": remedy.how}
    if remedy.becomes is not None:
        made |= {"becomes": to_text(remedy.becomes), "bytes": remedy.bytes(plan.sizes)}
    if remedy.sizes:
        made["at"] = dict(remedy.sizes)
    if remedy.peak is not None:
        made |= {
            "peak": int(remedy.peak),
            "saves": int(plan.fit.need - remedy.peak),
            "bound": remedy.bound,
        }
    if remedy.more is not None:
        made["more_flops"] = to_text(remedy.more)
    return made


def _parallel(plan: Plan) -> dict[str, Any]:
    rank = plan.rank
    assert rank is not None
    made = {} if plan.fewest is None else {"fewest": {plan.fewest.size.name: plan.fewest.number}}
    return made | {
        "degrees": dict(rank.numbers),
        "devices": rank.degrees.devices,
        "peaks": [{"stage": form.phase, "formula": to_text(form.bytes)} for form in plan.demand.forms],
        "fullest": plan.fit.form.phase,
        "flops": {key: to_text(value) for key, value in rank.flops.items()},
        "idle": to_text(rank.idle),
        "held_whole": dict(rank.whole),
        **_styles(plan.torch),
        "sent": [
            {
                "axis": row.axis,
                "collective": row.kind,
                "count": _number(row.count),
                "formula": to_text(row.formula),
                "bytes": _number(row.bytes),
            }
            | ({} if row.seconds is None else {"seconds": _number(row.seconds)})
            | ({} if row.tree is None else {"tree": {"formula": to_text(row.tree), "bytes":
            _number(row.tree_bytes)}}) for row in plan.links ], }


def _styles(plan: TorchPlan | None) -> dict[str, Any]:
    """The plan for torch's `parallelize_module`: each style as the call that makes it."""
    if plan is None:
        return {}
    return {
        "styles": {
            "source": "--styles" if plan.own else "proposed",
            "plan": dict(plan.styles),
            "apart": dict(plan.apart),
            "gathered_before": list(plan.gathered),
            "tied": dict(plan.tied),
            "loss_parallel": plan.loss,
            "shared_inputs": [
                {
                    "modules": list(group.paths),
                    "around": group.around,
                    "more": [
                        {"collective": more.kind, "phase": more.phase, "count": to_text(more.count), "bytes": to_text(more.bytes)}
                        for more in group.more
                    ],
                }
                for group in plan.shared
            ],
        }
    }
