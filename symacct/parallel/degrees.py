"""How many devices work together and how: `dp=8,zero=3,tp=2,sp,cp=1,ep=1,pp=4,m=16,v=2` as text and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

import sympy as sp

from symacct.errors import SizeError
from symacct.graph import Graph
from symacct.symbols import symbol

# key: (field, symbol in formulas, symbol where the model has that name, meaning)
AXES = {
    "dp": ("data", "dp", "n_dp", "data-parallel ranks"),
    "tp": ("tensor", "t", "tp", "tensor-parallel ranks"),
    "cp": ("context", "c", "cp", "context-parallel ranks"),
    "ep": ("experts", "e", "ep", "expert-parallel ranks, within those of dp and cp"),
    "pp": ("stages", "p", "pp", "pipeline stages"),
    "m": ("micro_batches", "m", "n_mb", "micro-batches of B in a step"),
    "v": ("interleave", "v", "n_v", "parts of the model on each stage"),
}
_KEY = {name: key for key, (name, *_) in AXES.items()}
_SPELLED = {"t": "tp", "c": "cp", "e": "ep", "p": "pp", "data": "dp", "tensor": "tp", "pipeline": "pp", "micro": "m", "mb": "m", "fsdp": "dp"}


@dataclass(frozen=True, slots=True)
class Degrees:
    """Degrees of each kind of parallelism; 1 is none.

    `zero`: what data-parallel ranks divide: 1 optimizer state, 2 also gradients, 3 also parameters (FSDP). `sequence`:
    the tensor-parallel ranks divide the sequence between their products. `keep`: inputs gathered for these are kept
    for backward, as torch does, rather than gathered again, as Megatron does.
    """

    data: int = 1
    zero: int = 0
    tensor: int = 1
    sequence: bool = False
    keep: bool = False
    context: int = 1
    experts: int = 1
    stages: int = 1
    micro_batches: int = 1
    interleave: int = 1

    def __post_init__(self) -> None:
        for axis in fields(self):
            value = getattr(self, axis.name)
            if axis.name == "zero":
                if value not in (0, 1, 2, 3):
                    raise SizeError(f"zero = {value}: stages are 0 (nothing is divided), 1, 2 and 3")
            elif not isinstance(value, bool) and (not isinstance(value, int) or value < 1):
                raise SizeError(f"{_KEY[axis.name]} = {value}: a degree is a positive integer")
        if self.sequence and self.tensor == 1:
            raise SizeError("sp divides the sequence among tensor-parallel ranks; give tp too, such as tp=2,sp")
        if (self.data * self.context) % self.experts:
            raise SizeError(f"ep = {self.experts} does not divide dp·cp = {self.data * self.context}: experts are spread over those ranks")
        if self.interleave > 1 and self.stages == 1:
            raise SizeError("v divides each pipeline stage; give pp too, such as pp=4,v=2")
        if self.interleave > 1 and self.micro_batches % self.stages:
            raise SizeError(f"m = {self.micro_batches} is no multiple of pp = {self.stages}, as the interleaved schedule needs")

    @property
    def devices(self) -> int:
        """How many devices there are in all."""
        return self.data * self.tensor * self.context * self.stages

    def number(self, key: str) -> int:
        """The degree of an axis by its short key."""
        return int(getattr(self, AXES[key][0]))


def read_degrees(text: str) -> Degrees:
    """Degrees from text. Raises SizeError with near matches for a word that is none."""
    found: dict[str, int | bool] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, eq, value = (x.strip() for x in part.partition("="))
        key = _SPELLED.get(name, name)
        flag = {"sp": "sequence", "keep": "keep"}.get(key)
        if flag:
            if eq and value not in ("0", "1", "true", "false"):
                raise SizeError(f"{part!r}: {key} is on or off; write {key} alone")
            found[flag] = value not in ("0", "false")
            continue
        if key != "zero" and key not in AXES:
            near = get_close_matches(name, [*AXES, "zero", "sp", "keep"], 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SizeError(f"{name!r} is no kind of parallelism; {hint}there are {', '.join(AXES)}, zero, sp, keep")
        digits = value.lstrip("-")
        if not digits.isascii() or not digits.isdigit():
            raise SizeError(f"{part!r}: write a whole number, such as {key}=8")
        field_name = "zero" if key == "zero" else AXES[key][0]
        if field_name in found:
            raise SizeError(f"{key} is given twice")
        found[field_name] = int(value)
    made = Degrees(**found)  # type: ignore[arg-type]
    if made.keep and not made.sequence:
        raise SizeError("keep is about inputs that sp gathers; give sp too, such as tp=2,sp,keep")
    return made


def spelled(degrees: Degrees) -> str:
    """Degrees as text that reads back, those of 1 left out.

    >>> spelled(read_degrees("tp=2,sp,dp=8,zero=3"))
    'dp=8,zero=3,tp=2,sp'
    """
    found = {key: degrees.number(key) for key in AXES}
    parts = {key: [f"{key}={number}"] for key, number in found.items() if number > 1}
    for after, word, said in (("dp", f"zero={degrees.zero}", degrees.zero), ("tp", "sp", degrees.sequence), ("tp", "keep", degrees.keep)):
        if said:
            parts.setdefault(after, []).append(word)
    order = [key for key in AXES if key in parts]
    return ",".join(word for key in order for word in parts[key])


@dataclass(frozen=True, slots=True)
class Names:
    """The symbols of the axes, such as do not meet a size of the model."""

    of: Mapping[str, sp.Symbol]

    def numbers(self, degrees: Degrees) -> dict[str, int]:
        """The degrees by the names of these symbols."""
        return {s.name: degrees.number(key) for key, s in self.of.items()}


def names_for(graph: Graph) -> Names:
    """The symbols of the axes for this graph."""
    return Names({key: symbol(other if short in graph.symbols else short) for key, (_, short, other, _) in AXES.items()})
