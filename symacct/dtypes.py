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


# The values of each floating dtype: digits of a significand with its leading one, and the powers of two of the least
# and of the largest number.
_FLOATS: dict[str, tuple[int, int, int]] = {
    "float8_e4m3fn": (4, -9, 8),
    "float8_e5m2": (3, -16, 15),
    "float8_e4m3fnuz": (4, -10, 7),
    "float8_e5m2fnuz": (3, -17, 15),
    "float16": (11, -24, 15),
    "bfloat16": (8, -133, 127),
    "float32": (24, -149, 127),
    "float64": (53, -1074, 1023),
}
_ENDLESS = frozenset({"float8_e5m2", "float16", "bfloat16", "float32", "float64"})  # those with infinities
_POWERS = {"float8_e8m0fnu": (1, -127, 127)}  # powers of two alone, with no zero and no sign
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def holds_every(wide: str, narrow: str) -> bool:
    """Whether each value of the second dtype is one of the first, so that a cast there and back changes nothing."""
    if wide == narrow:
        return True
    if wide in _PARTS:
        return holds_every(_PARTS[wide], _PARTS.get(narrow, narrow))
    given = _FLOATS.get(narrow) or _POWERS.get(narrow)
    if wide in _FLOATS:
        digits, least, largest = given or _whole(narrow)
        room = _FLOATS[wide]
        ends = narrow not in _ENDLESS or wide in _ENDLESS
        return bool(digits) and ends and digits <= room[0] and least >= room[1] and largest <= room[2]
    digits, most = _whole(narrow)[0], _whole(wide)[0]
    return 0 < digits <= most and ("uint" not in wide or not _signed(narrow))


def _whole(dtype: str) -> tuple[int, int, int]:
    """The binary digits of an integer dtype, and the powers of two of its least and its largest number (which is
    the negative one, where there is a sign); no digits for another dtype."""
    if dtype == "bool":
        return 1, 0, 0
    if "int" not in dtype or dtype not in WIDTHS:
        return 0, 0, 0
    bits = 8 * WIDTHS[dtype]
    return bits - _signed(dtype), 0, bits - 1


def _signed(dtype: str) -> bool:
    return dtype.startswith("int")


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
