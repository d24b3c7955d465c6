"""A number that counts what is done to it, by kind of operation."""

from __future__ import annotations

import math
from typing import ClassVar


class Scalar:
    """A float that counts operations by kind while it computes."""

    counts: ClassVar[dict] = {}

    def __init__(self, value):
        self.value = float(value)

    @classmethod
    def fresh(cls):
        cls.counts = dict.fromkeys(("elementwise", "reduction", "transcendental"), 0)

    def __bool__(self):
        return bool(self.value)

    def __neg__(self):
        return operation("elementwise", lambda a: -a, self)

    def __abs__(self):
        return operation("elementwise", abs, self)


def operation(kind, function, *operands):
    Scalar.counts[kind] += 1
    return Scalar(function(*(o.value if isinstance(o, Scalar) else o for o in operands)))


def binary(function):
    return lambda a, b: operation("elementwise", function, a, b)


def call(function):
    return lambda a: operation("transcendental", function, a)


for _name, _function in {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
}.items():
    setattr(Scalar, f"__{_name}__", binary(_function))
    _reverse = binary(_function)
    setattr(Scalar, f"__r{_name}__", lambda a, b, f=_reverse: f(b, a))
for _name, _function in {
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
}.items():
    setattr(Scalar, f"__{_name}__", binary(_function))

exp, log, log1p, expm1, erf, tanh, sin, sqrt = map(
    call, (math.exp, math.log, math.log1p, math.expm1, math.erf, math.tanh, math.sin, math.sqrt)
)
sigmoid = call(lambda a: 1 / (1 + math.exp(-a)))
rsqrt = call(lambda a: 1 / math.sqrt(a))
larger, smaller = binary(max), binary(min)
floor, trunc = (
    (lambda a: operation("elementwise", math.floor, a)),
    (lambda a: operation("elementwise", math.trunc, a)),
)


def total(scalars):
    return accumulate(sum, scalars)


def largest(scalars):
    return accumulate(max, scalars)


def accumulate(function, scalars):
    Scalar.counts["reduction"] += len(scalars)
    return Scalar(function(s.value for s in scalars))
