"""Any text as LaTeX that prints it, in ASCII: `escaped`, and `code` for names in typewriter type."""

from __future__ import annotations

import re
import unicodedata

_TEXT = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"\textasciigrave{}",
    "…": r"\ldots{}",
    "–": "{--}",
    "—": "{---}",
    "’": "{'}",
    "“": "{``}",
    "”": "{''}",
}
_MATH = {
    "·": r"\cdot",
    "×": r"\times",
    "÷": r"\div",
    "±": r"\pm",
    "−": "-",
    "²": "^{2}",
    "³": "^{3}",
    "⁴": "^{4}",
    "ᵀ": r"^{\mathsf{T}}",
    "′": r"^{\prime}",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "⌈": r"\lceil",
    "⌉": r"\rceil",
    "≤": r"\le",
    "≥": r"\ge",
    "≠": r"\ne",
    "≈": r"\approx",
    "∈": r"\in",
    "∑": r"\sum",
    "√": r"\surd",
    "→": r"\to",
    "←": r"\leftarrow",
    "∞": r"\infty",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030c": "v ",
    "\u0327": "c ",
}
_GREEK = re.compile(
    "GREEK (SMALL|CAPITAL) LETTER (GAMMA|DELTA|THETA|LAMDA|XI|PI|SIGMA|UPSILON|PHI|PSI|OMEGA"
    "|ALPHA|BETA|EPSILON|ZETA|ETA|IOTA|KAPPA|MU|NU|RHO|TAU|CHI)"
)
_LATIN_CAPITALS = {
    "ALPHA",
    "BETA",
    "EPSILON",
    "ZETA",
    "ETA",
    "IOTA",
    "KAPPA",
    "MU",
    "NU",
    "RHO",
    "TAU",
    "CHI",
}
_LIGATURES = "-',"


def escaped(text: str) -> str:
    """The text for paragraphs and cells, in one line; a character that LaTeX has no sign for as [U+4E2D]."""
    made: list[str] = []
    for character in unicodedata.normalize("NFD", text):
        if (
            character in _ACCENTS
            and made
            and made[-1].isascii()
            and made[-1].isalpha()
            and len(made[-1]) == 1
        ):
            made[-1] = f"{{\\{_ACCENTS[character]}{_dotless(made[-1])}}}"
        elif character in _LIGATURES and made and made[-1] == character:
            made += ["{}", character]
        else:
            made.append(_sign(character))
    return "".join(made)


def code(text: str) -> str:
    """A name or a path in typewriter type that may break after a dot, a slash or an underscore."""
    broken = re.sub(
        r"[./:](?=[A-Za-z0-9*\\])|(?<=[A-Za-z0-9])\\_(?=.)",
        lambda m: f"{m[0]}\\allowbreak{{}}",
        escaped(text),
    )
    return rf"\texttt{{{broken}}}"


def _sign(character: str) -> str:
    if character in _TEXT:
        return _TEXT[character]
    if character in _MATH:
        return rf"\ensuremath{{{_MATH[character]}}}"
    if " " <= character <= "~":
        return character
    if character.isspace() or unicodedata.category(character) == "Cc":
        return " "
    greek = _GREEK.fullmatch(unicodedata.name(character, ""))
    if greek and not (greek[1] == "CAPITAL" and greek[2] in _LATIN_CAPITALS):
        word = "Lambda" if greek[2] == "LAMDA" else greek[2].capitalize()
        return rf"\ensuremath{{\{word if greek[1] == 'CAPITAL' else word.lower()}}}"
    return f"[U+{ord(character):04X}]"


def _dotless(letter: str) -> str:
    return {"i": r"\i{}", "j": r"\j{}"}.get(letter, letter)
