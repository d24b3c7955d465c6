"""The safe reader of formulas that people and stored graphs write: `parse`. It runs nothing.

    sum     := product (("+" | "-") product)*
    product := factor (("*" | "/") factor)*
    factor  := ("+" | "-") factor | atom (("**" | "^") factor)?
    atom    := integer | name | function "(" sum ("," sum)* ")" | "(" sum ")"

Functions and `2*(d + h)` stay as written; `canonical` evaluates and multiplies out. Names are sizes, never
objects of sympy. Length, depth and degree are bounded.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import NoReturn

import sympy as sp
from sympy import Expr

from symacct.errors import FormulaError, UnknownSymbol
from symacct.formula_text import FUNCTIONS, MAX_POWER, is_readable
from symacct.symbols import symbol

Token = tuple[str, str, int]
_MAX_LENGTH = 40_000
_MAX_DEPTH = 32
_MAX_QUOTIENTS = 4
_MAX_DIGITS = 1000
_MAX_BITS = 4096
_MAX_ARGUMENTS = 256
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/^(),])|(?P<bad>.))",
    re.DOTALL,
)
_SIGNS = "·×⋅−÷≤≥≠≈≪≫′⌊⌋⌈⌉√⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
_ARITY = {"floor": (1, 1), "ceiling": (1, 1), "Mod": (2, 2)}


def parse(text: str, names: Collection[str] | None = None) -> Expr:
    """The expression that a formula string means. With `names`, any other name raises UnknownSymbol.

    >>> parse("2*S*E + d^2/3")
    2*E*S + d**2/3
    """
    expr, seen = _read(text)
    if names is not None:
        for name, at in seen:
            if name not in names:
                _unknown(text, name, at, names)
    return expr


@lru_cache(maxsize=1 << 14)
def _read(text: str) -> tuple[Expr, tuple[tuple[str, int], ...]]:
    if len(text) > _MAX_LENGTH:
        long = f"a formula of {len(text):,} characters; at most {_MAX_LENGTH:,} are read"
        raise FormulaError(f"{long}\n{caret(text, _MAX_LENGTH)}")
    reader = _Reader(text)
    return reader.whole(), tuple(reader.seen.items())


def parse_tokens(text: str, tokens: Sequence[Token]) -> Expr:
    """The expression that tokens mean: each its kind (number, name, sign or bad), text and place."""
    return _Reader(text, tokens).whole()


class _Reader:
    """Recursive descent over one text. Each rule returns the expression and a bound on its degree."""

    __slots__ = ("at", "depth", "seen", "text", "tokens", "under")

    def __init__(self, text: str, tokens: Sequence[Token] | None = None) -> None:
        self.text = text
        stripped = text.rstrip(" \t\r\n")
        if tokens is None:
            found = _TOKEN.finditer(stripped)
            tokens = [(kind, m[kind], m.start(kind)) for m in found if (kind := m.lastgroup or "")]
        self.tokens = [*tokens, ("end", "", len(stripped))]
        self.at = self.depth = self.under = 0
        self.seen: dict[str, int] = {}

    def whole(self) -> Expr:
        expr, _ = self.sum()
        if self.tokens[self.at][0] != "end":
            self.unexpected("an operator")
        return expr

    def sum(self) -> tuple[Expr, int]:
        expr, degree = self.product()
        if self.tokens[self.at][1] not in ("+", "-"):
            return expr, degree
        terms = [expr]
        while (sign := self.tokens[self.at][1]) in ("+", "-"):
            self.at += 1
            term, power = self.product()
            terms.append(_times([sp.S.NegativeOne, term]) if sign == "-" else term)
            degree = max(degree, power)
        return sp.Add(*terms), degree

    def product(self) -> tuple[Expr, int]:
        begin = self.tokens[self.at][2]
        expr, degree = self.factor()
        if self.tokens[self.at][1] not in ("*", "/"):
            return expr, degree
        factors = [expr]
        while (sign := self.tokens[self.at][1]) in ("*", "/"):
            self.at += 1
            factor, power = self.divisor() if sign == "/" else self.factor()
            factors.append(factor)
            degree += power
        self.bounded(degree, begin)
        product = _times(factors)
        self.bounded_number(product.as_coeff_Mul()[0], begin)
        return product, degree

    def divisor(self) -> tuple[Expr, int]:
        """One over the factor here. Nesting is bounded: it doubles sympy's time at each level."""
        at = self.tokens[self.at][2]
        self.under += 1
        if self.under > _MAX_QUOTIENTS:
            self.fail(f"quotients nest deeper than {_MAX_QUOTIENTS}", at)
        factor, degree = self.factor()
        self.under -= 1
        if factor == 0:
            self.fail("division by zero", at)
        return 1 / factor, degree

    def factor(self) -> tuple[Expr, int]:
        negative = False
        while self.tokens[self.at][1] in ("+", "-"):
            negative ^= self.tokens[self.at][1] == "-"
            self.at += 1
        expr, degree = self.atom()
        if self.tokens[self.at][1] in ("**", "^"):
            expr, degree = self.power(expr, degree)
        return _times([sp.S.NegativeOne, expr]) if negative else expr, degree

    def power(self, base: Expr, degree: int) -> tuple[Expr, int]:
        self.at += 1
        at = self.tokens[self.at][2]
        self.deeper(at)
        exponent, _ = self.factor()
        self.depth -= 1
        if not exponent.is_Integer or exponent < 0:
            self.fail("an exponent is an integer from 0; write 1/x for a negative power", at)
        if base.is_Number:
            self.bounded_bits((abs(base.p).bit_length() + base.q.bit_length()) * exponent.p, at)
            return base**exponent, 0
        self.bounded(degree * exponent.p, at)
        coeff = base.as_coeff_Mul()[0]
        self.bounded_bits((abs(coeff.p).bit_length() + coeff.q.bit_length() - 2) * exponent.p, at)
        return base**exponent, degree * exponent.p

    def atom(self) -> tuple[Expr, int]:
        kind, token, at = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            if len(token) > _MAX_DIGITS:
                self.fail(f"a number of {len(token):,} digits; at most {_MAX_DIGITS:,} are read", at)
            return sp.Integer(int(token)), 0
        if kind == "name":
            if self.tokens[self.at][1] == "(":
                return self.call(token, at)
            if not is_readable(token):
                self.fail(f"{token!r} is not a name: names begin with a letter", at)
            self.seen.setdefault(token, at)
            return symbol(token), 1
        if token != "(":
            self.at -= 1
            self.unexpected("a number, a name or a bracket")
        self.deeper(at)
        inside = self.sum()
        self.close()
        return inside

    def call(self, name: str, at: int) -> tuple[Expr, int]:
        if name not in FUNCTIONS:
            self.fail(f"unknown function {name[:40]!r}; {_function_hint(name)}", at)
        self.at += 1
        self.deeper(at)
        arguments = [self.sum()]
        while self.tokens[self.at][1] == ",":
            self.at += 1
            arguments.append(self.sum())
        self.close()
        low, high = _ARITY.get(name, (1, _MAX_ARGUMENTS))
        if not low <= len(arguments) <= high:
            wanted = f"{low} argument{'s' * (low > 1)}" if low == high else f"{low} to {high} arguments"
            self.fail(f"{name} takes {wanted}, not {len(arguments)}", at)
        values, degrees = zip(*arguments, strict=True)
        if name == "Mod" and values[1] == 0:
            self.fail("Mod by zero", at)
        degree = sum(degrees)
        if name in ("Max", "Min"):
            return _extreme(FUNCTIONS[name], values), max(degrees)
        return FUNCTIONS[name](*values, evaluate=all(v.is_Number for v in values)), degree

    def deeper(self, at: int) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"brackets nest deeper than {_MAX_DEPTH}", at)

    def close(self) -> None:
        if self.tokens[self.at][1] != ")":
            self.unexpected("an operator or ')'")
        self.at += 1
        self.depth -= 1

    def bounded(self, degree: int, at: int) -> None:
        if degree > MAX_POWER:
            self.fail(f"a product of degree over {MAX_POWER}", at)

    def bounded_number(self, number: Expr, at: int) -> None:
        self.bounded_bits(abs(number.p).bit_length() + number.q.bit_length(), at)

    def bounded_bits(self, bits: int, at: int) -> None:
        if bits > _MAX_BITS:
            self.fail(f"a number of more than {_MAX_BITS:,} bits", at)

    def unexpected(self, wanted: str) -> NoReturn:
        kind, token, at = self.tokens[self.at]
        before = self.tokens[self.at - 1][0] if self.at else ""
        if before == "number" and (token == "." or re.fullmatch("[eE][0-9]*", token)):
            self.fail("only exact numbers: write 3/2 for 1.5 and 10**9 for 1e9", at)
        if before == "number" and kind == "name":
            self.fail(f"expected {wanted} before {token[:40]!r}; write * to multiply", at)
        what = "the end" if kind == "end" else _shown(token[:40])
        self.fail(f"expected {wanted}, found {what}", at)

    def fail(self, message: str, at: int) -> NoReturn:
        raise FormulaError(f"{message}\n{caret(self.text, at)}")


