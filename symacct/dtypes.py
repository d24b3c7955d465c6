"""Widths of tensor elements in bytes, by torch's names for the dtypes."""

from __future__ import annotations

from symacct.errors import ModelFileError

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

BUILT = ("fp32", "fp16", "bf16")  # the dtypes that a whole model can be converted to
_EIGHT = ("fp8", "float8", "e4m3", "e5m2", "int8", "uint8", "8bit")

SYMBOLIC = {  # widths that stay symbols, under the names that stand for a dtype then
    "w_p": "bytes of an element of parameters and buffers",
    "w_g": "bytes of an element of gradients",
    "w_o": "bytes of an element of optimizer state",
    "w_a": "bytes of an element of activations",
}

FLOATING = frozenset(name for name in WIDTHS if name.startswith(("float", "bfloat", "complex")))


def checked(dtype: str | None) -> str | None:
    """The dtype to convert a model to, if any. Raises ModelFileError for one that no model runs in."""
    if dtype is None or dtype in BUILT:
        return dtype
    if any(word in dtype.lower() for word in _EIGHT):
        raise ModelFileError(
            f"dtype = {dtype!r}: a model converted to 8 bits does not run, for norms, additions and most "
            "products take none; store the weights in 8 bits in the model's own code, and cast or scale them "
            "there: such tensors are counted as they are"
        )
    raise ModelFileError(f"dtype = {dtype!r}: choose from {', '.join(BUILT)}")


def width(dtype: str) -> int:
    """Bytes of one element. Raises KeyError for a dtype that torch does not have."""
    return WIDTHS[dtype]
