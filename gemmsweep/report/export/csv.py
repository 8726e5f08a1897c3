"""The best configs as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from gemmsweep.report.csvtext import write_csv
from gemmsweep.report.figures import Record


def write(best: Iterable[Record], out: TextIO) -> None:
    """A row per BEST, all columns."""
    write_csv(best, out, None)
