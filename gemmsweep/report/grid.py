"""A grid of text that fits a width: columns shrink with an ellipsis, or wrap; a row may end in a note across its columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GAP = "  "
NARROWEST = 4
NOTE_LINES = 3
NARROWEST_PROSE = 24  # of a last column that wraps; with less room it goes below each row


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False  # numbers; they are never shortened while a left-justified column can be
    wraps: bool = False  # nothing of it is left out: it gives way first, over several lines


@dataclass(frozen=True, slots=True)
class Row:
    """Cells from the left, one `style` (rich's names) for all; `note` fills the columns that have no cell."""

    cells: Sequence[str]
    style: str = ""
    note: str = ""


def draw(columns: Sequence[Column], rows: Sequence[Row], width: int) -> Text:
    """The grid as text of at most `width` terminal cells per line; without styles it reads the same."""
    from rich.text import Text

    below = columns[-1].wraps and _is_too_narrow(columns, rows, width)
    shown = columns[:-1] if below else columns
    widths = _fit(shown, rows, width)
    total = sum(widths) + len(GAP) * (len(widths) - 1)
    lines = [Text(line, style="bold") for line in _block([c.title for c in shown], shown, widths)]
    lines.append(Text("─" * total, style="dim"))
    for row in rows:
        text = _block(row.cells[: len(shown)], shown, widths)
        if row.note:
            at = sum(widths[: len(row.cells)]) + len(GAP) * len(row.cells)
            first, *rest = wrapped(row.note, max(width - at, NARROWEST), NOTE_LINES)
            text = [_fixed(text[0], at) + first, *_beside(text[1:], at, rest)]
        if below and len(row.cells) == len(columns):
            text += [GAP + line for line in wrapped(row.cells[-1], width - len(GAP))]
        lines += [Text(line.rstrip(), style=row.style) for line in text]
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def _block(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The lines of one row: as many as the cell that wraps into the most."""
    parts = [
        wrapped(cell, width) if column.wraps else [cell]
        for cell, column, width in zip(cells, columns, widths, strict=False)
    ]
    return [_line(line, columns, widths) for line in zip_longest(*parts, fillvalue="")] or [""]


def _beside(lines: Sequence[str], at: int, note: Sequence[str]) -> list[str]:
    """Further lines of a row and of its note, which begins at `at`."""
    return [_fixed(line, at) + more for line, more in zip_longest(lines, note, fillvalue="")]


def wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """`text` in lines of `width` terminal cells, at least one; beyond `most` lines an ellipsis stands for the rest."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False, max_lines=most, placeholder=" …")
    return [shorten(line, width) for line in lines] or [""]


def shorten(text: str, width: int) -> str:
    """`text` cut to `width` terminal cells, ending in an ellipsis where it was longer."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _fixed(text: str, width: int) -> str:
    from rich.cells import set_cell_size

    return set_cell_size(text, width)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=False):
        text = shorten(cell, width)
        padding = " " * (width - cell_len(text))
        parts.append(padding + text if column.right else text + padding)
    return GAP.join(parts).rstrip()


def _natural(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    from rich.cells import cell_len

    return [
        max(cell_len(text) for text in (column.title, *(row.cells[i] for row in rows if i < len(row.cells))))
        for i, column in enumerate(columns)
    ]


def _least(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """What each column needs where room is short: of one that wraps, room for its longest word."""
    found = []
    for i, (column, natural) in enumerate(zip(columns, _natural(columns, rows), strict=True)):
        cells = [row.cells[i] for row in rows if i < len(row.cells)]
        words = [len(word) for text in (column.title, *cells) for word in text.split()]
        found.append(min(max(words, default=0), NARROWEST_PROSE) if column.wraps else natural)
    return found


def _is_too_narrow(columns: Sequence[Column], rows: Sequence[Row], width: int) -> bool:
    """Whether the other columns leave the last one no room to wrap in."""
    others = _least(columns[:-1], rows)
    (last,) = _natural(columns[-1:], [Row(row.cells[len(others) :]) for row in rows])
    return width - sum(others) - len(GAP) * len(others) < min(last, NARROWEST_PROSE)


def _fit(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    """Natural widths; what wraps gives way first, then the widest left-justified column, then the widest of all."""
    widths, least = _natural(columns, rows), _least(columns, rows)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    wrapping = [i for i, column in enumerate(columns) if column.wraps]
    left = [i for i, column in enumerate(columns) if not column.wraps and not column.right]
    right = [i for i, column in enumerate(columns) if not column.wraps and column.right]
    for group, floor in ((wrapping, least), (left, [NARROWEST] * len(widths)), (right, [NARROWEST] * len(widths))):
        while excess > 0 and (candidates := [i for i in group if widths[i] > floor[i]]):
            widths[max(candidates, key=lambda i: widths[i])] -= 1
            excess -= 1
    return widths


def plain(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The grid as a Markdown table; a note goes into the last column, where there is always room for one."""
    lines = [[column.title for column in columns], ["---:" if column.right else "---" for column in columns]]
    for row in rows:
        cells = [*row.cells, *[""] * (len(columns) - len(row.cells))]
        if row.note:
            cells[-1] = row.note
        lines.append([f"**{markdown(cell)}**" if cell and "bold" in row.style else markdown(cell) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(text: str) -> str:
    """`text` as Markdown shows it literally: no character of a name opens a cell, a tag, a link or emphasis."""
    return "".join(f"\\{character}" if character in "\\`*_[]<>|" else character for character in text)
