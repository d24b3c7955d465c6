"""Where the user's code stands: the line that a recorded op, a pinned size or an error is explained by."""

from __future__ import annotations

import sys
from types import FrameType

import torch

TORCH_ROOT = torch.__path__[0]
OWN_ROOT = __file__.rsplit("/", 2)[0]
QUIET = (TORCH_ROOT, OWN_ROOT, "<")
_BOUNDARY = f"{OWN_ROOT}/tracing/run.py"


def user_line(skip: int = 1) -> str:
    """`file:line` of the innermost frame that is neither torch's nor ours, or an empty string."""
    frame: FrameType | None = sys._getframe(skip)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _BOUNDARY:
            return ""
        if not name.startswith(QUIET) and "/contextlib.py" not in name and "/functools.py" not in name:
            return f"{short(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def short(path: str) -> str:
    """A path that does not name this machine: from the package's root, else the last two parts."""
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in path:
            return path.rsplit(marker, 1)[1]
    return "/".join(path.rsplit("/", 2)[-2:])
