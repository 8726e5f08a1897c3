"""Shape lists: which problems a command is about."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from gemmsweep.errors import GemmsweepError, ProblemError, counted
from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape

# count, how often a shape occurs, is for the file's other readers
COLUMNS = ("m", "n", "k", "dtype", "layout", "count")
SIZES = ("m", "n", "k")
MAX_LINES = 100_000

Wanted = tuple[tuple[int, int, int], str | None, str | None]


def size(shape: tuple[int, int, int]) -> str:
    """`512x4096x4096`, as parse_shape reads it."""
    return "x".join(map(str, shape))


def in_words(shape: tuple[int, int, int] | None, dtype: str | None, layout: str | None) -> str:
    """`512x4096x4096 fp16 nt`, of what somebody said of a problem; "" of nothing."""
    return " ".join(filter(None, (size(shape) if shape else None, dtype, layout)))


def read_csv(path: Path) -> list[Wanted]:
    """(shape, dtype or None, layout or None) per distinct line of a `m,n,k[,dtype,layout,count]` file.

    Raises ProblemError listing every line that cannot be read.
    """
    lines = read_lines(path)
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    if not numbered:
        raise ProblemError(f"shape list {str(path)!r} is empty: it needs a header m,n,k and a line per shape.")
    header: list[str] | None = None
    found, faults = [], []
    for place, (number, line) in enumerate(numbered):
        try:
            fields = split(line)
            if place == 0 and is_header(fields):
                header = read_header(fields)
            else:
                found.append(read_line(header, fields))
        except (GemmsweepError, csv.Error) as error:
            faults.append(f"line {number}: {str(error).rstrip('.')}")
            if place == 0:
                break  # the others are read by it
    if faults:
        more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
        raise ProblemError(f"shape list {str(path)!r}: {' | '.join(faults[:5])}{more}.")
    if not found:
        raise ProblemError(
            f"shape list {str(path)!r} has a header and no shapes: add a line per shape, as in 16,4096,4096."
        )
    return list(dict.fromkeys(found))


def read_lines(path: Path) -> list[str]:
    """Raises ProblemError for what is no text file of a bearable length."""
    cannot = f"shape list {str(path)!r} cannot be read"
    if path.is_dir():
        raise ProblemError(f"{cannot}: it is a directory. Name a file.")
    try:
        if not path.is_file():
            raise ProblemError(f"{cannot}: {'it is no regular file' if path.exists() else 'no such file'}.")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ProblemError(f"{cannot}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ProblemError(f"{cannot}: it is not text in UTF-8.") from None
    if len(lines) > MAX_LINES:
        raise ProblemError(f"shape list {str(path)!r} has more than {MAX_LINES:,} lines: split it.")
    return lines


def split(line: str) -> list[str]:
    """The fields of a line without empty ones at its end, as spreadsheets leave them. Raises ProblemError, csv.Error."""
    if line.count('"') % 2:
        raise ProblemError('it has an open quote ("): close it or leave it out')
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in line.strip() and "," not in line:
            raise ProblemError(f"its fields are divided by {name}: use commas")
    fields = [field.strip() for field in next(csv.reader([line]))]
    while fields and not fields[-1]:
        fields.pop()
    return fields


def is_header(fields: Sequence[str]) -> bool:
    """Whether the first line names columns, known or not, instead of sizes."""
    return any(field.lower() in COLUMNS for field in fields) or "".join(fields[:1]).isalpha()


def read_header(fields: Sequence[str]) -> list[str]:
    """Columns in any order; raises ProblemError for one that is unknown, twice there or missing."""
    header = [field.lower() for field in fields]
    for name in header:
        if name not in COLUMNS:
            raise ProblemError(f"unknown column {name!r}. Columns are: {', '.join(COLUMNS)}")
        if header.count(name) > 1:
            raise ProblemError(f"the header names column {name} twice")
    for name in SIZES:
        if name not in header:
            raise ProblemError(f"the header has no column {name}: it needs m, n and k")
    return header


def read_line(header: Sequence[str] | None, fields: Sequence[str]) -> Wanted:
    """One line of a shape list, with or without a header; raises ProblemError."""
    columns = header or COLUMNS
    if len(fields) > len(columns) or (header is None and len(fields) < len(SIZES)):
        many = f"it has {counted(len(fields), 'field')}"
        if header is None:
            raise ProblemError(f"{many}, a line is m,n,k[,dtype,layout,count]")
        raise ProblemError(f"{many}, the header names {len(header)}. It can name {', '.join(COLUMNS)}")
    row = dict(zip(columns, fields, strict=False))
    for name in SIZES:
        if not row.get(name):
            raise ProblemError(f"it has no value for column {name}")
    shape = parse_shape("x".join(row[name] for name in SIZES))
    dtype, layout = row.get("dtype"), row.get("layout")
    return shape, parse_dtype(dtype) if dtype else None, parse_layout(layout) if layout else None
