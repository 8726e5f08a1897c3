"""Exports of best configs: a module `NAME.py` here with `write(best, out)` is a text format; `directory` is apart."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TextIO, cast

from gemmsweep.errors import UsageError, choices
from gemmsweep.report.figures import Record

NOT_TEXT = ("directory",)


class Export(Protocol):
    def write(self, best: Iterable[Record], out: TextIO) -> None:
        """Write the BEST records to `out`."""


def names() -> list[str]:
    """The text formats."""
    return sorted(module.name for module in iter_modules(__path__) if module.name not in NOT_TEXT)


def write(name: str, best: Iterable[Record], out: TextIO) -> None:
    """Write the best configs in the text format `name`; raises UsageError for an unknown one."""
    if name not in names():
        raise UsageError(choices("format", name, names()))
    cast(Export, import_module(f"{__name__}.{name}")).write(best, out)
