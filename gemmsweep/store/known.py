"""Where a sweep may start: verified configs on record for a problem, or for the nearest shape."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from gemmsweep.model import PROBLEM_FIELDS, Problem
from gemmsweep.references import is_wide, yardstick
from gemmsweep.store.read import cursor_by_name
from gemmsweep.store.records import KnownConfig
from gemmsweep.store.schema import RACED
from gemmsweep.store.sessions import problem_of
from gemmsweep.store.standing import ELIGIBLE, Identity, Reference, found_wrong, standing

_RUNS = f"""SELECT r.template, r.source_key, r.config, t.sha256, r.run_id, r.started_at AS run_started_at, r.median_ns,
r.relations, s.* FROM sweeps s
JOIN environments e ON e.key = s.environment_key
JOIN runs r ON r.sweep_key = s.key AND {RACED}
LEFT JOIN sources t ON t.key = r.source_key"""
# Regimes and states of L2 are never compared, configs timed alone differ by luck, and a selftest's are slowed on purpose.
_VERIFIED = f"""{_RUNS} WHERE s.finished_at IS NOT NULL AND s.contended = 0 AND s.regime = 'equal-clock'
AND s.protocol = 'rounds' AND s.kind <> 'selftest'
AND s.l2 = :l2 AND e.device_class = :device_class AND s.dtype = :dtype AND s.layout = :layout
AND s.epilogue = :epilogue AND s.acc = :acc AND s.batch = :batch AND (:template IS NULL OR r.template = :template)"""
_EXACTLY = " AND (s.m, s.n, s.k, s.lda, s.ldb, s.ldd, s.beta) = (:m, :n, :k, :lda, :ldb, :ldd, :beta)"
_FINALS = f"""SELECT s.*, e.device_class FROM sweeps s JOIN environments e ON e.key = s.environment_key
WHERE {ELIGIBLE} AND s.l2 = :l2 AND e.device_class = :device_class
AND {" AND ".join(f"s.{name} = :{name}" for name in PROBLEM_FIELDS)} ORDER BY s.started_at DESC, s.key DESC"""
# Finals are fresh rounds after selection: what an axis saw later of the same config does not replace them.
_FINALS_THEN_LATEST_FIRST = " ORDER BY s.kind = 'finals' DESC, s.started_at DESC, s.key DESC, r.key DESC"
_OWN_TIME = """SELECT version, median_ns, ci95_low_ns, ci95_high_ns FROM runs
WHERE sweep_key = ? AND label = ? AND role = 'reference'"""


def known(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None, l2: str
) -> list[KnownConfig]:
    """Verified configs of exactly this problem: what `export-best` names, then the others, best first."""
    rows = _verified(connection, problem, device_class, template, l2, _EXACTLY)
    rows = _still_right(rows, found_wrong(connection, _parameters(problem, device_class, l2)))
    return _best_first(connection, rows, _exported(connection, problem, device_class, template, l2))


def nearest(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None, l2: str
) -> KnownConfig | None:
    """Where to start from the nearest shape: least sum of |log| of M, N and K ratios, the latest of equals.

    Never from what has been found wrong there, or on this problem.
    """
    rows = _verified(connection, problem, device_class, template, l2, "")
    if not rows:
        return None
    closest = problem_of(min(rows, key=lambda row: _distance(row, problem)))
    there = [row for row in rows if problem_of(row) == closest]
    there = _still_right(there, found_wrong(connection, _parameters(closest, device_class, l2)))
    exported = _exported(connection, closest, device_class, template, l2)
    wrong = found_wrong(connection, _parameters(problem, device_class, l2))
    there = [row for row in there if _as_checked(row) not in wrong]
    exported = None if exported is None or _as_checked(exported) in wrong else exported
    best = starts(_best_first(connection, there, exported))
    return best[0] if best else None


def starts(on_record: Sequence[KnownConfig]) -> list[KnownConfig]:
    """Of one template's configs, best first, where to start: those of finals come before what only an axis saw."""
    return sorted(on_record, key=lambda one: (not one.exported, not one.finals))


