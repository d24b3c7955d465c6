"""Example sizes that happen to meet an equality which the model does not need: then the run is made at others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from symacct.domain import Domain, domain_of
from symacct.errors import SymacctError
from symacct.records import Trace
from symacct.tracing.run import trace_symbolic
from symacct.tracing.source import ModelSource

_SEED = 20_011


def without_coincidence(
    source: ModelSource, mode: str, device: str, trace: Trace, known: Mapping[str, int]
) -> tuple[Trace, ModelSource]:
    """The trace, or one at other example sizes, with the source at these: concrete runs must take its way."""
    domain = domain_of(trace.guards, trace.merged, list(source.dims))
    loose = Domain(domain.names, tuple(a for a in domain.assumptions if a.kind != "equal"))
    if len(loose.assumptions) == len(domain.assumptions):
        return trace, source
    pinned = {pin.expression: pin.value for pin in trace.pins} | dict(known)
    points = loose.points(_SEED, low=2, high=9, fixed=pinned)
    for _ in range(3):
        point = next(points)
        hints = {name: point[name] if name in pinned else point[name] * 2 for name in source.dims}
        if not loose.holds(hints):
            hints = point
        other_source = replace(source, dims=hints)
        try:
            other = trace_symbolic(other_source, mode, device, {name: hints[name] for name in known})
        except SymacctError:
            continue
        if [r.key for r in other.records] != [r.key for r in trace.records]:
            continue
        found = domain_of(other.guards, other.merged, list(source.dims))
        if _equalities(found) < _equalities(domain):
            return other, other_source
    return trace, source


def _equalities(domain: Domain) -> int:
    return sum(a.kind == "equal" for a in domain.assumptions)


def of_one_residue(points: Sequence[Mapping[str, int]], names: Iterable[str]) -> bool:
    """Whether one of these sizes is alike modulo 2, 3 or 5 at all points: there `d // 2 * 2` may be no other than `d`."""
    return any(len({point[name] % prime for point in points}) == 1 for name in names for prime in (2, 3, 5))
