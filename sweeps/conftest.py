"""torchvision beside a CPU build of torch: its compiled ops may not load, and no model here calls one."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

_DECLARED: list[torch.library.Library] = []  # a library forgets its ops when it is dropped


@pytest.fixture(scope="session", autouse=True)
def torchvision():
    """Imports torchvision, its ops declared by name where its extension is for another build of torch."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        pytest.skip("no torchvision here: make sweep installs it")
    try:
        import torchvision
    except RuntimeError:
        text = (Path(found.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
        library = torch.library.Library("torchvision", "DEF")
        for name in sorted(set(re.findall(r'register_\w+\("(?:torchvision::)?(\w+)"', text))):
            library.define(f"{name}(Tensor x) -> Tensor")
        _DECLARED.append(library)
        import torchvision
    return torchvision
