"""The best configs as JSON lines: reviewable text, one BEST per line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from gemmsweep.report.figures import Record
from gemmsweep.report.jsontext import text


def write(best: Iterable[Record], out: TextIO) -> None:
    """A line per BEST."""
    out.writelines(text(run) + "\n" for run in best)
