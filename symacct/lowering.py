"""From located runs to the items of a Graph: every size as one expression, every operand as a reference.

A symbolic run gives each size as an expression. Concrete runs at other sizes and depths must agree with it, in every
iteration; a size that does not (it depends on a structural or pinned size) is lifted from the concrete runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy as sp
from sympy import Expr

from symacct.domain import Domain
from symacct.dtypes import width
from symacct.errors import TraceError
from symacct.folding import Item as Folded
from symacct.folding import Repeat, leaves
from symacct.graph import Item, Loop, Node, Ref, Tensor, sum_over
from symacct.lifting import lift, observed
from symacct.located import (
    PARTED,
    Group,
    Position,
    Run,
    argument_at,
    common,
    count_of,
    depends_on_iteration,
    first_of,
    item_text,
    numel,
    repeated,
    total_of,
)
from symacct.records import Record, Use, Value
from symacct.symbols import symbol


class Lowering:
    """One pass from runs to items. `more` gives further concrete runs when something has to be lifted."""

    def __init__(self, symbolic: Run | None, concrete: list[Run], domain: Domain, pinned: Sequence[str], more: Callable[[], list[Run]]) -> None:
        self.symbolic, self.concrete, self.domain = symbolic, concrete, domain
        self.pinned = tuple(symbol(name) for name in pinned)
        self.more: Callable[[], list[Run]] | None = more
        self.model = symbolic or next((run for run in concrete if run.complete), concrete[0])
        self.items = self.model.items
        self.names = {position: f"n{number}" for number, (position, _) in enumerate(leaves(self.items))}
        self.storages: dict[str, Expr] = {}
        self.kept: dict[str, Expr] = {}
        self.irregular: list[str] = []  # what is kept in repetitions that follow no rule
        self.tensors: dict[str, Tensor] = {}
        self.lifted: set[str] = set()
        self.merged: set[str] = set()  # values that stand for several unlike ones, by their total size
        self._parted = self._parted_alike()
        for run in {id(run): run for run in (self.model, *concrete)}.values():
            run.separate(self._parted)
        self._memo: dict[Any, Expr] = {}
        self._values_at: list[dict[Expr, int]] = []

    def run(self) -> tuple[Item, ...]:
        """The graph's items."""
        return tuple(self._item(item, (number,), ()) for number, item in enumerate(self.items))

    def _parted_alike(self) -> list[Position]:
        """Leaves that part a tensor into as many parts in every run."""
        found = []
        for position, leaf in leaves(self.items):
            if leaf.key[1].startswith(PARTED):
                seen = {len(record.outputs) for run in (self.model, *self.concrete) for _, record in run.at.get(position, ())}
                found += [position] if len(seen) == 1 else []
        return found

    def _item(self, item: Folded, position: Position, loops: tuple[str, ...]) -> Item:
        if isinstance(item, Repeat):
            name = f"i{len(loops) + 1}"
            inner = tuple(self._item(part, (*position, number), (*loops, name)) for number, part in enumerate(item.items))
            return Loop(name, item.size, item.count, inner)
        return self._node(position, loops)

    def _node(self, position: Position, loops: tuple[str, ...]) -> Node:
        entries = self.model.at.get(position)
        if not entries:
            raise TraceError(f"no run shows {item_text(self.items, position)}; trace at a greater depth")
        _, record = entries[min(1, len(entries) - 1)]
        here = _Here(self, position, record, loops, *repeated(position, (self.model, *self.concrete)))
        outputs = tuple(here.output(number) for number in range(len(self.model.groups[id(record)])))
        self.tensors.update((out.value, out) for out in outputs)
        return Node(
            self.names[position], record.op, here.arguments(), outputs, record.phase, self._path(position, "module"),
            record.source, self._path(position, "name"), record.notes,
        )

    def _path(self, position: Position, attribute: str) -> str:
        """A module path or name, with a star for each index in which the repetitions of the leaf differ."""
        found = {getattr(record, attribute) for run in (self.model, *self.concrete) for _, record in run.at.get(position, ())}
        return common(found)

    # Quantities

    def quantity(self, position: Position, loops: tuple[str, ...], read: Callable[[Run, Record], Any], what: str, must: bool = True, guess: Expr | None = None) -> Expr | None:
        """The expression that equals `read` in every run and iteration of the leaf at `position`."""
        expr = self._from_symbolic(position, read)
        for likely in (expr, guess):
            if likely is not None and self._agrees(position, read, likely):
                return likely
        rows, values, seen = self._observations(position, loops, read)
        if any(isinstance(value, sp.Basic) and value.free_symbols for value in values):
            return self._data_dependent(position, read, what)
        free = sorted((set(expr.free_symbols) if expr is not None else {symbol(n) for n in self.domain.names}) | set(self.pinned), key=str)
        variables = [*free, *(symbol(name) for name in loops)]
        if self.more is None:  # a size that no run could change is no variable
            variables = [s for s in variables if len({row[s] for row in rows}) > 1]
        key = (tuple(values), tuple(variables), tuple(tuple(sorted((str(s), v) for s, v in row.items())) for row in rows))
        if key not in self._memo:
            self._memo[key] = lift(rows, values, variables)
        found = self._memo[key]
        if found is None and self.more is not None:
            more, self.more = self.more, None
            added = more()
            for run in added:
                run.separate(self._parted)
            self.concrete += added
            self._values_at = []
            return self.quantity(position, loops, read, what, must, guess)
        if found is None and must:
            record = self.model.at[position][0][1]
            place = f"{record.op} in {record.module or 'the model'}" + (f" ({record.source})" if record.source else "")
            raise TraceError(
                f"{what} of {place} is no exact expression in {', '.join(map(str, free))}: "
                f"runs gave {observed(seen, free)}; give that size a symbol of its own, or keep it a number")
        if found is not None:
            self.lifted.update(str(s) for s in found.free_symbols & set(self.pinned))
        return found

    def _data_dependent(self, position: Position, read: Callable[[Run, Record], Any], what: str) -> Expr:
        record = self.model.at[position][0][1]
        raise TraceError(f"{what} of {record.op} in {record.module or 'the model'} ({record.source}) depends on data in a way that follows no rule")

    def repetitions(self, maker: Position, user: Position) -> Expr:
        """How often the leaf at `maker` runs for each run of the one at `user`: the loops around the first alone."""
        return sp.Mul(*(count for _, count in self._loops_between(maker, user)))

    def summed(self, maker: Position, number: int, user: Position) -> Expr | None:
        """Elements of all that this output of `maker` is for each run of the leaf at `user`."""
        tensor = self.tensors.get(self.names[maker] + (f".{number}" if number else ""))
        if tensor is None:
            return None
        total = tensor.numel
        for index, count in reversed(self._loops_between(maker, user)):
            total = sum_over(total, symbol(index), count)
        return sp.expand(total)

    def _loops_between(self, maker: Position, user: Position) -> list[tuple[str, Expr]]:
        """Index and count of the loops around `maker` that are not around `user`, outermost first."""
        found, items = [], self.items
        for depth, number in enumerate(maker[:-1]):
            item = items[number]
            assert isinstance(item, Repeat)
            if maker[: depth + 1] != user[: depth + 1]:
                found.append((f"i{depth + 1}", item.count))
            items = item.items
        return found

    def _from_symbolic(self, position: Position, read: Callable[[Run, Record], Any]) -> Expr | None:
        if self.symbolic is None:
            return None
        found = {self.domain.rewrite(exact(read(self.symbolic, record))) for _, record in self.symbolic.at[position]}
        return found.pop() if len(found) == 1 else sp.Add(*found)

    def _agrees(self, position: Position, read: Callable[[Run, Record], Any], expr: Expr) -> bool:
        while len(self._values_at) < len(self.concrete):
            self._values_at.append({})
        for run, known in zip(self.concrete, self._values_at, strict=True):
            if expr not in known:
                known[expr] = expr.xreplace({symbol(n): sp.Integer(v) for n, v in run.trace.sizes.items()})
            expected = known[expr]
            if any(read(run, record) != expected for _, record in run.at.get(position, ())):
                return False
        return True

    def _observations(self, position: Position, loops: tuple[str, ...], read: Callable[[Run, Record], Any]) -> tuple[list[Any], list[int], list[Any]]:
        rows, values = [], []
        for run in self.concrete:
            base = {symbol(n): v for n, v in run.trace.sizes.items()}
            for iteration, record in run.at.get(position, ()):
                rows.append(base | {symbol(name): i for name, i in zip(loops, iteration, strict=True)})
                seen = read(run, record)
                values.append(int(seen) if isinstance(seen, sp.Integer) else seen)
        seen = {value: {str(s): v for s, v in row.items()} for row, value in zip(reversed(rows), reversed(values), strict=True)}
        return rows, values, list(seen.items())[:-4:-1]  # each value once, as first met


