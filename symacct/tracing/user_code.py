"""What the user's own code raises: one sentence, with its line and what to do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from symacct.errors import ModelFileError, SymacctError
from symacct.tracing.lines import QUIET, short
from symacct.tracing.source import ModelSource

_LONGEST = 300
NO_SIZE = (
    "needs a number that only the values of tensors tell, and formulas are of sizes alone; take the way or the "
    "length that is meant as a plain number, or as a size of the model file"
)
_REASONS = {  # what torch says where no values are, in the words of who wrote the code
    "data-dependent": NO_SIZE,
    ".numpy() is not supported": (
        "hands a tensor to numpy, whose work is no op of torch and would be missing; say it with torch, or leave it "
        "out of the model that is traced"
    ),
}


@contextlib.contextmanager
def guarding(source: ModelSource, doing: str) -> Iterator[None]:
    """Whatever the user's code raises becomes a ModelFileError with the user's line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer alone
            yield
    except SymacctError:
        raise
    except Exception as error:
        line, text = _line_of(error), str(error).strip().split("\n")[0][:_LONGEST]
        what = next((why for said, why in _REASONS.items() if said in text), f"raised {type(error).__name__}: {text}")
        raise ModelFileError(f"{source.name}: {doing} {what}" + (f" ({line})" if line else "")) from error


def _line_of(error: BaseException) -> str:
    line, trail = "", error.__traceback__
    while trail is not None:
        name = trail.tb_frame.f_code.co_filename
        if not name.startswith(QUIET) and "/contextlib.py" not in name:
            line = f"{short(name)}:{trail.tb_lineno}"
        trail = trail.tb_next
    return line
