"""LaTeX and typeset text as words and signs: `lexed`. It knows a fixed set of commands and expands nothing.

A word is a name (`d_{\\text{ff}}` is `d_ff`), a number or a sign; each keeps its place in the text.
`\\frac{a}{b}` becomes `((a)/(b))`.
"""

from __future__ import annotations

import re
from typing import NoReturn

from symacct.errors import FormulaError
from symacct.formula_reader import Token, caret
from symacct.symbols import GREEK, LETTERS

MAX_LENGTH = 10_000
_MAX_DEPTH = 32
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₐₑₕₖₗₘₙₒₚₛₜₓᵥ", "0123456789aehklmnopstxv")
_SIGNS = dict(zip("·×⋅∙∗−–÷∕⁄≈≃∼[]", "*****--///===()", strict=True))
_SPELLED = {
    "*": "cdot times ast",
    "/": "div",
    "=": "approx simeq sim equiv coloneqq triangleq",
    "(": "lbrack lbrace {",
    ")": "rbrack rbrace }",
}
_COMMANDS = {command: sign for sign, commands in _SPELLED.items() for command in commands.split()}
_IGNORED = set(
    "left right big Big bigl bigr Bigl Bigr displaystyle textstyle quad qquad limits nonumber notag "
    "thinspace , ; ! : \\ $ & [ ] ( )".split()
) | {" "}
_DROPPED = {"begin", "end", "label", "tag", "eqref"}  # with their argument
_GREEK = GREEK | {"varepsilon", "varphi"}
_FONTS = {
    "text",
    "mathrm",
    "mathit",
    "mathbf",
    "textrm",
    "textit",
    "texttt",
    "mathsf",
    "operatorname",
    "mathtt",
    "rm",
    "mathcal",
}
_STOPS = (".", ",", ";")
_CLOSINGS = 8  # closing signs that may stand behind an equation
_FRACTIONS = {"frac", "dfrac", "tfrac", "nicefrac"}
_BRACES = {"underbrace": "_", "overbrace": "^"}
_FUNCTIONS = {"max": "Max", "min": "Min"}
_BRACKETS = {"⌊": "floor", "⌈": "ceiling", "lfloor": "floor", "lceil": "ceiling"}
_WORD = re.compile(r"[A-Za-z]+")
_FLOAT = re.compile(r"\.[0-9]|[eE][+-]?[0-9]")
_CLOSING = re.compile(
    r"(?:\\[\])]|\$|\\(?:end|label|tag)\s*\{[^{}]*\}|\\(?:nonumber|notag)|\\\\|\\[,;!: ])\Z"
)
_PRIME = re.compile(r"[′']|\^\s*(?:\\prime(?![A-Za-z])|\{\s*(?:\\prime|['′])\s*\})")
_NUMBER_OF = re.compile(r"\\#\s*(?=[A-Za-z]{2}|\\[A-Za-z]+\s*\{\s*[A-Za-z]{2})")  # of a word: \# d may be any
_DIGITS = re.compile(r"[0-9]+(?:,[0-9]{3})*(?![0-9])|[0-9]+")


def lexed(text: str) -> list[Token]:
    """The tokens of a claim: kinds "number", "name", "sign" and "bad". Raises FormulaError with a caret."""
    if len(text) > MAX_LENGTH:
        raise FormulaError(
            f"a claim of {len(text):,} characters; at most {MAX_LENGTH:,} are read\n{caret(text, MAX_LENGTH)}"
        )
    return _equated(text, _Lexer(text).run(_end(text)))


def _equated(text: str, tokens: list[Token]) -> list[Token]:
    """Without `~`: LaTeX's space, or where nothing else is one, the sign between the sides."""
    waves = [at for _, word, at in tokens if word == "~"]
    if len(waves) > 1:
        waves = [at for at in waves if text[at - 1 : at].isspace() and text[at + 1 : at + 2].isspace()]
    sides = len(waves) == 1 and all(word != "=" for _, word, _ in tokens)
    kept = (("sign", "=", at) if sides and at == waves[0] else (kind, word, at) for kind, word, at in tokens)
    return [token for token in kept if token[1] != "~"]


def _end(text: str) -> int:
    """Where the equation ends: before the full stop of a sentence, which may stand before closing signs."""
    tail = text.rstrip()
    for _ in range(_CLOSINGS):
        closing = _CLOSING.search(tail)
        if closing is None:
            break
        tail = tail[: closing.start()].rstrip()
    return len(tail) - 1 if tail.endswith(_STOPS) else len(tail)


