"""The report on a terminal or in a pipe: plain text where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from gemmsweep.report.clocks import notes
from gemmsweep.report.figures import Record
from gemmsweep.report.grouping import by_sweep
from gemmsweep.report.tables import overview_table, runs_table, sweep_report

UNLIMITED = 1_000_000  # terminal cells: what was asked for by name reaches a pipe unshortened


def write(
    sweeps: Iterable[Record], runs: Iterable[Record], out: TextIO, columns: Sequence[str] | None, width: int
) -> None:
    """An overview where there are several sweeps, then each sweep that has runs; with columns, one table of runs."""
    from rich.console import Console

    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    if columns:
        whole = width if out.isatty() else UNLIMITED
        console.print(runs_table(runs, columns, whole), soft_wrap=True)
        return
    grouped = by_sweep(sweeps, runs)
    said = notes(grouped)
    parts = [sweep_report(s, group, width, said.get(s["sweep_id"], "")) for s, group in grouped if group]
    overview = (
        [overview_table((sweep for sweep, _ in grouped), width)] if len(grouped) != len(parts) or parts[1:] else []
    )
    for position, part in enumerate([*overview, *parts]):
        if position:
            console.print()
        console.print(part, soft_wrap=True)
