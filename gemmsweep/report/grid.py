"""A grid of text that fits a width: columns shrink with an ellipsis, and a row may end in a note across its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GAP = "  "
NARROWEST = 4


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False  # numbers; they are never shortened while a left-justified column can be


@dataclass(frozen=True, slots=True)
class Row:
    """Cells from the left, one `style` (rich's names) for all; `note` fills the columns that have no cell."""

    cells: Sequence[str]
    style: str = ""
    note: str = ""


def draw(columns: Sequence[Column], rows: Sequence[Row], width: int) -> Text:
    """The grid as text of at most `width` terminal cells per line; without styles it reads the same."""
    from rich.text import Text

    widths = _fit(columns, rows, width)
    total = sum(widths) + len(GAP) * (len(widths) - 1)
    lines = [Text(_line([c.title for c in columns], columns, widths), style="bold"), Text("─" * total, style="dim")]
    for row in rows:
        text = _line(row.cells, columns, widths)
        if row.note:
            offset = sum(widths[: len(row.cells)]) + len(GAP) * len(row.cells)
            text = _fixed(text, offset) + shorten(row.note, max(width - offset, NARROWEST))
        lines.append(Text(text.rstrip(), style=row.style))
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


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


def _fit(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    """Natural widths, then the widest left-justified column (the widest of all, if none is left) gives way."""
    from rich.cells import cell_len

    widths = [
        max(cell_len(text) for text in (column.title, *(row.cells[i] for row in rows if i < len(row.cells))))
        for i, column in enumerate(columns)
    ]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for right in (False, True):
        while excess > 0:
            candidates = [i for i, column in enumerate(columns) if column.right == right and widths[i] > NARROWEST]
            if not candidates:
                break
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