def _times(factors: list[Expr]) -> Expr:
    """The product, without distributing a number over a sum as sympy would. Sizes are gathered for speed."""
    coeff: Expr = sp.S.One
    powers: dict[Expr, Expr] = {}
    bodies: list[Expr] = []
    for factor in factors:
        if factor.is_Symbol:
            powers[factor] = powers.get(factor, 0) + 1
        elif factor.is_Number:
            coeff = factor if coeff is sp.S.One else coeff * factor
        elif factor.is_Pow and factor.base.is_Symbol:
            powers[factor.base] = powers.get(factor.base, 0) + factor.exp.p
        else:
            number, body = factor.as_coeff_Mul()
            coeff *= number
            bodies.append(body)
    body = _monomial(tuple(sorted(powers.items(), key=_by_name))) if powers else sp.S.One
    if bodies:
        number, body = sp.Mul(body, *bodies).as_coeff_Mul()
        coeff *= number
    if coeff is sp.S.One:
        return body
    if body.is_Add and coeff is not sp.S.Zero:
        return sp.Mul(coeff, body, evaluate=False)
    return sp.Mul(coeff, body)


def _by_name(power: tuple[Expr, int]) -> str:
    return power[0].name


@lru_cache(maxsize=1 << 14)
def _monomial(powers: tuple[tuple[Expr, int], ...]) -> Expr:
    return sp.Mul(*(base if power == 1 else base**power for base, power in powers))


