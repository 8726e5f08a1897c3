"""Tables for the terminal, as rich renderables that say the same without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from gemmsweep.report import against, figures, verdicts, words
from gemmsweep.report.columns import Measure, legend, sweep_grid
from gemmsweep.report.figures import ABSENT, Record, clean
from gemmsweep.report.flat import check_columns, compose
from gemmsweep.report.grid import Column, Row, draw
from gemmsweep.report.steps import step_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text


def sweep_table(sweep: Record, runs: Sequence[Record], width: int) -> Text:
    """The values of one axis as rows, in the order of `runs`; wider terminals show more columns."""
    return draw(*sweep_grid(sweep, runs, width), width)


def sweep_report(sweep: Record, runs: Sequence[Record], width: int, note: str = "") -> Group:
    """One sweep as a person reads it: heading, table, legend, steps, verdict, what was held, run ids, the line that repeats it.

    `note` is what `clocks` has to say of it.
    """
    from rich.console import Group
    from rich.text import Text

    def paragraph(text: str, style: str) -> list[Text]:
        return [Text(line, style=style) for line in textwrap.wrap(text, width, break_on_hyphens=False)]

    return Group(
        *paragraph(words.heading(sweep, runs), "bold"),
        sweep_table(sweep, runs, width),
        *paragraph(legend(sweep, runs), "dim"),
        *(line for step in step_lines(sweep, runs) for line in paragraph(step, "")),
        *paragraph(verdicts.conclusion(sweep, runs), "bold"),
        *paragraph(words.rivals_line(sweep, runs), ""),
        *paragraph(note, ""),
        *paragraph(words.held_line(sweep, runs), ""),
        *paragraph(words.ids_line(sweep, runs), ""),
        *([Text(words.reproduce_line(runs[0], sweep), no_wrap=True, overflow="ignore")] if runs else []),
    )


def overview_table(sweeps: Iterable[Record], width: int) -> Text:
    """One row per sweep: when, what, and what came out."""
    listed = list(sweeps)
    columns = [Column("date"), Column("sweep"), Column("varied"), Column("verdict"), Column("rounds", right=True)]
    optional = [(Column("template"), "template"), (Column("problem"), "problem"), (Column("experiment"), "experiment")]
    shown = [(column, key) for column, key in optional if any(sweep.get(key) for sweep in listed)]
    rows = [
        Row(
            [
                figures.minute(sweep["started_at"]),
                figures.short_id(sweep["sweep_id"]),
                clean(sweep.get("varied")) or ABSENT,
                (words.verdict_word(sweep) or _no_verdict(sweep)) + (", contended" if sweep.get("contended") else ""),
                figures.whole(sweep.get("rounds")),
                *(_named(sweep.get(key)) for _, key in shown),
            ]
        )
        for sweep in listed
    ]
    return draw([*columns, *(column for column, _ in shown)], rows, width)


def _no_verdict(sweep: Record) -> str:
    if sweep.get("kind") == "verify":
        return "checked only"
    if sweep.get("contended") is None:  # told when a sweep is finished
        return "unfinished"
    return "nothing wins" if sweep.get("rounds") else "nothing raced"


def _named(value: object) -> str:
    return (words.problem_text(value) if isinstance(value, dict) else clean(value)) or ABSENT


def runs_grid(runs: Iterable[Record], columns: Sequence[str]) -> tuple[list[Column], list[Row]]:
    """The runs with the columns asked for by dotted path. Raises UsageError, naming the choices, for an unknown one."""
    seen: dict[str, None] = {}
    picked = []
    for run in runs:
        flat = compose(run)
        seen.update(dict.fromkeys(flat))
        picked.append([_shown(column, flat.get(column)) for column in columns])
    check_columns(columns, seen)
    numeric = [all(number for number, _ in cells) for cells in zip(*picked, strict=True)] or [False] * len(columns)
    heads = [Column(name, right=number) for name, number in zip(columns, numeric, strict=True)]
    return heads, [Row([text for _, text in row]) for row in picked]


def _shown(column: str, value: object) -> tuple[bool, str]:
    """Whether a cell may stand among numbers, and its text."""
    if value is None:
        return True, ABSENT
    if isinstance(value, bool):
        return False, "yes" if value else "no"
    if isinstance(value, float):
        return True, figures.significant(value)
    if column in ("run_id", "sweep_id"):
        return False, figures.short_id(str(value))
    return isinstance(value, int), clean(value)


def runs_table(runs: Iterable[Record], columns: Sequence[str], width: int) -> Text:
    """`runs_grid` for a terminal of `width`."""
    return draw(*runs_grid(runs, columns), width)


BEST: tuple[Measure, ...] = (
    (0, Column("problem", wraps=True), lambda run: words.problem_text(run["problem"])),
    (0, Column("family"), lambda run: clean(run["template"])),
    (0, Column("µs", right=True), lambda run: figures.significant(run.get("median_us"))),
    (0, Column("against vendor", wraps=True), lambda run: against.vendor_phrases(run) or ABSENT),
    (0, Column("TFLOP/s", right=True), lambda run: figures.short(run.get("tflops"))),
    (100, Column("among finalists"), lambda run: words.decision_text(run, margin=True)),
    (140, Column("date"), lambda run: figures.day(run.get("started_at"))),
    (120, Column("run"), lambda run: figures.short_id(run["run_id"])),
    (160, Column("config", wraps=True), lambda run: words.config_text(run.get("config"))),
)


def best_grid(best: Sequence[Record], width: int) -> tuple[list[Column], list[Row]]:
    """The best config per problem, its family named; columns that belong on a terminal of `width`."""
    shown = [(column, cell) for least, column, cell in BEST if width >= least]
    rows = [Row([cell(run) for _, cell in shown]) for run in best]
    return [column for column, _ in shown], rows


def by_device(best: Iterable[Record]) -> list[tuple[str, list[Record]]]:
    """Results grouped by the device they were measured on, in words: they never stand in one ranking."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for run in best:
        groups.setdefault(words.machine(run["device"]), []).append(run)
    return [(device, group) for (device, _), group in groups.items()]


def print_best(best: Iterable[Record], out: TextIO, width: int | None = None) -> None:
    """`best_table` on `out`, as wide as its terminal (80 in a pipe) unless `width` is given."""
    from rich.console import Console

    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    console.print(best_table(best, console.width), soft_wrap=True)


def best_table(best: Iterable[Record], width: int) -> Group:
    """The best verified config of each problem, a table per device."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Text] = []
    for device, group in by_device(best):
        parts += [Text(device, style="bold"), draw(*best_grid(group, width), width)]
    if told := left_out(width):
        parts.append(Text(textwrap.fill(told, width), style="dim"))
    return Group(*parts)


def left_out(width: int) -> str:
    """Which columns of the best a terminal has no room for; "" where it has them all."""
    missing = [column.title for least, column, _ in BEST if width < least]
    widest = max(least for least, _, _ in BEST)
    return f"Left out at this width: {', '.join(missing)} (COLUMNS={widest} shows all)." if missing else ""
