"""Options of `symacct plan` that do not go together: what would be ignored is refused."""

from __future__ import annotations

from typing import Any

_UNITS = ("tokens", "samples", "steps")
_SEARCHED = ("batch", "network", "node")
_AMOUNTS = (*_UNITS, "tokens_per_second", "step_seconds")
_PLANNED = ("parallel", "solve", "micro_batches", "price", *_AMOUNTS)


def apart(options: dict[str, Any]) -> None:
    """Raise SizeError for options that the question at hand would ignore."""
    from symacct.errors import SizeError

    keys = _PLANNED if options["search"] else _SEARCHED
    named = ", ".join(f"--{key.replace('_', '-')}" for key in keys if options[key] is not None)
    if named and options["search"]:
        raise SizeError(f"--search tries every way itself; leave out {named}")
    if named:
        raise SizeError(f"{named}: only --search asks for that; give it too, or leave this out")
    if options["price"] is not None and options["mode"] == "train" and all(options[key] is None for key in _AMOUNTS):
        raise SizeError("--price needs to know how much: give --tokens, --samples or --steps")
