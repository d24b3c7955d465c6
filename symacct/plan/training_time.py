"""How long training takes, what it costs, and how near it comes to the hardware's peak. Exact: integers and
fractions.

MFU, model FLOPs utilisation, is (model FLOPs of all cards together) / (cards · peak · time), with the FLOPs
of the unsharded model and nothing recomputed (Chowdhery et al. 2022, Appendix B); HFU counts recomputation as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from sympy import Expr

from symacct.conventions import Convention
from symacct.errors import SizeError
from symacct.evaluation import Number, evaluate
from symacct.graph import Graph

HOUR, DAY = 3600, 86400
PETAFLOP_DAY = 10**15 * DAY
ESTIMATES = ("exact", "6ND", "6ND+attention")
PER_TOKEN = 6  # 2 forward, 4 backward


@dataclass(frozen=True, slots=True)
class Run:
    """`flops` on `cards` cards of `peak` FLOP/s each, at the share `mfu` of that peak.

    `busiest` are those that the busiest card takes time for, waiting counted as work; None where all do alike.
    """

    flops: Number
    peak: int
    cards: int = 1
    mfu: Fraction = Fraction(1)
    busiest: Number | None = None

    @property
    def seconds(self) -> Fraction:
        """How long it takes."""
        if self.busiest is not None:
            return Fraction(self.busiest) / (self.peak * self.mfu)
        return Fraction(self.flops) / (self.cards * self.peak * self.mfu)

    @property
    def days(self) -> Fraction:
        return self.seconds / DAY

    @property
    def card_hours(self) -> Fraction:
        """Hours of all cards together."""
        return self.cards * self.seconds / HOUR

    def cost(self, price: Number) -> Fraction:
        """In the unit of `price`, that of a card for an hour."""
        return self.card_hours * price


def flops_in(seconds: Number, rate: Number, cards: int = 1) -> Fraction:
    """FLOPs that cards do in this time at `rate` FLOP/s each: peak times MFU, or a measured rate."""
    return Fraction(seconds) * rate * cards


def utilisation(flops: Number, seconds: Number, peak: Number, cards: int = 1) -> Fraction:
    """MFU for model FLOPs, HFU for hardware FLOPs, of all cards together in this time."""
    return Fraction(flops) / flops_in(seconds, peak, cards)


def cards_for(flops: Number, seconds: Number, peak: Number, mfu: Number = 1) -> int:
    """The fewest cards that do it in this time."""
    one = flops_in(seconds, peak) * Fraction(mfu)
    return -(-Fraction(flops) // one)


def rule_of_thumb(parameters: Number, tokens: Number, each: Number = PER_TOKEN) -> Number:
    """`6·N·D`, the FLOPs of a training run; 8 for `each` with every forward recomputed, 2 for a forward
    pass.
    """
    return each * parameters * tokens


def overhead(extra: Number, step: Number) -> Fraction:
    """Extra FLOPs, such as those of an optimizer's products, as a share of a step's."""
    return Fraction(extra) / step


# The work of a step


def tokens_of(graph: Graph) -> Expr | None:
    """Tokens that a step reads, as a formula: the elements of its integer inputs. None without, or if they
    differ.
    """
    shapes = {
        out.shape
        for place in graph.sources("input")
        for out in place.node.outputs
        if "int" in out.dtype and len(out.shape) == 2
    }
    return sp.Mul(*shapes.pop()) if len(shapes) == 1 else None


def samples_of(graph: Graph) -> Expr | None:
    """Samples of a step: the first dimension that all inputs share."""
    first = {out.shape[0] for place in graph.sources("input") for out in place.node.outputs if out.shape}
    return first.pop() if len(first) == 1 else None


def in_products(step: Expr, tokens: Expr) -> Expr | None:
    """N′ of `step = 6·N′·tokens + rest`: the parameters that multiply each token. None where a step has no
    such part.
    """
    step = sp.expand(step)
    sizes = sorted(tokens.free_symbols, key=str)
    if not sizes or not step.is_polynomial(*sizes):
        return None
    once = sp.Poly(step, *sizes).coeff_monomial(tokens)
    used = sp.expand(once / PER_TOKEN)
    whole = all(part.as_coeff_Mul()[0].is_Integer for part in sp.Add.make_args(used))
    return used if used != 0 and whole else None


def estimates(graph: Graph, formulas: Mapping[str, Expr], convention: Convention) -> dict[str, Expr]:
    """FLOPs of a step: exact; as 6·N·D, N as the convention has it; and that with what attention adds.

    Those that the model does not have are left out. In FLOPs also under a convention that counts MACs.
    """
    scale = 2 if convention.unit == "MAC" else 1
    step = sp.expand(scale * formulas["flops.step"])
    found = {"exact": step}
    tokens = tokens_of(graph)
    used = in_products(step, tokens) if tokens is not None else None
    if tokens is None or used is None:
        return found
    chosen = _parameters(formulas, convention.params, used)
    if chosen is not None:
        found["6ND"] = sp.expand(PER_TOKEN * chosen * tokens)
        found["6ND+attention"] = sp.expand(found["6ND"] + step - PER_TOKEN * used * tokens)
    return found


def _parameters(formulas: Mapping[str, Expr], which: str, used: Expr) -> Expr | None:
    if which == "matmul":
        return used
    if which == "non-embedding":
        return sp.expand(formulas["params.total"] - formulas.get("params.embedding", sp.Integer(0)))
    return formulas.get("params.total" if which == "all" else f"params.{which}")


def each_step(unit: str, graph: Graph, sizes: Mapping[str, int], instead: str = "") -> int:
    """Tokens or samples of one pass of the traced step. Raises SizeError for a model that has none, with what to
    say instead.
    """
    formula = tokens_of(graph) if unit == "tokens" else samples_of(graph)
    if formula is None:
        other = f"say how much with {'--samples or --steps' if unit == 'tokens' else '--steps'}"
        raise SizeError(f"{graph.target} has no one input that counts its {unit}; {instead or other}")
    return int(evaluate(formula, sizes))
