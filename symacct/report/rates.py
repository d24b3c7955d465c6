"""Durations, rates and fractions as a person reads them, from exact quotients."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_UNITS = (
    (Fraction(1), "s"),
    (Fraction(1, 10**3), "ms"),
    (Fraction(1, 10**6), "µs"),
    (Fraction(1, 10**9), "ns"),
)
_LONG = ((Fraction(86400), "days"), (Fraction(3600), "h"))


def duration(seconds: Fraction | float) -> str:
    """`851.7 ms`, `14.02 s`, `3.2 days`: four significant digits in the unit that leaves few."""
    for unit, word in (*_LONG, *_UNITS):
        if seconds >= unit:
            return f"{digits(seconds / unit)} {word}"
    return f"{digits(seconds * 10**9)} ns" if seconds else "0 s"


def percent(part: Fraction) -> str:
    """A fraction in percent, with one decimal; two digits below a tenth of a percent."""
    if 0 < part < Fraction(1, 10**5):
        return "< 0.001 %"
    return f"{float(100 * part):.2g} %" if 0 < part < Fraction(1, 1000) else f"{float(100 * part):.1f} %"


def digits(number: Fraction | float) -> str:
    """Four significant digits, thousands grouped."""
    size: Any = abs(number)
    places = next((p for p, limit in ((0, 1000), (1, 100), (2, 10), (3, 1)) if size >= limit), 4)
    return f"{float(number):,.{places}f}"


def rate(number: Fraction | int, unit: str) -> str:
    """`989.5 TFLOP/s`, `3.35 TB/s`: four significant digits without trailing zeros."""
    value, step = Fraction(number), 0
    while value >= 1000 and step + 1 < len(_PREFIXES):
        value, step = value / 1000, step + 1
    short = digits(value)
    short = short.rstrip("0").rstrip(".") if "." in short else short
    return f"{short} {_PREFIXES[step]}{unit}/s"
