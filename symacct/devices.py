"""Accelerators: peak FLOP/s by dtype, memory, bandwidth and links, each device with the source of its
figures.

A card is a name of the table (`devices.toml`), a TOML file of a device of the user's own, or its figures in
one line:

    h100      my.toml      peak=312e12,memory=80e9,bandwidth=1.5e12
    bf16=312e12,fp32=19.5e12,memory=80e9,…

A file has the keys of the table's rows, without the `[[device]]` above them. Peaks are dense; all figures are
exact.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from symacct.amounts import whole
from symacct.errors import DeviceError, SizeError

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
_ANY = "any"
_OF_TORCH = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}
_FIGURES = ("memory", "bandwidth", "link")
_TEXTS = ("name", "source", "notes")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. `peaks` in FLOP/s, dense, by dtype; bytes; B/s. `link` is all links, both directions.

    `asked` is the word it was asked by. A figure that is not known is None.
    """

    name: str
    peaks: Mapping[str, int]
    memory: int | None
    bandwidth: int | None
    link: int | None = None
    source: str = ""
    notes: str = ""
    asked: str = ""

    def peak(self, dtype: str) -> int:
        """FLOP/s in this dtype (fp32, tf32, fp16, bf16, fp8, int8). Raises DeviceError if it has none."""
        if _ANY in self.peaks:
            return self.peaks[_ANY]
        if dtype in self.peaks:
            return self.peaks[dtype]
        has = ", ".join(self.peaks) or "no peak at all"
        unknown = "" if dtype in DTYPES else f"; dtypes are {', '.join(DTYPES)}"
        raise DeviceError(
            f"{self.name} has no peak for {dtype}, it has {has}{unknown}; choose one with --precision"
        )

    def ridge(self, dtype: str) -> Fraction:
        """FLOPs a byte from which on an op is bound by arithmetic, not by memory."""
        return Fraction(self.peak(dtype), self.needed("bandwidth"))

    def needed(self, figure: str) -> int:
        """The memory, bandwidth or link. Raises DeviceError if it is not known."""
        value = getattr(self, figure)
        if value is None:
            raise DeviceError(
                f'{self.name} has no figure for {figure}; give one: --card "…,{figure}=NUMBER", or in a file'
            )
        return value


def precision_of(dtype: str) -> str:
    """The name by which peaks list one of torch's dtypes; float8 of every kind is fp8."""
    return "fp8" if dtype.startswith("float8") else _OF_TORCH.get(dtype, dtype)


@cache
def table() -> dict[str, Device]:
    """Every device of the table by its name."""
    return {made.name: made for made, _ in _rows()}


@cache
def _rows() -> tuple[tuple[Device, tuple[str, ...]], ...]:
    text = (resources.files("symacct") / "devices.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text, parse_float=Fraction)["device"]
    return tuple((_made(row, row["name"]), tuple(row.get("aliases", ()))) for row in rows)


def device(name: str) -> Device:
    """A device of the table, by its name or another common one. Raises DeviceError with near names."""
    known: dict[str, Device] = {}
    for made, aliases in _rows():
        for word in (made.name, *aliases):
            known[_plain(word)] = made
    found = known.get(_plain(name))
    if found is not None:
        return _asked(found, name.strip())
    near = list(dict.fromkeys(known[word].name for word in get_close_matches(_plain(name), known, 4, 0.5)))
    hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
    raise DeviceError(
        f"no card {name!r}; {hint}known: {', '.join(table())}; another one by a file, --card my.toml, or as "
        '--card "peak=312e12,memory=80e9,bandwidth=1.5e12"'
    )


def card(text: str) -> Device:
    """The device that `--card` names. Raises DeviceError for what is none, and for figures that are no
    numbers.
    """
    if "=" in text:
        return _spelled(text)
    if text.strip().lower().endswith(".toml"):
        return _from_file(Path(text.strip()))
    return device(text)


def _plain(name: str) -> str:
    word = re.sub(r"[\s_/]+", "-", name.strip().lower())
    return word.removeprefix("nvidia-").removeprefix("google-").removeprefix("amd-")


def _asked(found: Device, name: str) -> Device:
    return Device(**{**{field: getattr(found, field) for field in found.__slots__}, "asked": name})


def _spelled(text: str) -> Device:
    row: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not value:
            raise DeviceError(
                f"--card {part!r}: write figures by name, as in peak=312e12,memory=80e9,bandwidth=1.5e12"
            )
        if key in row:
            raise DeviceError(f"--card gives {key} twice")
        row[key] = value
    return _made(row, row.get("name", "your card"), "given with --card")


def _from_file(path: Path) -> Device:
    try:
        row = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Fraction)
    except OSError as error:
        raise DeviceError(f"cannot read the card {path}: {error.strerror}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise DeviceError(f"{path} is no TOML with a card's figures: {error}") from None
    return _made(row, str(row.get("name", path.stem)), str(path))


def _made(row: Mapping[str, Any], name: str, source: str = "") -> Device:
    """A device from the keys of a row. Raises DeviceError for an unknown key or a figure that is no
    number.
    """
    known = ("peak", "peaks", "aliases", *DTYPES, *_FIGURES, *_TEXTS)
    for key in row:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise DeviceError(
                f"{name}: no figure {key!r}; {hint}there are peak, {', '.join((*DTYPES, *_FIGURES))}"
            )
    peaks = row.get("peaks", {})
    if not isinstance(peaks, Mapping) or not set(peaks) <= set(DTYPES):
        raise DeviceError(f"{name}: peaks has a number for any of {', '.join(DTYPES)}")
    given = {**peaks, **{dtype: row[dtype] for dtype in DTYPES if dtype in row}}
    if "peak" in row and given:
        raise DeviceError(f"{name}: give one peak for every dtype, or a peak for each dtype, not both")
    given = {_ANY: row["peak"]} if "peak" in row else given
    ordered = {
        dtype: _figure(given[dtype], f"{name}: {'peak' if dtype == _ANY else dtype}")
        for dtype in (*DTYPES, _ANY)
        if dtype in given
    }
    numbers = {key: _figure(row[key], f"{name}: {key}") if key in row else None for key in _FIGURES}
    if not ordered and not any(numbers.values()):
        raise DeviceError(f"{name}: no figures; give peak (or a dtype), memory, bandwidth")
    return Device(
        name,
        ordered,
        **numbers,
        source=str(row.get("source", source)),
        notes=str(row.get("notes", "")),
        asked=name,
    )


def _figure(value: Any, what: str) -> int:
    try:
        return whole(value, what)
    except SizeError as error:
        raise DeviceError(str(error)) from None
