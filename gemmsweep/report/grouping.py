"""Runs beside the sweep they belong to."""

from __future__ import annotations

from collections.abc import Iterable

from gemmsweep.report.figures import Record


def by_sweep(sweeps: Iterable[Record], runs: Iterable[Record]) -> list[tuple[Record, list[Record]]]:
    """Each sweep with its runs, both in the order given."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(run["sweep_id"], []).append(run)
    return [(sweep, groups.get(sweep["sweep_id"], [])) for sweep in sweeps]
