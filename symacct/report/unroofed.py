"""What a roofline does not show, in words: launches, sizes that fill no tile, logits, bytes from the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from sympy import Expr

from symacct.evaluation import evaluate
from symacct.plan import friendliness, slowness
from symacct.plan.roofline import Roofline
from symacct.report.numbers import grouped, size
from symacct.report.rates import duration, percent, rate
from symacct.report.readable import readable, reading_of, text

Under = Callable[[Expr], Expr]
_MOST = 12
_HOST_LAUNCH = Fraction(
    10, 10**6
)  # the order of what an eager op costs the host; decides only what stands first


def besides(found: Roofline, under: Under) -> Iterator[tuple[str, str]]:
    """(label, sentence) for each; launches first where they are likely the limit."""
    made = [
        ("launches", _launches(found)),
        *_sizes(found),
        *_vocabulary(found, under),
        ("inputs", _host(found, under)),
    ]
    tight = slowness.seconds_a_launch(found) < _HOST_LAUNCH
    yield from made if tight else (*made[1:], made[0])


def _launches(found: Roofline) -> str:
    each, count = slowness.seconds_a_launch(found), grouped(found.unfused.launched)
    if each < _HOST_LAUNCH:
        return (
            f"{count} in at least {duration(found.unfused.seconds)}, one every {duration(each)}: less than "
            "an eager op takes the host, so launching is likely the limit; CUDA graphs launch all at once"
        )
    limit = "launching is the limit only where the host needs longer for each"
    return f"{count}, one every {duration(each)} on average; {limit}"


def _sizes(found: Roofline) -> Iterator[tuple[str, str]]:
    rows = friendliness.unfriendly(found.ledger, found.sizes)
    for row in [row for row in rows if row.share >= Fraction(1, 1000)][:_MOST]:
        yield "size", _side(row)
    more = {n: friendliness.padded(found.ledger, found.sizes, n) - 1 for n in friendliness.MULTIPLES}
    if more[friendliness.TILE] > Fraction(1, 1000):
        rounded = ", ".join(f"{percent(part)} with multiples of {n}" for n, part in more.items())
        yield "rounding", f"matrix products with each side of a multiple or more rounded up would have more FLOPs: {rounded}"
    launched, share = friendliness.small(found.ledger, found.sizes)
    if launched:
        short = f"{grouped(launched)} products have a side under {friendliness.TILE}, a tile's"
        yield "small", f"{short}: {percent(share)} of product FLOPs, which leave parts of the card idle"


def _side(row: friendliness.Side) -> str:
    name = text(readable(row.side))
    said = name if row.side.is_Integer else f"{name} = {grouped(row.size)}"
    missed = [n for n in friendliness.MULTIPLES if n > row.divisor]
    where = ", ".join(name for name in row.modules[:3] if name) or "the model itself"
    more = f" and {len(row.modules) - 3} more" if len(row.modules) > 3 else ""
    share = f"{percent(row.share)} of the FLOPs that kernels execute ({where}{more})"
    return f"{said} is no multiple of {missed[0]}: it is a side of products with {share}"


def _vocabulary(found: Roofline, under: Under) -> Iterator[tuple[str, str]]:
    words = friendliness.vocabulary(found.ledger)
    if words is None:
        return

    def share(part: Expr, whole: Expr) -> str:
        total = evaluate(whole, found.sizes)
        return percent(Fraction(evaluate(part, found.sizes), total)) if total else "none"

    def of_moved(part: Expr) -> str:
        return percent(Fraction(evaluate(part, found.sizes), found.unfused.bytes)) if found.unfused.bytes else "none"

    kept = f", {share(words.kept, words.of_kept)} of what is kept for backward" if words.of_kept != 0 else ""
    flops, moved = share(words.flops, words.of_flops), of_moved(words.moved)
    rows = text(readable(under(words.rows)))
    yield "logits", f"{rows} columns wide: {flops} of model FLOPs, {moved} of bytes moved{kept}"
    held, lookups = share(words.parameters, words.of_parameters), of_moved(words.lookups)
    needs = f"lookups and their gradients move {lookups} of bytes"
    yield "embedding", f"tables and head hold {held} of the parameters; {needs}"


def _host(found: Roofline, under: Under) -> str:
    moved = friendliness.host_bytes(found.ledger)
    number = evaluate(moved, found.sizes)
    formula = text(readable(under(moved), reading_of(found.ledger.graph)))
    ways = "pinned and with non_blocking=True the copy runs beside the step, from pageable memory it waits"
    need = rate(Fraction(number) / found.unfused.seconds, "B") if found.unfused.seconds else ""
    return f"{formula} = {size(number)} from the host for each step, {need} at the least time; {ways}"