def checks(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """On which device and when each source of each template was last checked, per dtype and layout; how often it was wrong."""
    query = """SELECT r.template, e.name AS device, CASE e.kind WHEN 'cpu' THEN 'cpu' ELSE 'cuda' END AS backend,
    s.dtype, s.layout, t.sha256 AS source_sha256, max(r.started_at) AS at, count(*) AS checks, sum(r.status <> 'ok') AS wrong,
    max(CASE WHEN r.status <> 'ok' THEN r.started_at END) AS wrong_at
    FROM runs r JOIN sweeps s ON s.key = r.sweep_key JOIN environments e ON e.key = s.environment_key
    JOIN sources t ON t.key = r.source_key WHERE r.role = 'config'
    AND (r.status = 'ok' AND r.error_rel_fro IS NOT NULL OR r.status IN ('incorrect', 'unstable'))
    AND e.kind <> 'scripted' GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY at"""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in cursor_by_name(connection).execute(query):
        found.setdefault(row["template"], []).append(dict(row))
    return found


def _verified(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None, l2: str, condition: str
) -> list[sqlite3.Row]:
    parameters = {**_parameters(problem, device_class, l2), "template": template}
    query = _VERIFIED + condition + _FINALS_THEN_LATEST_FIRST
    return cursor_by_name(connection).execute(query, parameters).fetchall()


def _still_right(rows: Sequence[sqlite3.Row], wrong: Mapping[Identity, str]) -> list[sqlite3.Row]:
    """Runs of one problem whose config has not been found wrong since; `wrong`: when it was, as `found_wrong` has it."""
    return [row for row in rows if wrong.get(_as_checked(row), "") <= row["run_started_at"]]


def _as_checked(row: sqlite3.Row) -> Identity:
    return row["template"], row["source_key"], row["config"]


def _parameters(problem: Problem, device_class: str, l2: str) -> dict[str, Any]:
    return {**{name: getattr(problem, name) for name in PROBLEM_FIELDS}, "device_class": device_class, "l2": l2}


def _best_first(
    connection: sqlite3.Connection, rows: Sequence[sqlite3.Row], exported: sqlite3.Row | None
) -> list[KnownConfig]:
    found: dict[tuple[object, ...], KnownConfig] = {}
    if exported is not None:
        found[_identity(exported)] = replace(_config(connection, exported), exported=True)
    for row in rows:
        identity = _identity(row)
        if identity not in found:
            found[identity] = _config(connection, row)
    usual_ns = _usual_ns(found.values())
    return sorted((replace(one, speed=_speed(one, usual_ns)) for one in found.values()), key=_rank)


def _usual_ns(configs: Iterable[KnownConfig]) -> dict[Reference, float]:
    """What each version of a reference usually takes: NumPy on two threads is another yardstick than on one."""
    times: dict[Reference, list[float]] = {}
    for one in configs:
        if one.certain and one.reference_ns:
            times.setdefault((one.reference or "", one.version or ""), []).append(one.reference_ns)
    return {reference: median(ns) for reference, ns in times.items()}


def _speed(one: KnownConfig, usual_ns: Mapping[Reference, float]) -> float | None:
    if one.ratio is None:
        return None
    own_ns = one.ratio * one.median_ns  # where the reference's time is not on record
    return one.ratio / usual_ns.get((one.reference or "", one.version or ""), own_ns)


def _rank(one: KnownConfig) -> tuple[object, ...]:
    return not one.exported, *one.merit


def _identity(row: sqlite3.Row) -> tuple[object, ...]:
    return row["template"], row["sha256"], tuple(sorted(json.loads(row["config"]).items()))


def _exported(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None, l2: str
) -> sqlite3.Row | None:
    """The run that `best.py` names for the problem, by its rules; None where there are no finals, or another template's won."""
    finals = cursor_by_name(connection).execute(_FINALS, _parameters(problem, device_class, l2)).fetchall()
    stands = standing(connection, finals, "key")
    if stands is None:
        return None
    query = f"{_RUNS} WHERE s.key = ? AND r.label = ?"
    row: sqlite3.Row = cursor_by_name(connection).execute(query, (stands.row["key"], stands.winner.label)).fetchone()
    return row if template in (None, row["template"]) else None


def _config(connection: sqlite3.Connection, row: sqlite3.Row) -> KnownConfig:
    relations = json.loads(row["relations"] or "{}")
    usable = [name for name, (ratio, _, _) in relations.items() if ratio is not None]
    reference = yardstick(usable)
    nothing: Any = (None, None, None)
    ratio, low, high = relations[reference] if reference else nothing
    own = connection.execute(_OWN_TIME, (row["key"], reference)).fetchone()
    version, own_ns, own_low, own_high = own or (None, *nothing)
    return KnownConfig(
        template=row["template"],
        config=json.loads(row["config"]),
        source_sha256=row["sha256"] or "",
        problem=problem_of(row),
        run_id=row["run_id"],
        started_at=row["run_started_at"],
        median_ns=row["median_ns"],
        reference=reference,
        version=version,
        reference_ns=own_ns,
        ratio=ratio,
        speed=None,
        certain=None not in (ratio, low, high)
        and not is_wide(ratio, (low, high))
        and not is_wide(own_ns, (own_low, own_high)),
        finals=row["kind"] == "finals",
        exported=False,
    )


def _distance(row: sqlite3.Row, problem: Problem) -> float:
    return sum(abs(math.log(row[name] / getattr(problem, name))) for name in ("m", "n", "k"))