def _extreme(function: type[Expr], values: tuple[Expr, ...]) -> Expr:
    """Max or Min as written; sympy's own would compare all pairs, slowly. Numbers alone are compared."""
    numbers = [v for v in values if v.is_Number]
    rest = [v for v in values if not v.is_Number]
    return function(*rest, *([function(*numbers)] if numbers else []), evaluate=False)


def _function_hint(name: str) -> str:
    like = [f for f in FUNCTIONS if f.lower() == name.lower() or name[:4] == f[:4]]
    near = get_close_matches(name, FUNCTIONS, 1) or like
    if near:
        return f"did you mean {near[0]!r}?"
    return f"functions are {', '.join(FUNCTIONS)}; write * to multiply"


def _unknown(text: str, name: str, at: int, names: Collection[str]) -> NoReturn:
    known = sorted(names)
    near = get_close_matches(name, known, 1) or [n for n in known if n.lower() == name.lower()]
    known_names = f"known are {', '.join(known)}" if known else "no names are known here"
    hint = f"did you mean {near[0]!r}?" if near else known_names
    raise UnknownSymbol(f"unknown symbol {name[:40]!r}; {hint}\n{caret(text, at)}")


def caret(text: str, at: int, width: int = 72) -> str:
    """The text around a position with a caret under it.

    Shown are ASCII and the signs of formulas, each in one column; everything else is a `?`.
    """
    begin = max(0, min(at - width // 2, len(text) - width))
    part = re.sub(r"[\t\r\n]", " ", text[begin : begin + width])
    shown = re.sub(f"[^ -~{_SIGNS}]", "?", part)
    return f"  {shown}\n  {' ' * (at - begin)}^"


def _shown(token: str) -> str:
    if all(" " <= c <= "~" for c in token):
        return repr(token)
    return f"U+{ord(token[0]):04X} {unicodedata.name(token[0], 'a control character')}"
