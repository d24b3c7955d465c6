"""The roofline of a step in words: what it can reach at most, which modules take the time, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.devices import precision_of
from symacct.evaluation import evaluate
from symacct.formula_text import to_text
from symacct.plan import friendliness, slowness
from symacct.plan.roofline import Part, Roof, Roofline, quotient
from symacct.report.grids import Column, Grid, Page
from symacct.report.numbers import grouped, size
from symacct.report.rates import digits, duration, percent, rate
from symacct.report.readable import Reading, readable, reading_of, text
from symacct.report.unroofed import besides

Under = Callable[[Expr], Expr]
_MOST = 12
_OPS = 6
_HOST_LAUNCH = Fraction(
    10, 10**6
)  # the order of what an eager op costs the host; decides only what stands first
_LABEL = 10
_LEAST = 2000  # a loss of less than this part of the time is not told


def as_text(page: Page, found: Roofline, under: Under = lambda expr: expr) -> None:
    """Ceilings, modules and reasons, the largest first. `under` applies given relations."""
    device = found.device
    page.line("roofline", "bold")
    facts = [device.name, f"products in {found.precision} at {rate(found.unfused.peak, 'FLOP')}"]
    facts += [f"memory at {rate(device.needed('bandwidth'), 'B')}", f"ridge {digits(found.ridge)} FLOP/B"]
    page.hanging("", facts, 0, " · ")
    for remark in _remarks(found):
        page.hanging("note", [remark], _LABEL)
    page.line()
    page.grid(_ceilings(found, under))
    page.line()
    page.grid(_parts(found, "module", found.unfused.modules, found.fused.modules, _MOST))
    page.line()
    page.grid(_parts(found, "op", found.unfused.ops, (), _OPS))
    page.line()
    page.grid(_intensities(found, under))
    page.line()
    page.line("why MFU is low: the unfused time in parts, the largest loss first", "bold")
    page.grid(_losses(found))
    page.line()
    for label, sentence in besides(found, under):
        page.hanging(label, [sentence], _LABEL)


def _remarks(found: Roofline) -> Iterator[str]:
    dtypes = {b.kernel.dtype for b in found.unfused.bounds if b.product}
    own = {precision_of(dtype) for dtype in dtypes}
    if own and found.precision not in own and not (found.precision == "tf32" and own == {"fp32"}):
        yield (
            f"bytes are those of the graph's {', '.join(sorted(dtypes))}; a model file derived with --dtype "
            f"{found.precision} moves its own"
        )
    ideal = Fraction(found.unfused.model, found.unfused.peak)
    if slowness.useful(found) < ideal:
        share = 1 - slowness.useful(found) / ideal
        yield (
            f"MFU counts all of attention's square; {percent(share)} of these FLOPs are pairs behind a "
            "causal mask, which kernels skip, so it could pass 100 %"
        )


def _ceilings(found: Roofline, under: Under) -> Grid:
    """What the step can reach at most: arithmetic alone, fused, op by op."""
    computing = found.computing
    alone = Fraction(found.unfused.model) / (found.unfused.peak * computing) if computing else Fraction(0)
    rows = [("products alone, no byte moved", "", "", "", duration(computing), percent(alone))]
    for name, roof in (
        ("element-wise chains fused", found.fused),
        ("op by op, as eager code runs", found.unfused),
    ):
        formula = text(readable(under(roof.launches), reading_of(found.ledger.graph)))
        moved = size(roof.bytes).partition(" (")[0]
        rows.append((name, formula, grouped(roof.launched), moved, duration(roof.seconds), percent(roof.mfu)))
    columns = (
        Column("step"),
        Column("launches", "formula"),
        Column("", "right"),
        Column("moved", "right"),
        Column("at least", "right"),
        Column("MFU at most", "right"),
    )
    return Grid(columns, tuple(rows))


def _parts(found: Roofline, kind: str, parts: Sequence[Part], merged: Sequence[Part], most: int) -> Grid:
    """The widest modules or ops by their unfused time: what bounds them, and their time with fused chains."""
    whole, fused = found.unfused.seconds, {part.name: part.seconds for part in merged}
    shown = parts if len(parts) <= most + 1 else parts[:most]
    rows = [(part.name, part.limit, _ratio(part), *_times([part], whole, fused)) for part in shown]
    if len(shown) < len(parts):
        rows.append((f"{len(parts) - most} more", "", "", *_times(parts[most:], whole, fused)))
    headings = ("FLOP/B", "at least", "share", "fused")
    columns = (Column(kind), Column("bound by"), *(Column(heading, "right") for heading in headings))
    return Grid(columns, tuple(rows))


def _ratio(part: Part) -> str:
    return digits(part.intensity) if part.product else "—"


def _times(parts: Sequence[Part], whole: Fraction, fused: Mapping[str, Fraction]) -> tuple[str, str, str]:
    """The time of parts together, its share of the whole, and what fusing leaves of it."""
    seconds = sum((part.seconds for part in parts), Fraction(0))
    merged = sum((fused.get(part.name, Fraction(0)) for part in parts), Fraction(0))
    return duration(seconds), percent(seconds / whole) if whole else "", duration(merged) if fused else ""


def _intensities(found: Roofline, under: Under) -> Grid:
    """Product FLOPs for each byte moved, as formulas, of the modules that multiply."""
    reading = reading_of(found.ledger.graph)
    rows = []
    for part in [part for part in found.unfused.modules if part.product][:_MOST]:
        formula = quotient(*map(under, part.totals))
        rows.append((part.name, _quotient(formula, reading), digits(part.intensity)))
    columns = (
        Column("module"),
        Column("product FLOPs for each byte, op by op", "formula"),
        Column("FLOP/B", "right"),
    )
    return Grid(columns, tuple(rows))


def _quotient(expr: Expr, reading: Reading) -> str:
    """A quotient with brackets only where they are needed."""
    parts = sp.fraction(expr)
    above, below = (text(readable(side, reading)) for side in parts)
    above = f"({above})" if _is_sum(above) else above
    return above if parts[1] == 1 else f"{above} / {below if below.isalnum() else f'({below})'}"


def _is_sum(formula: str) -> bool:
    """Whether a sign stands outside of all brackets."""
    depth = 0
    for character in formula:
        depth += (character in "(⌊⌈") - (character in ")⌋⌉")
        if not depth and character in "+-":
            return True
    return False


def _losses(found: Roofline) -> Grid:
    whole = found.unfused.seconds
    rows = [(duration(slowness.useful(found)), percent(slowness.useful(found) / whole), slowness.USEFUL, "")]
    shown = [loss for loss in slowness.losses(found) if loss.seconds * _LEAST >= whole]
    for loss in shown:
        where = ", ".join(name for name in loss.modules[:3] if name)
        more = f"; {loss.remedy}" if loss.remedy else ""
        reason = f"{loss.reason}{f' ({where})' if where else ''}{more}"
        rows.append((duration(loss.seconds), percent(loss.seconds / whole), reason, ""))
    columns = (
        Column("time", "right"),
        Column("share", "right"),
        Column("what it goes to", "text"),
        Column(""),
    )
    return Grid(columns, tuple(rows))


# JSON


def as_json(found: Roofline) -> dict[str, Any]:
    """The same for `json.dumps`: seconds and ratios as numbers, formulas as text, FLOPs and bytes exact."""
    launched, small = friendliness.small(found.ledger, found.sizes)
    whole = found.unfused.seconds
    return {
        "card": found.device.name,
        "precision": found.precision,
        "peak": found.unfused.peak,
        "bandwidth": found.device.needed("bandwidth"),
        "ridge": float(found.ridge),
        "model_flops": found.unfused.model,
        "products_alone": {"seconds": float(found.computing)},
        "fused": _roof(found.fused),
        "unfused": _roof(found.unfused),
        "useful": {"seconds": float(slowness.useful(found)), "share": _share(slowness.useful(found), whole)},
        "losses": [
            {
                "reason": loss.reason,
                "seconds": float(loss.seconds),
                "share": _share(loss.seconds, whole),
                "remedy": loss.remedy,
                "modules": list(loss.modules),
            }
            for loss in slowness.losses(found)
        ],
        "unfriendly": [
            {
                "side": to_text(row.side),
                "size": row.size,
                "divisor": row.divisor,
                "share": float(row.share),
                "modules": list(row.modules),
            }
            for row in friendliness.unfriendly(found.ledger, found.sizes)
        ],
        "padded": {
            str(n): float(friendliness.padded(found.ledger, found.sizes, n)) for n in friendliness.MULTIPLES
        },
        "small": {"launches": launched, "share": float(small)},
        "logits": _logits(found),
        "host_bytes": {
            "formula": to_text(friendliness.host_bytes(found.ledger)),
            "value": evaluate(friendliness.host_bytes(found.ledger), found.sizes),
        },
    }


def _roof(roof: Roof) -> dict[str, Any]:
    return {
        "seconds": float(roof.seconds),
        "mfu": float(roof.mfu),
        "bytes": roof.bytes,
        "launches": {"formula": to_text(roof.launches), "value": roof.launched},
        "modules": [
            {
                "module": part.name,
                "bound": part.limit,
                "seconds": float(part.seconds),
                "product_flops": part.product,
                "bytes": part.bytes,
                "intensity": float(part.intensity),
                "intensity_formula": to_text(part.formula),
            }
            for part in roof.modules
        ],
        "ops": [
            {"op": part.name, "bound": part.limit, "seconds": float(part.seconds), "bytes": part.bytes}
            for part in roof.ops
        ],
    }


def _logits(found: Roofline) -> dict[str, str] | None:
    words = friendliness.vocabulary(found.ledger)
    return None if words is None else {name: to_text(getattr(words, name)) for name in words.__slots__}


def _share(part: Fraction, whole: Fraction) -> float:
    return float(part / whole) if whole else 0.0
