"""The best configs as Markdown, a table per device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from gemmsweep.report.figures import Record
from gemmsweep.report.grid import markdown, plain
from gemmsweep.report.tables import best_grid, by_device

ALL_COLUMNS = 160


def write(best: Iterable[Record], out: TextIO) -> None:
    """A heading and a table per device."""
    out.writelines(
        ("\n" if position else "") + f"### {markdown(device)}\n\n{plain(*best_grid(group, ALL_COLUMNS))}"
        for position, (device, group) in enumerate(by_device(best))
    )
