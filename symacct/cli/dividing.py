"""What `--parallel` and `--styles` say of a plan's step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from symacct.account import Ledger
    from symacct.parallel import Degrees
    from symacct.plan.question import Case

RANKS = "dp"


def degrees_of(text: str, solve: str | None) -> Degrees:
    """What `--parallel` says; where its dp is solved for, more than one, so that formulas have it as a
    symbol. Raises SizeError where it says nothing.
    """
    from symacct.errors import SizeError
    from symacct.parallel import read_degrees

    if not text.strip(" ,"):
        raise SizeError(
            "--parallel is empty; write how many ranks do what, such as tp=2 or dp=8,zero=3, "
            "or leave it out for one device"
        )

    degrees = read_degrees(text)
    return replace(degrees, data=2) if solve == RANKS and degrees.data == 1 else degrees


def agree(option: str, given: str | None, number: int, name: str, degrees: int) -> None:
    """Raise SizeError where an option says another number than --parallel."""
    from symacct.errors import SizeError

    if given is not None and number != degrees:
        raise SizeError(
            f"{option} = {number}, but --parallel makes {name} = {degrees}; leave one of them out"
        )


def divider(case: Case, options: dict[str, Any], solve: str | None) -> Any:
    """A function that divides a ledger's step as `--parallel` and `--styles` say; None without."""
    from symacct.errors import SizeError
    from symacct.parallel import rank

    if options["parallel"] is None:
        if options["styles"] is not None:
            raise SizeError("--styles divides weights among tensor-parallel ranks; give --parallel tp=2 or so too")
        return None
    asked = degrees_of(options["parallel"], solve)

    def divide(ledger: Ledger, degrees: Degrees = asked) -> Any:
        return rank(ledger.graph, degrees, case.sizes, ledger.convention, options["styles"])

    return divide
