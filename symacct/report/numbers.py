"""Numbers as a person reads them: grouped digits, FLOPs and bytes in the unit that leaves few digits."""

from __future__ import annotations

from symacct.evaluation import Number

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def grouped(number: Number) -> str:
    """An integer with a comma between thousands."""
    return f"{number:,}"


def flops(number: int, unit: str = "FLOP") -> str:
    """`291.6 GFLOP`; below a million exact."""
    return f"{grouped(number)} {unit}" if number < 10**6 else f"{_scaled(number, 1000)}{unit}"


def size(number: Number) -> str:
    """`497.8 MB (474.7 MiB)`; below ten thousand exact."""
    if number < 10**4:
        return f"{grouped(number)} B"
    if number >= 1000 ** len(_PREFIXES):
        return f"{_scaled(number, 1000)}B"
    binary = _scaled(number, 1024).replace("k", "K")
    return f"{_scaled(number, 1000)}B ({binary}iB)"


def share(part: int, whole: int) -> str:
    """A part of a whole in percent, with one decimal."""
    return f"{round(1000 * part / whole) / 10:.1f} %" if whole else ""


def _scaled(number: Number, base: int) -> str:
    """Four significant digits and a prefix, or a power of ten; exact integer arithmetic, rounded half up."""
    if number >= base ** len(_PREFIXES):
        power = len(str(number)) - 1
        digits = (2 * number * 1000 // 10**power + 1) // 2
        power, digits = (power + 1, digits // 10) if digits >= 10**4 else (power, digits)
        return f"{digits // 1000}.{digits % 1000:03}·10{str(power).translate(_RAISED)} "
    step = 0
    while step + 1 < len(_PREFIXES) and number >= base ** (step + 1):
        step += 1
    for places in (3, 2, 1, 0):
        tenths = (2 * number * 10**places // base**step + 1) // 2
        if tenths < 10**4 or not places:
            break
    if tenths >= base and not places and step + 1 < len(_PREFIXES):
        step, places, tenths = step + 1, 3, 1000
    digits = f"{tenths // 10**places:,}" + (f".{tenths % 10**places:0{places}}" if places else "")
    return f"{digits} {_PREFIXES[step]}"
