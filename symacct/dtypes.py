"""Widths of tensor elements in bytes, by torch's names for the dtypes."""

from __future__ import annotations

WIDTHS: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}

FLOATING = frozenset(name for name in WIDTHS if name.startswith(("float", "bfloat", "complex")))


def width(dtype: str) -> int:
    """Bytes of one element. Raises KeyError for a dtype that torch does not have."""
    return WIDTHS[dtype]
