"""Model files: a Python file with `dims`, `model`, `inputs` and, if wanted, `loss`, `optimizer`, `cache`, `meanings`."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from symacct.errors import ModelFileError, SymacctError
from symacct.symbols import is_name
from symacct.tracing.autocast import noting
from symacct.tracing.source import ModelSource


def load_model_file(path: str | Path) -> ModelSource:
    """Read a model file. Raises ModelFileError when it breaks the contract or its own code raises."""
    path = Path(path)
    module = _execute(path)
    where = path.as_posix()
    missing = [name for name in ("dims", "model", "inputs") if not hasattr(module, name)]
    if missing:
        raise ModelFileError(
            f"{where}: a model file needs {', '.join(missing)}: "
            'dims = {"B": 2, ...} names every size, model(...) and inputs(...) pick theirs by parameter name'
        )
    return model_source(
        where,
        dims=module.dims,
        model=module.model,
        inputs=module.inputs,
        loss=_function(where, module, "loss"),
        optimizer=_function(where, module, "optimizer"),
        meanings=getattr(module, "meanings", {}),
        cache=_function(where, module, "cache"),
    )


def _function(where: str, module: Any, name: str) -> Any:
    """The function of this name, if there is one; a module that a star import brought along is none."""
    found = getattr(module, name, None)
    if found is None or inspect.ismodule(found):
        return None
    if not callable(found) and not (name == "optimizer" and isinstance(found, str)):
        raise ModelFileError(f"{where}: {name} is a {type(found).__name__}, no function; name it otherwise, or leave it out")
    return found


def model_source(
    name: str,
    *,
    dims: Mapping[str, int],
    model: Callable[..., Any],
    inputs: Callable[..., Any],
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | None = None,
    meanings: Mapping[str, str] | None = None,
    cache: Callable[..., Any] | None = None,
) -> ModelSource:
    """A ModelSource from the functions of a model file, each called with the sizes that its parameters name.

    `cache(...)` returns an empty cache, which the model's forward takes as `cache=` and fills in place.
    """
    sizes = _checked_dims(name, dims)
    build = _picking(name, "model", model, sizes)
    make = _picking(name, "inputs", inputs, sizes)
    judge: Callable[..., Any] | None = None
    if loss is not None:
        wanted = _parameters(name, "loss", loss, {*sizes, "inputs"}, skip=1)

        def judged(output: Any, now: Mapping[str, Any], given: Any) -> Any:
            return loss(output, **{key: given if key == "inputs" else now[key] for key in wanted})

        judge = judged

    empty = None if cache is None else _picking(name, "cache", cache, sizes)

    return ModelSource(
        name=name,
        dims=sizes,
        model=build,
        inputs=make,
        loss=judge,
        optimizer=optimizer,
        meanings=dict(meanings or {}),
        cache=None if empty is None else lambda _, now: {"cache": empty(now)},
        modules=tuple({place for f in (model, inputs) if (place := getattr(f, "__module__", None))}),
    )


def _execute(path: Path) -> Any:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file")
    name = f"symacct_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelFileError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with noting(), contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer alone
            spec.loader.exec_module(module)
    except SymacctError:
        raise
    except Exception as error:
        raise ModelFileError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _checked_dims(name: str, dims: Any) -> dict[str, int]:
    if not isinstance(dims, Mapping):
        raise ModelFileError(f"{name}: dims must map each size's name to an example, not be a {type(dims).__name__}")
    for key, value in dims.items():
        if not isinstance(key, str) or not is_name(key):
            raise ModelFileError(f"{name}: dims names a size {key!r}: use a letter, then letters, digits and _")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelFileError(f"{name}: dims[{key!r}] is {value!r}: an example size is a positive integer")
    return dict(dims)


def _parameters(name: str, what: str, function: Any, known: Any, skip: int = 0) -> tuple[str, ...]:
    found = []
    for key, parameter in list(inspect.signature(function).parameters.items())[skip:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if key in known:
            found.append(key)
        elif parameter.default is parameter.empty:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}" if near else ""
            raise ModelFileError(f"{name}: {what}({key}) is not in dims{hint}; dims names {', '.join(sorted(known)) or 'nothing'}")
    return tuple(found)


def _picking(name: str, what: str, function: Any, sizes: Mapping[str, int]) -> Callable[[Mapping[str, Any]], Any]:
    if not callable(function):
        raise ModelFileError(f"{name}: {what} must be a function of sizes")
    wanted = _parameters(name, what, function, sizes)

    def call(now: Mapping[str, Any]) -> Any:
        return function(**{key: now[key] for key in wanted})

    return call