class _Lexer:
    __slots__ = ("at", "called", "depth", "out", "text")

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.called = text, 0, 0, False
        self.out: list[Token] = []

    def run(self, stop: int) -> list[Token]:
        while self.at < stop:
            self.one()
        return self.out

    def one(self) -> None:
        at, character = self.at, self.text[self.at]
        if character.isspace() or character in "$&":
            self.at += 1
        elif character == "~":
            self.emit("sign", "~", at)
            self.at += 1
        elif character in "0123456789":
            self.digits()
        elif character == "\\":
            self.command()
        elif character.isascii() and character.isalpha():
            self.name()
        elif character in LETTERS:
            self.at += 1
            self.subscripted(LETTERS[character], at)
        elif "⁰" <= character <= "⁹" or character in "²³¹":
            self.raised()
        elif character in "⌊⌈":
            self.emit("name", _BRACKETS[character], at)
            self.emit("sign", "(", at)
            self.at += 1
        elif character in "⌋⌉":
            self.emit("sign", ")", at)
            self.at += 1
        elif self.text.startswith("**", at):
            self.emit("sign", "**", at)
            self.at += 2
        elif self.text.startswith("{}", at):
            self.at += 2
        elif character in "{}":
            self.emit("sign", "(" if character == "{" else ")", at)
            self.at += 1
        else:
            sign = _SIGNS.get(character, character)
            self.emit("sign" if sign in "-+*/^(),=" else "bad", sign, at)
            self.at += 1

    def emit(self, kind: str, word: str, at: int) -> None:
        self.called |= word in ("Max", "Min", "Mod", "max", "min", "mod")
        self.out.append((kind, word, at))

    def digits(self) -> None:
        found = _DIGITS.match(self.text, self.at)
        assert found is not None
        whole = found[0].partition(",")[0] if self.called else found[0]  # Max(1,234) has two arguments
        if _FLOAT.match(self.text, self.at + len(whole)):
            self.fail("only exact numbers: write 3/2 for 1.5 and 10**9 for 1e9", self.at + len(whole))
        self.emit("number", whole.replace(",", ""), self.at)
        self.at += len(whole)

    def raised(self) -> None:
        at = self.at
        while self.at < len(self.text) and ("⁰" <= self.text[self.at] <= "⁹" or self.text[self.at] in "²³¹"):
            self.at += 1
        self.emit("sign", "**", at)
        self.emit("number", self.text[at : self.at].translate(_RAISED), at)

    def name(self) -> None:
        """Letters, digits after them, a subscript, and dotted parts such as `flops.step`."""
        at = self.at
        found = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z_]+)*").match(self.text, at)
        assert found is not None
        self.at = found.end()
        self.subscripted(found[0], at)

    def subscripted(self, word: str, at: int) -> None:
        word = self.primed(word)
        lowered = ""
        while (
            self.at < len(self.text)
            and (shifted := self.text[self.at].translate(_LOWERED)) != self.text[self.at]
        ):
            lowered, self.at = lowered + shifted, self.at + 1
        if lowered:
            word += "_" + lowered
        while self.at + 1 < len(self.text) and self.text[self.at] == "_":
            begin, self.at = self.at, self.at + 1
            tail = re.sub(r"[\s,\\]+", "_", self.group(begin).strip()).replace("-", "_").strip("_")
            if not re.fullmatch(r"[A-Za-z0-9_]+", tail):
                self.fail("a subscript is a word, as in d_ff or d_{\\text{ff}}", begin)
            word = self.primed(word + "_" + tail)
        self.emit("name", word, at)

    def primed(self, word: str) -> str:
        """The word with `_prime` behind it where a prime is written here: `N'`, `N^\\prime`."""
        found = _PRIME.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return word + "_prime" if found else word

    def group(self, begin: int) -> str:
        """The text of a subscript or of an argument: `{…}`, a command with one, or a word."""
        self.skip()
        if self.at >= len(self.text):
            self.fail("the claim ends too early", begin)
        if self.text[self.at] == "{":
            return self.plain(self.braced(begin))
        if self.text[self.at] == "\\":
            found = _WORD.match(self.text, self.at + 1)
            if found is None or found[0] not in _FONTS | {"ell"}:
                self.fail("a subscript is a word, as in d_ff or d_{\\text{ff}}", self.at)
            self.at = found.end()
            return "l" if found[0] == "ell" else self.group(begin)
        found = re.compile(r"[A-Za-z0-9]+").match(self.text, self.at)
        if found is None:
            self.fail("a subscript is a word, as in d_ff or d_{\\text{ff}}", self.at)
        self.at = found.end()
        return found[0]

    def plain(self, inside: str) -> str:
        """A subscript's text without fonts."""
        for _ in range(3):
            inside = re.sub(r"\\(?:" + "|".join(_FONTS) + r")\s*\{([^{}\\]*)\}", r"\1", inside)
            inside = re.sub(r"\\(?:" + "|".join(_FONTS) + r")\b\s*", "", inside)
        return inside.replace("{", "").replace("}", "").replace("\\_", "_").replace("\\ell", "l")

    def braced(self, begin: int) -> str:
        start, depth = self.at, 0
        while self.at < len(self.text):
            depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                return self.text[start + 1 : self.at - 1]
            if depth > _MAX_DEPTH:
                self.fail(f"braces nest deeper than {_MAX_DEPTH}", begin)
        return self.fail("this brace is not closed", start)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def command(self) -> None:
        at = self.at
        if (number_of := _NUMBER_OF.match(self.text, at)) is not None:
            self.at = number_of.end()
            return
        found = _WORD.match(self.text, at + 1)
        word = found[0] if found else self.text[at + 1 : at + 2]
        self.at = at + 1 + len(word)
        if word in _FRACTIONS:
            self.fraction(at)
        elif word in _BRACES:
            self.labelled(word, at)
        elif word in _FONTS:
            self.subscripted(re.sub(r"[^A-Za-z0-9._]+", "_", self.group(at)).strip("_") or "?", at)
        elif word in _FUNCTIONS:
            self.emit("name", _FUNCTIONS[word], at)
        elif word in ("lfloor", "lceil"):
            self.emit("name", _BRACKETS[word], at)
            self.emit("sign", "(", at)
        elif word in ("rfloor", "rceil"):
            self.emit("sign", ")", at)
        elif word == "ell":
            self.subscripted("l", at)
        elif word in _GREEK:
            self.subscripted(word.removeprefix("var"), at)
        elif word in _DROPPED:
            self.group(at)
        elif word in _COMMANDS:
            self.emit("sign", _COMMANDS[word], at)
        elif word not in _IGNORED:
            self.fail(
                f"unknown LaTeX command {chr(92) + word[:40]!r}; "
                "\\frac, \\cdot, \\left, \\text and the like are read",
                at,
            )

    def fraction(self, at: int) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"fractions nest deeper than {_MAX_DEPTH}", at)
        self.emit("sign", "(", at)
        for closing in ("/", ""):
            self.emit("sign", "(", at)
            self.argument(at)
            self.emit("sign", ")", at)
            if closing:
                self.emit("sign", closing, at)
        self.emit("sign", ")", at)
        self.depth -= 1

    def labelled(self, word: str, at: int) -> None:
        """What is written above a brace, `\\underbrace{2BTVd}_{\\text{head}}`, without the words below it."""
        self.skip()
        if self.text[self.at : self.at + 1] != "{":
            self.fail(f"\\{word} takes an argument in braces", at)
        self.emit("sign", "(", at)
        self.argument(at)
        self.emit("sign", ")", at)
        begin = self.at
        self.skip()
        if self.text[self.at : self.at + 1] != _BRACES[word]:
            self.at = begin
            return
        self.at += 1
        self.skip()
        if self.text[self.at : self.at + 1] == "{":
            self.braced(begin)
        else:
            self.group(begin)

    def argument(self, at: int) -> None:
        self.skip()
        if self.at >= len(self.text):
            self.fail("\\frac takes two arguments in braces", at)
        if self.text[self.at] != "{":
            self.one_digit_or_letter()
            return
        start = self.at
        self.braced(at)
        end, self.at = self.at, start + 1
        self.run(end - 1)
        self.at = end

    def one_digit_or_letter(self) -> None:
        """`\\frac12`: one character is an argument without braces."""
        character = self.text[self.at]
        if not (character.isascii() and character.isalnum()):
            self.fail("\\frac takes two arguments in braces", self.at)
        self.emit("number" if character.isdigit() else "name", character, self.at)
        self.at += 1

    def fail(self, message: str, at: int) -> NoReturn:
        raise FormulaError(f"{message}\n{caret(self.text, at)}")
