"""The report's runs as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from gemmsweep.report.csvtext import write_csv
from gemmsweep.report.figures import Record


def write(
    sweeps: Iterable[Record], runs: Iterable[Record], out: TextIO, columns: Sequence[str] | None, width: int
) -> None:
    """A row per run, with all columns or those named."""
    write_csv(runs, out, columns)
