"""The best verified kernel per problem and device class: from the undisturbed finals that stand, see `standing.py`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace

from gemmsweep.model import PROBLEM_FIELDS
from gemmsweep.store.filters import Filter, conditions
from gemmsweep.store.read import SWEEPS, Json, cursor_by_name, expand
from gemmsweep.store.standing import ELIGIBLE, Finals, standing

# Races of one problem on one class of devices belong together; kinds of products come one after the other.
_PROBLEM = tuple(dict.fromkeys(("dtype", "layout", "epilogue", *PROBLEM_FIELDS, "device_class")))


def best(connection: sqlite3.Connection, wanted: Filter) -> Iterator[Json]:
    """BEST objects, ordered by problem: RUN plus decision, ties, margin_pct and finalists.

    Cold L2 and the deciding regime unless the filter names others. A filter on template, status or run keeps a problem
    whose winner has it; it does not promote a loser.
    """
    on_sweeps = replace(wanted, template=None, status=None, run=None, l2=wanted.l2 or "cold")
    found = conditions(connection, on_sweeps)
    order = f"{', '.join(_PROBLEM)}, s.started_at DESC, s.key DESC"
    query = f"{SWEEPS} WHERE {found.sweeps} AND {ELIGIBLE} ORDER BY {order}"
    races: dict[tuple[object, ...], list[sqlite3.Row]] = {}
    for row in cursor_by_name(connection).execute(query, found.parameters):
        races.setdefault(tuple(row[name] for name in _PROBLEM), []).append(row)
    found_standing = (standing(connection, rows, "sweep_key", wanted.regime) for rows in races.values())
    deciding = {finals.row["sweep_key"]: finals for finals in found_standing if finals is not None}
    winners = conditions(connection, replace(wanted, last=False, l2=None))
    everything = replace(winners, runs="r.role = 'config' AND r.ranked")
    for sweep, lines in expand(connection, [finals.row for finals in deciding.values()], everything):
        finals = deciding[sweep["sweep_key"]]
        candidates = {one.label: json.loads(lines[one.label]) for one in finals.entries if one.label in lines}
        run = candidates.get(finals.winner.label)
        if run is not None and _wanted(run, wanted, winners.parameters.get("run")):
            yield {**run, **_decision(finals, run, candidates)}


def _wanted(run: Json, wanted: Filter, run_id: str | None) -> bool:
    return (
        wanted.template in (None, run["template"])
        and wanted.status in (None, run["status"])
        and run_id in (None, run["run_id"])
    )


def _decision(finals: Finals, run: Json, candidates: dict[str, Json]) -> Json:
    tied = [candidates[label]["run_id"] for label in json.loads(finals.row["ties"]) if label in candidates]
    return {
        "decision": finals.verdict,
        "ties": [run_id for run_id in tied if run_id != run["run_id"]],
        "margin_pct": None if finals.reduced else finals.row["margin_pct"],
        "finalists": len(candidates),
    }
