"""Where kept bytes, those of gradients and the peak differ from their formulas: runs at sizes of 1, and wherever a guard of the symbolic run
is false for one size, compared with the formulas.

Sizes of the inputs are tried one by one, and so is any other that is asked about as 1. Where others are open 1 is tried
for all at once: a size of 1 mostly makes views of copies, so what differs at one of them differs there too, and then
halves of them are tried. Two sizes of 1 may do together what neither does alone: a clone of what is expanded over heads
is none where all heads share one and the batch is one. A run costs as much as one of the derivation, so they are made
when a graph is asked about such sizes, and only those that concern them; to be stored, all of one and of two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice
from types import MappingProxyType
from typing import Any

import sympy as sp

from symacct.domain import Domain
from symacct.errors import SymacctError
from symacct.graph import Graph, Limit
from symacct.lifting import lift
from symacct.limits import GRADS, LIMITED, PEAK, SAVED
from symacct.records import Trace
from symacct.saved import gradient_bytes, saved_bytes
from symacct.smallest import holds_at, unfolded_peak
from symacct.symbols import symbol
from symacct.tracing.points import Points
from symacct.tracing.source import ModelSource
from symacct.tracing.special import Guards, Special, equals, special
from symacct.tracing.trials import Trials, lives

_FEW, _MANY, _WINNERS = 2, 10, 2
_NOTHING: Mapping[str, sp.Expr] = MappingProxyType({})
_TRIES = 6  # points, at some of which a model may refuse to run


def bounded(
    graph: Graph, source: ModelSource, guards: Guards, run: Callable[[Mapping[str, int]], Trace], depths: Mapping[str, int]
) -> Graph:
    """The graph with the sizes at which its bytes are others, and with a run that tells what they are there."""
    if not source.dims:
        return graph
    domain = Domain(tuple(source.dims), graph.assumptions)
    trials = Trials(source, graph.mode, graph.device, run)
    return replace(graph, limits=Limits(graph, domain, trials, special(guards), depths, equals(guards)), measured=trials.measured)


@dataclass(eq=False)
class Limits(Sequence[Limit]):
    """The limits of one graph, found by runs when they are asked for. `depths` are the sizes that ops repeat by, as the
    runs shall take them."""

    graph: Graph
    domain: Domain
    trials: Trials
    special: Special
    depths: Mapping[str, int]
    equal: Sequence[tuple[str, str]] = ()
    forms: dict[str, list[sp.Expr]] = field(default_factory=dict)
    _usual: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    _of: dict[Any, list[Limit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.graph.kept is not None:
            self.forms[SAVED] = [sp.Add(*saved_bytes(self.graph).values())]
        if self.graph.mode == "train":
            self.forms[GRADS] = [gradient_bytes(self.graph)]
        if self.graph.peak:
            self.forms[PEAK] = [live for _, live in self.graph.peak]

    @cached_property
    def points(self) -> Points:
        """Points of the domain, the layers as the runs shall take them."""
        return Points(self.domain, self.depths, self.special)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    @cached_property
    def _all(self) -> tuple[Limit, ...]:
        each = [limit for name in self._free for limit in self._of_size(name, 1)]
        both = [limit for pair in combinations(self._free, 2) for limit in self._of_together(dict.fromkeys(pair, 1))]
        apart = [(name, pair) for name in self._free for pair in self._pairs if name not in pair]
        both += [limit for name, pair in apart for limit in self._of_together({name: 1}, [pair])]
        return _merged([*self.possible({}), *each, *both])

    def at(self, sizes: Mapping[str, int]) -> tuple[Limit, ...]:
        """Those limits that these sizes meet."""
        nowhere = {name: -number for number, name in enumerate(self.domain.names, 1)}
        numbers = _numbers(sizes)
        return tuple(limit for limit in self.possible({**nowhere, **sizes}) if limit.met(numbers))

    def possible(self, sizes: Mapping[str, int]) -> tuple[Limit, ...]:
        """Those limits that can be met where these sizes, perhaps not all, have these values."""

        def may(name: str, number: int) -> bool:
            return sizes.get(name, number) == number

        found = [limit for name in self.depths if may(name, 1) for limit in self._of_depth(name)]
        for name in self._alone:
            for number in self._numbers_of(name):
                found += self._of_size(name, number) if may(name, number) else []
        for name in set(self._free) - set(self._alone):
            found += self._of_size(name, 1) if sizes.get(name) == 1 else []
        special = [name for name in self._free if any(may(name, number) for number in self._numbers_of(name))]
        known = {name: sizes[name] for name in special if name in sizes}
        if len(special) > len(known) and (len(special) > 1 or set(special) - set(self._alone)):
            found += self._of_others()
        same = [pair for pair in self._pairs if pair[0] in sizes and sizes[pair[0]] == sizes.get(pair[1]) and not set(pair) & set(known)]
        if len(known) + len(same) > 1:
            found += self._of_together(known, same)
        if any(one not in sizes or may(other, sizes[one]) for one, other in self._pairs):
            found += self._of_pairs()
        return _merged(found)

    @cached_property
    def _free(self) -> list[str]:
        return [name for name in self.domain.names if name not in self.depths]

    @cached_property
    def _alone(self) -> list[str]:
        """The sizes of inputs, each of which is tried by itself."""
        given = {s.name for place in self.graph.sources("input") for out in place.node.outputs for size in out.shape for s in size.free_symbols}
        return [name for name in self._free if name in given]

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        return [pair for pair in self.equal if not set(pair) & set(self.depths)]

    def _numbers_of(self, name: str) -> list[int]:
        return [1, *sorted(self.special.get(name, ()))]

    def _of_depth(self, name: str) -> list[Limit]:
        return self._once(name, lambda: [Limit(SAVED, _one(name), None) for _ in self._differing({name: 1}, [SAVED])])

    def _of_size(self, name: str, number: int) -> list[Limit]:
        fixed = {name: number}
        return self._once(
            (name, number), lambda: [Limit(key, _one(name, number), self._more(key, fixed)) for key in self._differing(fixed)]
        )

    def _of_others(self) -> list[Limit]:
        """Those of sizes at which the formulas hold by themselves."""
        return self._once("others", lambda: self._among([n for n in self._free if n not in self._alone or not self._of_size(n, 1)]))

    def _of_together(self, fixed: Mapping[str, int], same: Sequence[tuple[str, str]] = ()) -> list[Limit]:
        """Those of several sizes with these numbers, and of pairs that are equal, beyond what one of them alone adds."""
        alone = [limit for name, number in fixed.items() for limit in self._of_size(name, number)]
        equal = [sp.Eq(*map(symbol, pair), evaluate=False) for pair in same]
        alone += [limit for limit in (self._of_pairs() if same else ()) if limit.where in equal]
        told = {key: [limit.more for limit in alone if limit.key == key] for key in LIMITED}
        keys = [key for key, more in told.items() if len(more) < 2 and None not in more]  # of others only a run tells
        added = {key: more[0] for key, more in told.items() if key in keys and more}
        ones = [symbol(name) - number + 1 for name, number in fixed.items()]
        ones += [symbol(a) / symbol(b) for pair in same for a, b in (pair, pair[::-1])]
        where, whole = sp.Eq(sp.Max(*ones), 1, evaluate=False), {**_equal(same), **fixed}

        def find() -> list[Limit]:
            return [Limit(key, where, None) for key in self._differing(whole, keys, added=added)] if keys else []

        return self._once((tuple(sorted(fixed.items())), tuple(same)), find)

    def _of_pairs(self) -> list[Limit]:
        return self._once("pairs", self._equal_pairs)

    def _equal_pairs(self) -> list[Limit]:
        if not self._pairs or not self._differing(_equal(self._pairs), few=1):
            return []
        return [
            Limit(key, sp.Eq(*map(symbol, pair), evaluate=False), None)
            for pair in self._pairs
            for key in self._differing(_equal([pair]), few=1)
        ]

    def _once(self, of: Any, find: Callable[[], list[Limit]]) -> list[Limit]:
        if of not in self._of:
            self._of[of] = find()
        return self._of[of]

    def _among(self, names: Sequence[str]) -> list[Limit]:
        """Those of sizes of 1, or of the least that there may be: halves of the names are tried where all differ."""
        least = self._least(names)
        keys = self._differing(least, few=1) if least else []
        if not keys:
            return []
        if len(names) == 1:
            return [Limit(key, _one(names[0], least[names[0]]), None) for key in keys] if names[0] in least else []
        half = len(names) // 2
        found = [*self._among(names[:half]), *self._among(names[half:])]
        joint = sp.Eq(sp.Max(*map(symbol, least)), 1, evaluate=False)
        return found + [Limit(key, joint, None) for key in keys if not any(limit.key == key for limit in found)]

    def _least(self, names: Iterable[str]) -> dict[str, int]:
        """These sizes at 1, with those that must be 1 then too; one that cannot be 1 at the least special number."""
        found = dict.fromkeys(names, 1)
        for a in self.domain.assumptions:
            if a.kind == "divides" and a.left.is_Symbol and a.left.name in found and a.right.is_number:
                found.pop(a.left.name)
                if numbers := self.special.get(a.left.name):
                    found[a.left.name] = min(numbers)
        for _ in self.domain.names:
            for a in self.domain.assumptions:
                if a.kind == "divides" and a.left.xreplace(_numbers(found)) == 1:
                    found |= {s.name: 1 for s in a.right.free_symbols if s.name not in self.depths}
        return found

    def _differing(
        self, fixed: Mapping[str, int], keys: Iterable[str] = LIMITED, few: int = _FEW, added: Mapping[str, sp.Expr] = _NOTHING
    ) -> list[str]:
        """Those of the keys whose formulas are not right in runs with these sizes: in one if storages are born, kept
        and freed there as elsewhere, else in one of a few, for a peak may lie at many places. `added` to a formula is right."""
        found: set[str] = set()
        keys, tried = set(keys), 0
        for point in islice(self.points.at(fixed), _TRIES):
            try:
                more = {key: expr.xreplace(_numbers(point)) for key, expr in added.items()}
                found |= {key for key, lacking in self.lacking(point, keys).items() if lacking != more.get(key, 0)}
            except SymacctError:  # the model's own code refuses these sizes
                continue
            tried += 1
            if not found and self._alike(point, keys):
                return []
            if tried == few:
                break
        if tried and few > 1 and PEAK in keys and PEAK not in found and self._peaks_otherwise(fixed):
            found.add(PEAK)
        return sorted(found, reverse=True)

    def _peaks_otherwise(self, fixed: Mapping[str, int]) -> bool:
        """Whether a run tells another peak where one form of it after another is the largest."""
        for point in islice(self._winning(fixed), _WINNERS):
            with suppress(SymacctError):
                if self.lacking(point, [PEAK]).get(PEAK):
                    return True
        return False

    def _winning(self, fixed: Mapping[str, int]) -> Iterator[dict[str, int]]:
        forms = self.forms.get(PEAK, [])
        names = [symbol(name) for name in self.domain.names]
        if not forms or any(not form.free_symbols <= set(names) for form in forms):
            return
        values = sp.lambdify(names, forms, modules="math")
        met: set[int] = set()
        for point in self.points.at(fixed):
            found = values(*(point[size.name] for size in names))
            largest = max(range(len(found)), key=found.__getitem__)
            if largest not in met:
                met.add(largest)
                yield point

    def _alike(self, point: Mapping[str, int], keys: Container[str]) -> bool:
        """Whether a run there makes, keeps and frees the storages that one at generic sizes does, op by op."""
        stepped, depths = PEAK in keys, {name: point[name] for name in self.depths}
        kind = (stepped, *depths.values())
        if kind not in self._usual:
            self._usual[kind] = ()
            for usual in islice(self.points.at(depths), _TRIES):
                with suppress(SymacctError):
                    self._usual[kind] = lives(self.trials.run(usual, stepped))
                    break
        return lives(self.trials.run(point, stepped)) == self._usual[kind]

    def _more(self, key: str, fixed: Mapping[str, int]) -> sp.Expr | None:
        """What a formula lacks at these sizes, as an expression in the others, if few runs tell; of a peak none does."""
        if key == PEAK:
            return None
        rows: list[dict[sp.Symbol, int]] = []
        values: list[int] = []
        for number, point in enumerate(islice(self.points.at(fixed), _MANY)):
            # each depth grows at its own pace, else T·L is no other than L² + 3·L
            deeper = {name: point[name] + number // (_FEW * pace) for pace, name in enumerate(self.depths, 1) if name in point}
            point = point | (deeper if self.domain.holds(point | deeper) else {})
            try:
                lacking = self.lacking(point, [key]).get(key)
            except SymacctError:
                return None
            if lacking is None:
                return None
            rows.append({symbol(name): value for name, value in point.items()})
            values.append(lacking)
            free = [symbol(name) for name in self.domain.names if name not in fixed]
            varied = all(len({row[size] for row in rows}) > 1 for size in free)
            if len(values) >= _FEW and varied and len(set(values)) == 1:
                return sp.Integer(values[0])
        return lift(rows, values, free) if values else None

    def lacking(self, point: Mapping[str, int], keys: Container[str]) -> dict[str, int]:
        """What each formula lacks in a run at these sizes; one that is no number here is left out."""
        seen = self.trials.amounts(point, keys)
        numbers = {symbol(name): sp.Integer(value) for name, value in point.items()}
        found = {}
        for key in self.forms.keys() & seen.keys():
            if key not in keys:
                continue
            values = [form.xreplace(numbers).doit() for form in self.forms[key]]
            told = int(max(values)) if all(v.is_Integer for v in values) else None
            if told is not None and key == PEAK and not holds_at(self.graph, point):
                told = unfolded_peak(self.graph, point)
            if told is not None:
                found[key] = seen[key] - told
        return found


def _merged(found: Iterable[Limit]) -> tuple[Limit, ...]:
    """Each limit once: of two, the one that tells what is to be added; of several sizes where no less of them does."""
    merged: dict[Any, Limit] = {}
    for limit in found:
        if (limit.key, limit.text) not in merged or limit.more is not None:
            merged[limit.key, limit.text] = limit
    runs = [(limit.key, set(limit.sides)) for limit in merged.values() if limit.more is None]
    return tuple(x for x in merged.values() if not any(key == x.key and less < set(x.sides) for key, less in runs))


def _numbers(sizes: Mapping[str, int]) -> dict[sp.Symbol, sp.Integer]:
    return {symbol(name): sp.Integer(value) for name, value in sizes.items()}


def _equal(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    return {name: 6 for pair in pairs for name in pair}


def _one(name: str, number: int = 1) -> Any:
    return sp.Eq(symbol(name), number, evaluate=False)
