"""A claim as an equation: `read`. Both sides may hold formula keys, N, D, sizes and products without a sign.

In `s/6h`, written without a space, the whole of `6h` is under the bar; in `s/6 h` only the 6 is. `1/2h` may
be either and is asked for. A claim of a quotient, `flops.hardware/flops.step = 4/3`, is judged multiplied
out where it is not true as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import sympy as sp
from sympy import Expr

from symacct.claims.latex import lexed
from symacct.claims.letters import reread
from symacct.claims.names import FUNCTIONS, KEYS, Names
from symacct.claims.owned import mistaken
from symacct.errors import FormulaError
from symacct.formula_reader import Token, caret, parse_tokens
from symacct.symbols import symbol

_MOST_BARS = 4  # as many different divisors with formulas in them are multiplied out
_UNITS = ("FLOP", "FLOPs", "FLOPS", "flops", "MACs", "bytes", "elements")
_COUNTED = ("params", "parameters")  # units where the claim is of parameters


@dataclass(frozen=True)
class Claim:
    """`left = right`, the side with the formula keys left. `keys` and `counts` say what stand-ins mean."""

    text: str
    left: Expr
    right: Expr
    keys: Mapping[sp.Symbol, str]
    counts: Mapping[sp.Symbol, str]

    def side(self, side: Expr, formulas: Mapping[str, Expr], counts: Mapping[str, Expr], choice: str) -> Expr:
        """A side in the model's sizes, N being the parameter count `choice`."""
        known = {stand: formulas[key] for stand, key in self.keys.items()}
        known |= {stand: counts[name or choice] for stand, name in self.counts.items()}
        return side.xreplace(known)

    @property
    def cleared(self) -> Claim:
        """Both sides times what has formulas or counts of parameters under a bar, where that is little."""
        stands, below = set(self.keys) | set(self.counts), dict[Expr, Expr]()
        for term in (*sp.Add.make_args(self.left), *sp.Add.make_args(self.right)):
            bars = [f for f in sp.Mul.make_args(term) if f.is_Pow and f.exp.is_negative]
            if any(bar.free_symbols & stands for bar in bars):
                below |= {bar.base: max(below.get(bar.base, 0), -bar.exp) for bar in bars}
        if not below or len(below) > _MOST_BARS:
            return self
        times = [base**power for base, power in below.items()]
        sides = [
            sp.Add(*(sp.Mul(term, *times) for term in sp.Add.make_args(side)))
            for side in (self.left, self.right)
        ]
        known = set(self.keys) or stands
        if not sides[0].free_symbols & known:
            sides.reverse()
        return replace(self, left=sides[0], right=sides[1])

    @property
    def counted(self) -> tuple[sp.Symbol, ...]:
        """Stand-ins for parameter counts that the right side names by their formula keys."""
        right = self.right.free_symbols - self.left.free_symbols
        return tuple(s for s, key in self.keys.items() if key.startswith("params.") and s in right)

    @property
    def speaks_of_n(self) -> bool:
        """Whether the convention decides what the claim's N is."""
        return "" in self.counts.values()


def read(text: str, names: Names) -> Claim:
    """The claim that a text makes. Raises FormulaError or UnknownSymbol, with a caret."""
    tokens = lexed(text)
    left, right, at = _sides(text, tokens)
    sides = [_parsed(text, side, names) for side in (left, right)]
    if reread(text, sides, names):
        sides = [_parsed(text, side, names) for side in (left, right)]
    names.settle(text)
    exact = {symbol(n): what for n, (kind, what) in names.held.items() if kind in ("map", "tokens")}
    sides = [side.xreplace(exact) for side in sides]
    keys = {symbol(n): str(what) for n, (kind, what) in names.held.items() if kind == "key"}
    counts = {symbol(n): str(what) for n, (kind, what) in names.held.items() if kind == "count"}
    if not any(side.free_symbols & set(keys) for side in sides) and not sides[0].free_symbols & set(counts):
        told = next((f", for --map tells {word}" for word in names.mapped if word in KEYS), "")
        told += "".join(f"; {meant}" for meant in mistaken(names).values())
        raise FormulaError(
            f"a claim speaks of a formula, as in 'flops.step = 6*N*D'; this one names none{told}\n"
            f"{caret(text, at)}"
        )
    if keys and not sides[0].free_symbols & set(keys):
        sides.reverse()
    return Claim(text, sides[0], sides[1], keys, counts)


