"""The report as Markdown: what one pastes into a chat, an issue or a review."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from gemmsweep.report import verdicts, words
from gemmsweep.report.clocks import notes
from gemmsweep.report.columns import legend, sweep_grid
from gemmsweep.report.figures import Record, clean
from gemmsweep.report.grid import markdown, plain
from gemmsweep.report.grouping import by_sweep
from gemmsweep.report.steps import step_lines
from gemmsweep.report.tables import runs_grid

ALL_COLUMNS = 160  # a Markdown table scrolls sideways: show what the widest terminal shows


def write(
    sweeps: Iterable[Record], runs: Iterable[Record], out: TextIO, columns: Sequence[str] | None, width: int
) -> None:
    """A section per sweep that has runs; with columns, one table of runs."""
    if columns:
        out.write(plain(*runs_grid(runs, columns)))
        return
    grouped = by_sweep(sweeps, runs)
    said = notes(grouped)
    sections = (_section(s, group, said.get(s["sweep_id"], "")) for s, group in grouped if group)
    out.writelines(("\n" if position else "") + section for position, section in enumerate(sections))


def _section(sweep: Record, runs: Sequence[Record], note: str) -> str:
    title = _code(clean(sweep.get("command"))) or markdown(words.heading(sweep, runs).partition(":")[0])
    marks, steps = legend(sweep, runs), step_lines(sweep, runs)
    parts = [
        f"### {title}",
        markdown(words.heading(sweep, runs)),
        plain(*sweep_grid(sweep, runs, ALL_COLUMNS)).rstrip(),
        *([markdown(marks)] if marks else []),
        *(["\n".join(f"- {markdown(step)}" for step in steps)] if steps else []),
        f"**{markdown(verdicts.conclusion(sweep, runs))}**",
        *([markdown(rivals)] if (rivals := words.rivals_line(sweep, runs)) else []),
        *([markdown(note)] if note else []),
        *([markdown(held)] if (held := words.held_line(sweep, runs)) else []),
        markdown(words.ids_line(sweep, runs)),
        _code(words.reproduce_line(runs[0], sweep)),
    ]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`" if text else ""
