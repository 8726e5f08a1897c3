"""Report formats, one module each: a module `NAME.py` here with a function `write` is a format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TextIO, cast

from gemmsweep.errors import UsageError, choices
from gemmsweep.report.figures import Record


class Format(Protocol):
    def write(
        self,
        sweeps: Iterable[Record],
        runs: Iterable[Any],
        out: TextIO,
        columns: Sequence[str] | None,
        width: int,
    ) -> None:
        """Write the report to `out`. `columns`: dotted paths, or None for the format's own choice."""


def names() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def write(
    name: str,
    sweeps: Iterable[Record],
    runs: Iterable[Any],
    out: TextIO,
    columns: Sequence[str] | None = None,
    width: int = 80,
) -> None:
    """Write the report in the format `name`; raises UsageError for an unknown format or column."""
    if name not in names():
        raise UsageError(choices("format", name, names()))
    cast(Format, import_module(f"{__name__}.{name}")).write(sweeps, runs, out, columns, width)
