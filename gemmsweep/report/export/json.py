"""The best configs as one JSON document of the schema gemmsweep/best/1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from gemmsweep.report.figures import Record
from gemmsweep.report.jsontext import write_array

SCHEMA = "gemmsweep/best/1"


def write(best: Iterable[Record], out: TextIO) -> None:
    """One document, a BEST per line."""
    out.write(f'{{"schema": "{SCHEMA}",\n')
    write_array("best", best, out)
    out.write("}\n")
