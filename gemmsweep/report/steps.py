"""The lines under a sweep's table: each step along the axis, joined to what changed with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gemmsweep.analysis.steps import Side, explain
from gemmsweep.ranking import is_timed
from gemmsweep.report import against
from gemmsweep.report.figures import Record, clean


def step_lines(sweep: Record, runs: Sequence[Record]) -> list[str]:
    """One line per pair of neighbouring values that both raced; none for finals, or where nothing was counted to explain by."""
    varied = sweep.get("varied")
    counted = any(
        (reading or {}).get("value") is not None for run in runs for reading in (run.get("counters") or {}).values()
    )
    if not varied or not counted:
        return []
    reference = against.main_reference(runs)
    return [
        explain(clean(varied), side(varied, before), side(varied, after), speed_pct(before, after, reference))
        for before, after in pairwise(runs)
        if is_timed(before) and is_timed(after)
    ]


def side(varied: str, run: Record) -> Side:
    """What a RUN record says of one end of a step."""
    build = run.get("build") or {}
    figures = {name: (reading or {}).get("value") for name, reading in (run.get("counters") or {}).items()}
    figures |= {name: build.get(name) for name in ("registers", "spill_bytes", "smem_bytes")}
    figures["occupancy_pct"] = run.get("occupancy_pct")
    limiter = clean(run["limiter"]) if run.get("limiter") else None
    return Side(clean((run.get("config") or {}).get(varied)), figures, limiter)


def speed_pct(before: Record, after: Record, reference: str | None) -> float:
    """How much faster the later one is: by ratios to a reference from the same rounds where there are any."""
    old, new = (((run.get("references") or {}).get(reference) or {}).get("ratio") for run in (before, after))
    if old and new:
        return 100.0 * (float(new) / float(old) - 1)
    return 100.0 * (float(before["median_us"]) / float(after["median_us"]) - 1)
