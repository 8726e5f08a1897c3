"""RUN and BEST as CSV: a row each, columns named by dotted paths, empty where nothing was measured."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from gemmsweep.report.figures import Record, clean
from gemmsweep.report.flat import all_columns, check_columns, compose, flatten


def write_csv(runs: Iterable[Record], out: TextIO, columns: Sequence[str] | None) -> None:
    """All columns, or those named. The rows wait in a temporary file, because only the last run completes the header.

    Raises UsageError, before anything is written, for a column that no run has.
    """
    seen: dict[str, None] = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as waiting:
        for run in runs:
            flat = compose(run) if columns else flatten(run)
            seen.update(dict.fromkeys(flat))
            waiting.write(json.dumps(flat) + "\n")
        if columns:
            check_columns(columns, seen)
        header = columns or all_columns(seen)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        waiting.seek(0)
        for line in waiting:
            flat = json.loads(line)
            writer.writerow([_cell(flat.get(column)) for column in header])


def _cell(value: Any) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is not None and math.isfinite(value) else ""
