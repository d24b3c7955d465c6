"""How the tests of its structure read the package: modules, the modules they import, the calls they make."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "symacct"


def sources() -> dict[str, Path]:
    """Every module of the package by its dotted name, `symacct` itself first."""
    return {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(source: ast.AST, package: str) -> Iterator[tuple[str, str | None]]:
    """(module, name or None) of each import in a module of `package`; relative ones made absolute."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((module, alias.name) for alias in node.names)


def own_imports(name: str, known: Iterable[str]) -> set[str]:
    """The package's modules that `name` imports; `from symacct.tracing import run` imports `run`."""
    path = sources()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for module, member in imported(tree(path), package):
        inner = f"{module}.{member}"
        found |= {inner if inner in known else module} & set(known)
    return found


def unit(name: str) -> str:
    """The word of the layer order that a module belongs to: `symacct.rules.views` is part of `rules`."""
    return name.split(".")[1] if "." in name else ""


def misplaced(name: str, imports: Iterable[str], order: list[str]) -> list[str]:
    """The imports of module `name` that stand to the right of it in `order`."""
    here = order.index(unit(name))
    return sorted(other for other in imports if unit(other) and order.index(unit(other)) > here)


def mentions(source: ast.AST, library: str) -> bool:
    """Whether a module imports `library` or a part of it, on whatever condition but type checking."""
    skipped = {id(inner) for node in ast.walk(source) if _is_type_checking(node) for inner in ast.walk(node)}
    return any(
        module.split(".")[0] == library
        for node in ast.walk(source)
        if id(node) not in skipped and isinstance(node, (ast.Import, ast.ImportFrom))
        for module, _ in imported(node, "")
    )


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def private_torch(source: ast.AST) -> list[str]:
    """The names directly under torch that begin with one underscore: `torch._C`, `from torch import _VF`."""
    attributes = [
        f"torch.{node.attr}"
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch" and _private(node.attr)
    ]
    names = [f"{module}.{member}" if member else module for module, member in imported(source, "")]
    return attributes + [name for name in names if name.startswith("torch.") and _private(name.split(".")[1])]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def calls(source: ast.AST, functions: Iterable[str], methods: Iterable[str] = ()) -> list[str]:
    """The calls of bare names in `functions` and of attributes in `methods`, with their lines."""
    return [
        f"{ast.unparse(node.func)}( in line {node.lineno}"
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in set(functions))
            or (isinstance(node.func, ast.Attribute) and node.func.attr in set(methods))
        )
    ]
