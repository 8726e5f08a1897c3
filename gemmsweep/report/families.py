"""Who is fastest over M x (N, K), a template family or the vendor library, and between which M that changes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TextIO

from gemmsweep.model import Problem
from gemmsweep.references import winner
from gemmsweep.report import against, words
from gemmsweep.report.figures import ABSENT, Record, clean, times
from gemmsweep.report.grid import Column, Row, draw, markdown, plain

FORMATS = ("table", "md")
UNCERTAIN = "≈"


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem: the best family or `vendor`, and that family's speed against the vendor library."""

    winner: str
    ratio: float | None
    certain: bool = True  # that nobody is faster

    @property
    def text(self) -> str:
        ratio = "" if self.ratio is None else times(self.ratio)
        return f"{self.winner} {'' if self.certain else UNCERTAIN}{ratio}".rstrip()


@dataclass(frozen=True, slots=True)
class Chart:
    """Problems of one dtype, layout and epilogue on one device: M down, (N, K) across."""

    title: str
    columns: tuple[tuple[int, int], ...]
    cells: Mapping[tuple[int, int, int], Cell]  # by m, n, k
    lone: tuple[tuple[int, int, int], ...] = ()  # problems whose (N, K) has no other M

    @property
    def sizes_m(self) -> list[int]:
        return sorted({m for m, _, _ in self.cells})


def write(name: str, charts: Sequence[Chart], out: TextIO, width: int) -> None:
    """The charts in one of FORMATS, an empty line between them."""
    parts = [section(chart) if name == "md" else text(chart, width) for chart in charts]
    out.write("\n".join(parts))


def charts(best: Iterable[Record]) -> list[Chart]:
    """A chart per device, dtype, layout and epilogue, of each (N, K) with at least two M: elsewhere there is nothing to cross.

    Only of products with tight rows and beta 0: the others are problems of their own, and have no place in the grid.
    """
    groups: dict[tuple[tuple[str, str], str], dict[tuple[int, int, int], Cell]] = {}
    for run in best:
        problem = run["problem"]
        tight = Problem.of(problem["m"], problem["n"], problem["k"], layout=problem["layout"]).tight
        if any(problem[name] != least for name, least in tight.items()) or problem["beta"]:
            continue
        what = [clean(problem["dtype"]), words.layout_words(problem["layout"])]
        what += [clean(problem["epilogue"])] if (problem.get("epilogue") or "none") != "none" else []
        group = groups.setdefault((words.machine(run["device"]), ", ".join(what)), {})
        group[problem["m"], problem["n"], problem["k"]] = cell_of(run)
    found = []
    for ((device, _), title), cells in groups.items():
        several = Counter((n, k) for _, n, k in cells)
        columns = tuple(sorted(column for column, sizes in several.items() if sizes > 1))
        if columns:
            shown = {size: cell for size, cell in cells.items() if size[1:] in columns}
            found.append(Chart(f"{device}: {title}", columns, shown, tuple(sorted(cells.keys() - shown.keys()))))
    return found


def cell_of(run: Record) -> Cell:
    """What to take, and whether that is certain."""
    taken = winner(clean(run["template"]), run.get("references") or {})
    return Cell(taken, against.hardest_reference(run)[1].get("ratio"), against.fastest(run) == taken)


def crossovers(chart: Chart) -> list[str]:
    """`N=4096 K=4096: gemv → skinny between M=4 and 8, skinny → wgmma between M=64 and 128`: a line per (N, K)."""
    return [f"N={n} K={k}: {changes(chart, n, k)}" for n, k in chart.columns]


def changes(chart: Chart, n: int, k: int) -> str:
    """Along M of one (N, K), between cells that are certain: one that is not may be anybody's."""
    cells = [(m, chart.cells[m, n, k]) for m in chart.sizes_m if (m, n, k) in chart.cells]
    certain = [(m, cell.winner) for m, cell in cells if cell.certain]
    spans = [(name, [m for m, _ in group]) for name, group in groupby(certain, key=lambda pair: pair[1])]
    if not spans:
        return "nobody is certainly the fastest"
    if len(spans) == 1:
        return f"{spans[0][0]} {'throughout' if len(certain) == len(cells) else 'wherever it is certain'}"
    return ", ".join(
        f"{before} → {after} between M={low[-1]} and {high[0]}" for (before, low), (after, high) in pairwise(spans)
    )


def left_out(chart: Chart) -> list[str]:
    """A line on the problems that have no place in a chart, if there are some."""
    sizes = ", ".join(f"{m}x{n}x{k}" for m, n, k in chart.lone)
    return [f"Not charted, with one M for their N and K (gemmsweep export-best has them): {sizes}"] if sizes else []


def grid(chart: Chart) -> tuple[list[Column], list[Row]]:
    """M down, (N, K) across; each cell the winner and the best family's × vendor."""
    columns = [Column("M", right=True), *(Column(f"N={n} K={k}") for n, k in chart.columns)]
    rows = []
    for m in chart.sizes_m:
        found = [chart.cells.get((m, n, k)) for n, k in chart.columns]
        rows.append(Row([str(m), *(ABSENT if cell is None else cell.text for cell in found)]))
    return columns, rows


def heading(chart: Chart) -> str:
    marked = any(not cell.certain for cell in chart.cells.values())
    legend = f" ({UNCERTAIN}: not told apart from it, or unstable: no change is told there)" if marked else ""
    return f"Who is fastest, and the best family's × vendor{legend}. {chart.title}"


def text(chart: Chart, width: int) -> str:
    """For a terminal; as many (N, K) side by side as its width holds, further ones below."""
    parts = [textwrap.fill(heading(chart), width), *(str(draw(*piece, width)) for piece in pieces(chart, width))]
    parts += [textwrap.fill(line, width, subsequent_indent="  ") for line in crossovers(chart) + left_out(chart)]
    return "\n".join(parts) + "\n"


def pieces(chart: Chart, width: int) -> list[tuple[list[Column], list[Row]]]:
    """The grid cut into grids whose cells need not be shortened."""
    columns, rows = grid(chart)
    widths = [max(len(c.title), *(len(row.cells[i]) for row in rows)) + 2 for i, c in enumerate(columns)]
    chosen: list[list[int]] = [[]]
    used = widths[0]
    for i in range(1, len(columns)):
        if chosen[-1] and used + widths[i] > width:
            chosen.append([])
            used = widths[0]
        chosen[-1].append(i)
        used += widths[i]
    return [([columns[0], *(columns[i] for i in few)], _with_cells(rows, few)) for few in chosen]


def _with_cells(rows: Sequence[Row], few: Sequence[int]) -> list[Row]:
    """The rows with some of their cells only, as far as one of these says anything."""
    return [
        Row([row.cells[0], *(row.cells[i] for i in few)]) for row in rows if any(row.cells[i] != ABSENT for i in few)
    ]


def section(chart: Chart) -> str:
    """The same in Markdown."""
    lines: Sequence[str] = crossovers(chart) + left_out(chart)
    listed = "".join(f"- {markdown(line)}\n" for line in lines)
    return f"### {markdown(heading(chart))}\n\n{plain(*grid(chart))}" + (f"\n{listed}" if listed else "")
