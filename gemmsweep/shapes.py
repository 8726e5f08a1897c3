"""Shape lists: which problems a command is about."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from gemmsweep.errors import GemmsweepError, ProblemError
from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape

COLUMNS = ("m", "n", "k", "dtype", "layout", "count")
MAX_LINES = 100_000


def read_csv(path: Path) -> list[tuple[tuple[int, int, int], str | None, str | None]]:
    """(shape, dtype or None, layout or None) per distinct line of a `m,n,k[,dtype,layout,count]` file.

    Raises ProblemError listing every line that cannot be read.
    """
    try:
        if not path.is_file():
            raise ProblemError(f"shape list {str(path)!r} cannot be read: no such file.")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ProblemError(f"shape list {str(path)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ProblemError(f"shape list {str(path)!r} cannot be read: it is not text in UTF-8.") from None
    if len(lines) > MAX_LINES:
        raise ProblemError(f"shape list {str(path)!r} has more than {MAX_LINES:,} lines: split it.")
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    if not numbered:
        raise ProblemError(f"shape list {str(path)!r} is empty: it needs a header m,n,k and a line per shape.")
    try:
        header = [name.strip().lower() for name in next(csv.reader([numbered[0][1]]))]
    except csv.Error as error:
        raise ProblemError(f"shape list {str(path)!r}, line {numbered[0][0]}: {error}.") from None
    if header[:3] == ["m", "n", "k"]:
        numbered = numbered[1:]
        unknown = [name for name in header if name not in COLUMNS]
        if len(set(header)) < len(header):
            raise ProblemError(f"shape list {str(path)!r} names a column twice.")
        if unknown:
            raise ProblemError(
                f"shape list {str(path)!r}: unknown column {unknown[0]!r}. Columns are: {', '.join(COLUMNS)}."
            )
    else:
        header = list(COLUMNS)
    found, faults = [], []
    for number, line in numbered:
        try:
            found.append(read_line(header, next(csv.reader([line]))))
        except (GemmsweepError, csv.Error) as error:
            faults.append(f"line {number}: {error}")
    if faults:
        more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
        raise ProblemError(f"shape list {str(path)!r}: " + " | ".join(faults[:5]) + more)
    return list(dict.fromkeys(found))


def read_line(header: Sequence[str], fields: Sequence[str]) -> tuple[tuple[int, int, int], str | None, str | None]:
    """One line of a shape list; raises ProblemError."""
    row = dict(zip(header, (field.strip() for field in fields), strict=False))
    shape = parse_shape("x".join(row.get(name, "") for name in "mnk"))
    dtype, layout = row.get("dtype"), row.get("layout")
    return shape, parse_dtype(dtype) if dtype else None, parse_layout(layout) if layout else None
