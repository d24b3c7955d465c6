"""Tables, as records and then as text for a terminal or as markdown. rich is imported to write text."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from symacct.report.wrapping import wrapped

_PIPED = 120


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and whether it holds names (`left`), numbers (`right`), `formula`s or `text`."""

    heading: str
    kind: str = "left"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts. Formulas are broken before a sign, running text between words, the rest never."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def used(self) -> Grid:
        """Without the columns in which every cell is empty."""
        kept = [at for at in range(len(self.columns)) if any(row[at] for row in self.rows)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return Grid(tuple(self.columns[at] for at in kept), rows, self.title)


def markdown(grid: Grid) -> str:
    """The grid as a markdown table."""
    grid = grid.used()
    marks = {"right": "---:"}
    lines = [
        _bar(column.heading for column in grid.columns),
        _bar(marks.get(column.kind, "---") for column in grid.columns),
        *(_bar(map(_escaped, row)) for row in grid.rows if any(row)),
    ]
    return "\n".join(([f"**{grid.title}**", ""] if grid.title else []) + lines)


def _bar(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(cell: str) -> str:
    for character in "\\|*_":
        cell = cell.replace(character, "\\" + character)
    return cell.replace("\n", " ")


class Page:
    """A text in the making: as wide as its stream, coloured only if that is a terminal that wants colours.

    Nothing reaches the stream before the `with` block ends well: no half of an answer stands before an error.
    """

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        from rich.console import Console

        self._stream = stream or sys.stdout
        self._text = io.StringIO()
        self.width = max(width or _width(self._stream), 20)
        self._console = Console(
            file=self._text,
            width=self.width,
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=self._stream.isatty(),
            legacy_windows=False,
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._stream.write(self._text.getvalue())

    def line(self, text: str = "", style: str = "") -> None:
        """A paragraph, broken between words."""
        from rich.text import Text

        for line in textwrap.wrap(text, self.width, break_on_hyphens=False, drop_whitespace=False) or [""]:
            self._console.print(Text(line.rstrip(), style=style), soft_wrap=True)

    def hanging(self, label: str, parts: Sequence[str], indent: int, joint: str = "") -> None:
        """Parts one after the other behind a label, broken between parts, later lines indented."""
        if self.width < 3 * indent:
            self.line(label)
            label, indent = "", 2
        lines = [""]
        for at, part in enumerate(parts):
            piece = part + (joint if at + 1 < len(parts) else "")
            if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > self.width - indent:
                lines.append("")
            lines[-1] += piece
        broken = [
            short for line in lines for short in textwrap.wrap(line.rstrip(" " + joint), self.width - indent)
        ]
        for at, text in enumerate(broken):
            self.line(f"{label if not at else '':<{indent}}{text}")

    def grid(self, grid: Grid, heading: bool = True) -> None:
        """A table. Where its formulas would get no room, each row becomes a few lines."""
        grid = grid.used()
        if grid.rows and self.width < _narrowest(grid):
            self._stacked(grid)
        elif grid.rows:
            self._table(grid, heading)

    def _table(self, grid: Grid, heading: bool) -> None:
        from rich.table import Table

        table = Table(
            box=None,
            show_header=heading,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            collapse_padding=True,
            header_style="bold",
            title=grid.title or None,
            title_justify="left",
            title_style="bold",
        )
        for column in grid.columns:
            table.add_column(
                column.heading,
                justify="right" if column.kind == "right" else "left",
                no_wrap=column.kind not in ("formula", "text"),
                style="cyan" if column.kind == "formula" else "",
            )
        for row in grid.rows:
            table.add_row(
                *(
                    _Formula(cell) if c.kind == "formula" else cell
                    for c, cell in zip(grid.columns, row, strict=True)
                )
            )
        with self._console.capture() as capture:
            self._console.print(table)
        self._text.write("\n".join(line.rstrip() for line in capture.get().split("\n")))

    def _stacked(self, grid: Grid) -> None:
        for row in grid.rows:
            filled = [(column, cell) for column, cell in zip(grid.columns, row, strict=True) if cell]
            if row[0] or not filled:
                self.line("  ".join(cell for column, cell in filled if column.kind == "left"))
            for cell in (cell for column, cell in filled if column.kind == "formula"):
                for text in _broken(cell, self.width - 2):
                    self.line(f"  {text}", "cyan")
            for cell in (cell for column, cell in filled if column.kind == "text"):
                self.hanging("", [cell], 2)
            tails = [
                f"×{cell}" if column.heading == "×" else cell
                for column, cell in filled
                if column.kind == "right"
            ]
            if tails:
                self.line("  " + "  ".join(tails))


class _Formula:
    """A cell that breaks a formula between its terms, as wide as it is allowed to be."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        for line in _broken(self.text, options.max_width):
            yield Text(line, no_wrap=True)

    def __rich_measure__(self, console: Any, options: Any) -> Any:
        from rich.measure import Measurement

        widest = max(map(len, self.text.split("\n")))
        return Measurement(min(widest, 16), min(widest, options.max_width))


def _broken(text: str, width: int) -> Iterator[str]:
    """The lines of a formula's cell, between its terms where that is enough, else between words."""
    for line in text.split("\n"):
        for part in wrapped(line, width):
            yield from (
                textwrap.wrap(part, width, subsequent_indent="  ", break_on_hyphens=False)
                if len(part) > width
                else [part]
            )


def _narrowest(grid: Grid) -> int:
    """The width below which a table of this kind has no room for its formulas."""
    total = 0
    for at, column in enumerate(grid.columns):
        cells = [len(row[at]) for row in grid.rows] + [len(column.heading)]
        total += min(max(cells), 30) + 2 if column.kind in ("formula", "text") else max(cells) + 2
    return total


def _width(stream: TextIO) -> int:
    if os.environ.get("COLUMNS", "").isdigit() or stream.isatty():
        return shutil.get_terminal_size((_PIPED, 24)).columns
    return _PIPED
