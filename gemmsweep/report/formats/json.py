"""The report as one JSON document of the schema gemmsweep/report/1, written as the rows arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from gemmsweep.errors import UsageError
from gemmsweep.report.figures import Record
from gemmsweep.report.jsontext import write_array

SCHEMA = "gemmsweep/report/1"


def write(
    sweeps: Iterable[Record], runs: Iterable[Record], out: TextIO, columns: Sequence[str] | None, width: int
) -> None:
    """Every key of every sweep and run. Raises UsageError where columns were asked for."""
    if columns:
        raise UsageError("JSON always carries every key. For chosen columns use the format csv, md or table.")
    out.write(f'{{"schema": "{SCHEMA}",\n')
    write_array("sweeps", sweeps, out)
    out.write(",\n")
    write_array("runs", runs, out)
    out.write("}\n")
