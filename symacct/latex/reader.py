"""LaTeX back to the expression, for every formula that this package prints: `read`.

It turns LaTeX into the formula language and leaves the rest to `parse`, which runs nothing and is bounded.

    sum     := ["-"] product (("+" | "-") product)*
    product := factor (["\\," | "/"] factor)*
    factor  := atom ["^" group]
    atom    := number | name | "(" sum ["\\bmod" sum] ")" | "\\frac" group group
             | "\\lfloor" sum "\\rfloor" | "\\lceil" sum "\\rceil"
             | ("\\max" | "\\min") "(" sum ("," sum)* ")"
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NoReturn

from sympy import Expr

from symacct.errors import FormulaError
from symacct.expressions import parse, to_text
from symacct.formula_reader import caret
from symacct.symbols import GREEK

_MAX_LENGTH = 40_000
_MAX_DEPTH = 30
_BLANK = re.compile(r"(?:\\left|\\right)(?![A-Za-z])|\\\\|\\[,;!: ]|\\q?quad(?![A-Za-z])|[&\s]")
_TOKEN = re.compile(
    r"(?P<number>[0-9]+)|(?P<command>\\[A-Za-z]+|\\[^A-Za-z])|(?P<letter>[A-Za-z])|(?P<sign>.)", re.DOTALL
)
_WORD = re.compile(r"\{((?:[A-Za-z0-9]|\\_)+)\}")
_FENCES = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceiling")}
_CALLS = {r"\max": "Max", r"\min": "Min"}
_UPRIGHT = (r"\mathrm", r"\text", r"\mathit", r"\textrm", r"\operatorname")
_GREEK = tuple(f"\\{name}" for name in sorted(GREEK))
_BEGINS = (r"\frac", r"\tfrac", r"\dfrac", *_FENCES, *_CALLS, *_UPRIGHT, *_GREEK)


def read(
    text: str, names: Collection[str] | None = None, definitions: Mapping[str, Expr] | None = None
) -> Expr:
    r"""The expression that LaTeX means; `definitions` say what names such as N' stand for. Or FormulaError.

    >>> read(r"\frac{2\,B\,T^{2}\,d}{h} + d_{\mathrm{model}}")
    2*B*T**2*d/h + d_model
    """
    known = {name: f"({to_text(value)})" for name, value in (definitions or {}).items()}
    return parse(_Reader(text, known).whole(), names)


class _Reader:
    """Recursive descent over one text; each rule returns a text of the formula language."""

    __slots__ = ("at", "depth", "known", "text")

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        if len(text) > _MAX_LENGTH:
            raise FormulaError(f"a formula of {len(text):,} characters; at most {_MAX_LENGTH:,} are read")
        self.text, self.known = text, known
        self.at = self.depth = 0

    def whole(self) -> str:
        made = self.sum()
        if self.token() != ("end", ""):
            self.fail("expected an operator")
        return made

    def token(self) -> tuple[str, str]:
        """The kind and the text of the next token, which stays."""
        while blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()
        found = _TOKEN.match(self.text, self.at)
        return (str(found.lastgroup), found[0]) if found else ("end", "")

    def take(self, wanted: str) -> bool:
        """Whether the next token is this one, which is then passed."""
        if self.token()[1] != wanted:
            return False
        self.at += len(wanted)
        return True

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            self.fail(f"expected {wanted}")

    def sum(self) -> str:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"brackets nest deeper than {_MAX_DEPTH}")
        made = ("-" if self.take("-") else "") + self.product()
        while (sign := self.token()[1]) in ("+", "-"):
            self.at += 1
            made += sign + self.product()
        self.depth -= 1
        return made

    def product(self) -> str:
        made = self.factor()
        while True:
            kind, token = self.token()
            if token in (r"\cdot", r"\times", "*", "/"):
                self.at += len(token)
            elif not (kind in ("number", "letter") or token == "(" or token in _BEGINS):
                return made
            made += ("/" if token == "/" else "*") + self.factor()

    def factor(self) -> str:
        atom = self.atom()
        if not self.take("^"):
            return atom
        kind, token = self.token()
        if kind == "number":
            self.at += 1
            return f"{atom}**{token[0]}"
        return f"{atom}**({self.group()})"

    def group(self) -> str:
        self.expect("{")
        made = self.sum()
        self.expect("}")
        return made

    def atom(self) -> str:
        kind, token = self.token()
        begin = self.at
        self.at += len(token)
        if kind == "number":
            return token
        if token in (r"\frac", r"\tfrac", r"\dfrac"):
            return f"(({self.group()})/({self.group()}))"
        if token == "(":
            return self.bracket()
        if token in _FENCES:
            right, name = _FENCES[token]
            made = self.sum()
            self.expect(right)
            return f"{name}({made})"
        if token in _CALLS:
            return self.call(_CALLS[token])
        self.at = begin
        if kind != "letter" and token not in _UPRIGHT and token not in _GREEK:
            self.fail("expected a number, a name or a bracket")
        return self.name()

    def bracket(self) -> str:
        made = self.sum()
        if self.take(r"\bmod"):
            made = f"Mod({made},{self.sum()})"
        self.expect(")")
        return f"({made})"

    def call(self, name: str) -> str:
        self.expect("(")
        arguments = [self.sum()]
        while self.take(","):
            arguments.append(self.sum())
        self.expect(")")
        return f"{name}({','.join(arguments)})"

    def name(self) -> str:
        """A letter or an upright word, then its subscript and primes, as the name that they spell."""
        made = self.word()
        if self.take("_"):
            made += f"_{self.subscript()}"
        while self.take("'"):
            made += "'"
        return self.known.get(made, made)

    def word(self) -> str:
        kind, token = self.token()
        self.at += len(token)
        if kind in ("letter", "number"):
            return token
        if token in _GREEK:
            return token[1:]
        word = _WORD.match(self.text, self.at) if token in _UPRIGHT else None
        if word is None:
            self.fail("expected a name")
        self.at = word.end()
        return word[1].replace(r"\_", "_")

    def subscript(self) -> str:
        if not self.take("{"):
            return self.word()
        plain = re.compile(r"(?:[A-Za-z0-9]|\\_)+").match(self.text, self.at)
        if plain is None:
            made = self.word()
        else:
            made, self.at = plain[0].replace(r"\_", "_"), plain.end()
        self.expect("}")
        return made

    def fail(self, message: str) -> NoReturn:
        raise FormulaError(f"{message}\n{caret(self.text, self.at)}")
