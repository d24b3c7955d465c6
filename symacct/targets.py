"""From a target's name to its Graph: a stored graph, a graph's JSON file, a model file, or a Hugging Face config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from symacct.dtypes import checked
from symacct.errors import GraphError, ModelFileError, SymacctError, Unsupported
from symacct.graph import Graph
from symacct.regions import Region
from symacct.storage import load, loads
from symacct.variants import Variant


def catalogue() -> dict[str, Any]:
    """The stored graphs that symacct ships, by name."""
    found: dict[str, Any] = {}
    for folder in _folders():
        for entry in folder.iterdir():
            if entry.name.endswith(".json"):
                found.setdefault(entry.name.removesuffix(".json"), entry)
    return dict(sorted(found.items()))


def _folders() -> Iterator[Any]:
    checkout = Path(__file__).parent.parent / "graphs"
    if checkout.is_dir():
        yield checkout
    packaged = resources.files("symacct") / "catalogue"
    if packaged.is_dir():
        yield packaged


def graph_of(
    target: str, mode: str = "train", device: str = "cuda", dtype: str | None = None, checkpoint: str | None = None, asked: Variant | None = None,
    region: Region | None = None,
) -> Graph:
    """The graph of a target, in another dtype, with recomputation or as a variant if asked. Torch is imported only to trace.

    Where code takes one way or another by its sizes, the way is that of `region`; a stored graph is of the way it took.

    Raises ModelFileError when the target is nothing of the four kinds, and what tracing or reading raises.
    """
    stored = _stored(target)
    if stored is not None:
        return _checked_mode(stored, target, mode, device, dtype, checkpoint, asked)
    from symacct.tracing.variation import graph_of as traced

    return traced(source_of(target), target, mode, device, dtype, checkpoint, asked, region)


def source_of(target: str, dtype: str | None = None, checkpoint: str | None = None) -> Any:
    """The traceable source of a model file or a config, in another dtype or with recomputation if asked. Imports torch."""
    if dtype or checkpoint:
        from symacct.tracing.preparation import prepared

        return prepared(source_of(target), dtype, checkpoint)
    path = Path(target)
    if path.suffix == ".py":
        from symacct.tracing.model_file import load_model_file

        return load_model_file(path)
    if path.is_dir() or path.suffix == ".json":
        from symacct.tracing.hf import load_config

        return load_config(path)
    near = get_close_matches(target, catalogue(), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ModelFileError(
        f"{target}: no stored graph, model file (.py), graph (.json) or config directory; {hint}stored graphs: {', '.join(catalogue())}"
    )


def model_behind(target: str, graph: Graph) -> Any:
    """The model behind a target. A stored graph's is the file that its source lines name."""
    if target.endswith(".py") or Path(target).is_dir() or Path(target).name == "config.json":
        return source_of(target)
    lines = [place.node.source.rpartition(":")[0] for place in graph.placed() if place.node.source.startswith("examples/")]
    for file in dict.fromkeys(sorted(lines, key=lambda line: -lines.count(line))):
        for folder in (Path(__file__).parent.parent, Path.cwd()):
            if (folder / file).is_file():
                return source_of(str(folder / file))
    try:
        return source_of(target)
    except SymacctError as error:
        named = f" ({lines[0]})" if lines else ""
        raise Unsupported(
            f"{target} is a stored graph and its model file{named} is not here, and only a model can be run; "
            "run it in a checkout of symacct, or name the model file"
        ) from error


def _stored(target: str) -> Graph | None:
    entry = catalogue().get(target)
    if entry is not None:
        return loads(entry.read_text(encoding="utf-8"), target)
    path = Path(target)
    if path.suffix != ".json" or not path.is_file() or _is_config(path):
        return None
    return load(path)


def is_stored(target: str) -> bool:
    """Whether a target is a graph as it was recorded, which cannot be traced anew."""
    path = Path(target)
    return target in catalogue() or (path.suffix == ".json" and path.is_file() and not _is_config(path))


def _is_config(path: Path) -> bool:
    """Whether a JSON file is a Hugging Face config rather than a graph."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return isinstance(data, dict) and "symacct" not in data and bool({"architectures", "model_type"} & set(data))


def _checked_mode(graph: Graph, target: str, mode: str, device: str, dtype: str | None, checkpoint: str | None, asked: Variant | None) -> Graph:
    if graph.mode != mode:
        raise GraphError(f"{target} is a stored graph of mode {graph.mode}, not {mode}; derive its model file with --mode {mode}")
    if graph.device != device:
        raise GraphError(f"{target} is a stored graph with {graph.device} behaviour; derive its model file with --device {device}")
    if checked(dtype) or checkpoint or (asked and asked.text):  # no advice that then fails
        option = f"--dtype {dtype}" if dtype else f"--checkpoint {checkpoint}" if checkpoint else asked.option if asked else ""
        raise GraphError(f"{target} is a stored graph, recorded as it is; derive its model file with {option}")
    return graph