@dataclass
class _Here:
    """One leaf being lowered."""

    lowering: Lowering
    position: Position
    record: Record
    loops: tuple[str, ...]
    shown: Run  # the run that shows its operands, in this repetition
    iteration: tuple[int, ...]
    user: Record

    def output(self, number: int) -> Tensor:
        low, run = self.lowering, self.lowering.model
        members = run.groups[id(self.record)][number]
        value = self.record.outputs[members[0]]
        name = self._name(self.position, number)
        storage = self._storage(value.storage, name)
        if storage == name:
            low.storages[name] = self._quantity(
                lambda r, rec: r.trace.storages[first_of(r, rec, number).storage], "a storage", self._whole(number, value)
            )
            self._keep(name, number)
        if len(members) == 1 and not self._varies(number):
            return Tensor(name, self._shape(number, len(value.shape)), value.dtype, storage)
        if self._alike(number):
            times = self._quantity(lambda r, rec: len(r.groups[id(rec)][number]), "the number of outputs", self._repetitions(number))
            return Tensor(name, self._shape(number, len(value.shape)), value.dtype, storage, times)
        low.merged.add(name)
        total = self._quantity(lambda r, rec: sum(numel(rec.outputs[m].shape) for m in r.groups[id(rec)][number]), "a size", self._summed(number))
        return Tensor(name, (total,), value.dtype, storage)

    def _whole(self, number: int, value: Value) -> Expr | None:
        """Bytes of a storage that one tensor fills: each of its sizes may be found where their product is not."""
        if len(self.lowering.model.groups[id(self.record)][number]) != 1 or self._varies(number):
            return None
        return sp.expand(sp.Mul(width(value.dtype), *self._shape(number, len(value.shape))))

    def _varies(self, number: int) -> bool:
        return any(len(run.groups[id(rec)][number]) != 1 for run in self.lowering.concrete for _, rec in run.at.get(self.position, ()))

    def _alike(self, number: int) -> bool:
        runs = [self.lowering.model, *self.lowering.concrete]
        return all(
            len({rec.outputs[m].shape for m in run.groups[id(rec)][number]}) == 1 for run in runs for _, rec in run.at.get(self.position, ())
        )

    def _shape(self, number: int, rank: int) -> tuple[Expr, ...]:
        return tuple(self._quantity(lambda r, rec, k=k: first_of(r, rec, number).shape[k], "a size") for k in range(rank))  # type: ignore[misc]

    def _keep(self, name: str, number: int) -> None:
        """Note in how many of its repetitions the value's storage is kept for backward, if in any."""
        low = self.lowering
        runs = list({id(run): run for run in (low.model, *low.concrete)}.values())
        counts = [sum(first_of(run, rec, number).storage in run.trace.kept for _, rec in run.at.get(self.position, ())) for run in runs]
        if not any(counts):
            return
        times = low.repetitions(self.position, ())
        loops = [count for _, count in low._loops_between(self.position, ())]
        fewer = [sp.expand(sp.Mul(*(c - k for c, k in zip(loops, left, strict=True)))) for left in product((0, 1, 2), repeat=len(loops))]
        for count in (times, *(times - k for k in (1, 2)), *fewer, sp.Integer(1), sp.Integer(2)):
            fits = all(count.xreplace({symbol(n): sp.Integer(v) for n, v in run.trace.sizes.items()}) == seen for run, seen in zip(runs, counts, strict=True))
            if fits and (count == times or not depends_on_iteration(low.storages[name])):
                low.kept[name] = count
                return
        low.irregular.append(f"{self.record.op} in {self.record.module or 'the model'}")

    def _repetitions(self, number: int) -> Expr | None:
        """How many operands a group of outputs follows, by the loops around their maker."""
        group = self._followed(number)
        return None if group is None else self.lowering.repetitions(group[0], self.position)

    def _summed(self, number: int) -> Expr | None:
        """Elements of the operands that a group of outputs follows."""
        group = self._followed(number)
        return None if group is None else self.lowering.summed(*group, self.position)

    def _followed(self, number: int) -> Group | None:
        for _, argument in self.record.arguments:
            if isinstance(argument, tuple) and len(argument) == len(self.record.outputs) and all(isinstance(u, Use) for u in argument):
                return self.lowering.model.grouped_uses(argument)[number][0]
        return None

    def _quantity(self, read: Callable[[Run, Record], Any], what: str, guess: Expr | None = None) -> Expr:
        found = self.lowering.quantity(self.position, self.loops, read, what, guess=guess)
        assert found is not None
        return found

    def _name(self, position: Position, number: int) -> str:
        return f"{self.lowering.names[position]}.{number}" if number else self.lowering.names[position]

    def _storage(self, storage: int, own: str) -> str:
        owner = self.lowering.model.owner.get(storage)
        if owner is None:
            return own
        position, _, number = self.lowering.model.maker[owner]
        return self._name(position, number)

    def arguments(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self._argument((name,), argument)) for name, argument in self.user.arguments)

    def _argument(self, path: tuple[Any, ...], argument: Any) -> Any:
        if isinstance(argument, Use):
            return self._ref(path, argument.value)
        if isinstance(argument, tuple):
            if argument and all(isinstance(part, Use) for part in argument):
                return self._list(path, argument)
            return tuple(self._argument((*path, k), part) for k, part in enumerate(argument))
        if isinstance(argument, bool) or argument is None or isinstance(argument, (str, float)):
            return argument
        return self.lowering.quantity(self.position, self.loops, lambda _, rec: argument_at(rec, path), "an argument", must=False)

    def _ref(self, path: tuple[Any, ...], value: int) -> Ref:
        position, iteration, number = self.shown.maker[value]
        same_loop = position[:-1] == self.position[:-1] and len(position) > 1
        back = self.iteration[-1] - iteration[-1] if same_loop else 0
        name, shape = self._name(position, number), None
        later = name not in self.lowering.tensors  # made further down, in an iteration before this one
        if name in self.lowering.merged or ((back or not same_loop) and (later or self._indexed(name))):
            rank = len(self.shown.values[value].shape)
            shape = tuple(self._quantity(lambda r, rec, k=k: r.values[argument_at(rec, path).value].shape[k], "an operand") for k in range(rank))  # type: ignore[misc]
            shape = shape if not later or any(not s.is_positive for size in shape for s in size.free_symbols) else None
        return Ref(name, back, shape=shape)

    def _indexed(self, name: str) -> bool:
        """Whether a tensor's size depends on a loop index."""
        tensor = self.lowering.tensors.get(name)
        return tensor is not None and any(s.name.startswith("i") and not s.is_positive for size in tensor.shape for s in size.free_symbols)

    def _list(self, path: tuple[Any, ...], uses: tuple[Use, ...]) -> tuple[Ref, ...]:
        if self._of_fixed_length(path, len(uses)):
            return tuple(self._ref((*path, k), use.value) for k, use in enumerate(uses))
        found = []
        for (position, number), members in self.shown.grouped_uses(uses):
            key = (position, number)
            times = self.lowering.quantity(self.position, self.loops, lambda r, rec, key=key: count_of(r, argument_at(rec, path), key), "the length of a list", guess=self.lowering.repetitions(position, self.position))  # type: ignore[misc]
            name = self._name(position, number)
            if self._indexed(name) or name in self.lowering.merged:
                total = self._quantity(lambda r, rec, key=key: total_of(r, argument_at(rec, path), key), "a list of operands", self.lowering.summed(*key, self.position))  # type: ignore[misc]
                found.append(Ref(name, 0, shape=(total,)))
            elif times == 1:
                found.append(self._ref((*path, members[0]), uses[members[0]].value))
            else:
                found.append(Ref(name, 0, times))
        return tuple(found)

    def _of_fixed_length(self, path: tuple[Any, ...], length: int) -> bool:
        return all(len(argument_at(rec, path)) == length for run in self.lowering.concrete for _, rec in run.at.get(self.position, ()))


def exact(size: Any) -> Expr:
    """A size as an expression: runs give plain integers where nothing is symbolic."""
    return sp.Integer(size) if isinstance(size, int) else size
