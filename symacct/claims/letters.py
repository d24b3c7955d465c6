"""Letters of formulas, such as C for a step's FLOPs, where a claim has them for a size: `reread`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import sympy as sp
from sympy import Expr

from symacct.claims.names import Names, size_of
from symacct.errors import FormulaError
from symacct.formula_reader import caret
from symacct.symbols import symbol

# Letters of the code behind a convention, as concepts of the glossary: `B, T, C = x.size()` in both.
OWN: Mapping[str, Mapping[str, str]] = {"llm.c": {"C": "d"}, "nanogpt": {"C": "d"}}


def reread(text: str, sides: Sequence[Expr], names: Names) -> bool:
    """Whether the claim is to be read again, with letters mapped to the sizes that its author means by them.

    A letter stands for a size where it is multiplied by sizes, or where the claim has the letter's formula by
    another name as well. Raises FormulaError where the convention asked for does not say which size.
    """
    keys = {symbol(name) for name, (kind, _) in names.held.items() if kind == "key"}
    counts = {symbol(name) for name, (kind, _) in names.held.items() if kind == "count"}
    sizes = set[sp.Basic]().union(*(side.free_symbols for side in sides)) - keys - counts
    letters = {word: (at, name) for word, (how, at, name) in names.used.items() if how == "key"}
    found = {}
    for word, (at, name) in letters.items():
        if not (name in names.spelled or any(_times(side, symbol(name), sizes) for side in sides)):
            continue
        size = size_of(names.letters.get(word, ""), names.graph)
        if size is None or (keys == {symbol(name)} and name not in names.spelled):  # nothing else is claimed
            key, width = (
                names.held[name][1],
                size_of("d", names.graph) or next(iter(names.graph.symbols), "1"),
            )
            raise FormulaError(
                f"{word!r} may be {key} or a size; say which: --map {word}={key} or, as where C is the "
                f"channels, --map {word}={width}\n{caret(text, at)}"
            )
        found[word] = symbol(size)
    if found:
        names.mapped = {**names.mapped, **found}
        names.held.clear()
        names.used.clear()
        names.spelled.clear()
    return bool(found)


def _times(expr: Expr, stand: sp.Symbol, sizes: Set[sp.Basic]) -> bool:
    """Whether a stand-in is multiplied by sizes or with itself somewhere in an expression."""
    if stand not in expr.free_symbols:
        return False
    if expr.is_Pow and abs(expr.exp) != 1:
        return True
    over = [f for f in sp.Mul.make_args(expr) if not (f.is_Pow and f.exp.is_negative)]
    with_it = [f for f in over if stand in f.free_symbols]
    if with_it and any(f.free_symbols & sizes for f in over if f not in with_it):
        return True
    return any(_times(part, stand, sizes) for part in expr.args)