@contextmanager
def placed(text: str) -> Iterator[None]:
    """An error that names no place of a claim gets the one where most is multiplied out: a power."""
    try:
        yield
    except FormulaError as error:
        if "\n" in str(error):
            raise
        tokens = lexed(text)
        opened = next((at for _, word, at in tokens if word == "("), 0)
        bare = [token for token in tokens if token[1] != "("]  # ^{40} is a power in brackets
        powers = [
            (int(word), at)
            for (_, sign, _), (kind, word, at) in pairwise(bare)
            if sign in ("**", "^") and kind == "number"
        ]
        at = max(powers, key=lambda power: power[0], default=(0, opened))[1]
        raise FormulaError(f"{error}\n{caret(text, at)}") from error


def _sides(text: str, tokens: list[Token]) -> tuple[list[Token], list[Token], int]:
    marks = [i for i, (_, word, _) in enumerate(tokens) if word == "="]
    if len(marks) == 2 and marks[1] == marks[0] + 1:  # a == b
        tokens = tokens[: marks[1]] + tokens[marks[1] + 1 :]
        marks = marks[:1]
    if len(marks) != 1:
        at = tokens[marks[1]][2] if marks else len(text)
        raise FormulaError(f"a claim is one equation, as in 'flops.step = 6*N*D'\n{caret(text, at)}")
    return tokens[: marks[0]], tokens[marks[0] + 1 :], tokens[marks[0]][2]


def _parsed(text: str, tokens: list[Token], names: Names) -> Expr:
    known: list[Token] = []
    for i, (kind, word, at) in enumerate(tokens):
        called = i + 1 < len(tokens) and tokens[i + 1][1] == "("
        if kind != "name":
            known.append((kind, word, at))
        elif _is_unit(text, word) and i == len(tokens) - 1 > 0 and _joins(tokens[i - 1], tokens[i]):
            told = f"{word!r} behind a formula seems to be its unit: leave it out, or write * to multiply"
            raise FormulaError(f"{told}\n{caret(text, at)}")
        elif word in FUNCTIONS and called:
            known.append(("function", FUNCTIONS[word], at))
        else:
            known += [("name", name, place) for name, place in names.pieces(text, word, at)]
    tail = next((i for i, token in enumerate(known) if token[0] == "bad"), None)
    known = _multiplied(text, known[:tail]) + ([] if tail is None else known[tail:])
    return parse_tokens(
        text, [("name" if kind == "function" else kind, word, at) for kind, word, at in known]
    )


def _multiplied(text: str, tokens: list[Token]) -> list[Token]:
    """With a sign in every product, and brackets around what stands unspaced under a `/`."""
    out: list[Token] = []
    opened = False
    inside = 0  # brackets of an exponent, as in 6h^{2}
    for i, token in enumerate(tokens):
        if inside or (opened and token[1] == "(" and tokens[i - 1][1] in ("**", "^")):
            inside += {"(": 1, ")": -1}.get(token[1], 0)
            out.append(token)
            continue
        joined = i > 0 and _joins(tokens[i - 1], token)
        spaced = i > 0 and text[token[2] - 1 : token[2]].isspace()
        power = i > 0 and (token[1] in ("**", "^") or tokens[i - 1][1] in ("**", "^"))
        if opened and not power and (not joined or spaced):
            out.append(("sign", ")", token[2]))
            opened = False
        if joined and opened and not spaced and token[1] != "(" and _is_fraction(tokens[max(i - 4, 0) : i]):
            over, under, rest = tokens[i - 3][1], tokens[i - 1][1], token[1]
            told = f"may be ({over}/{under})*{rest} or {over}/({under}*{rest}); write which one"
            raise FormulaError(f"{told}\n{caret(text, token[2])}")
        if joined:
            out.append(("sign", "*", token[2]))
        if not opened and i > 0 and tokens[i - 1][1] == "/" and token[0] in ("number", "name"):
            out.append(("sign", "(", token[2]))
            opened = True
        if opened and token[1] == "(":  # a/2(b + c): two readings
            out = _without_last_open(out)
            opened = False
        out.append(token)
    if opened:
        out.append(("sign", ")", len(text)))
    return out


def _is_unit(text: str, word: str) -> bool:
    return word in _UNITS or (word in _COUNTED and "params." in text)


def _is_fraction(before: list[Token]) -> bool:
    """Whether the last tokens are a fraction of two numbers, the first of them no exponent."""
    powered = len(before) > 3 and before[0][1] in ("**", "^")
    return not powered and [kind for kind, _, _ in before[-3:]] == ["number", "sign", "number"]


def _without_last_open(out: list[Token]) -> list[Token]:
    at = max(i for i, token in enumerate(out) if token[1] == "(")
    return out[:at] + out[at + 1 :]


def _joins(before: Token, after: Token) -> bool:
    """Whether two neighbours are factors of a product: `6N`, `N D`, `2(d + h)`, `(a)(b)`."""
    ends = before[0] in ("number", "name") or before[1] == ")"
    starts = after[0] in ("name", "function") or after[1] == "("
    return ends and starts
