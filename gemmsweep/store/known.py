"""Where a sweep may start: verified configs on record for a problem, or for the nearest shape."""

from __future__ import annotations

import json
import math
import sqlite3
from typing import Any

from gemmsweep.model import Problem
from gemmsweep.references import yardstick
from gemmsweep.store.read import cursor_by_name
from gemmsweep.store.records import KnownConfig
from gemmsweep.store.schema import DECIDED, RACED
from gemmsweep.store.sessions import problem_of
from gemmsweep.store.standing import ELIGIBLE, standing

# Regimes are never compared, configs timed alone differ by luck, and a selftest's are slowed on purpose.
_VERIFIED = f"""SELECT r.template, r.label, r.config, t.sha256, r.run_id, r.started_at AS run_started_at, r.median_ns,
r.relations, s.* FROM sweeps s
JOIN environments e ON e.key = s.environment_key
JOIN runs r ON r.sweep_key = s.key
LEFT JOIN sources t ON t.key = r.source_key
WHERE s.finished_at IS NOT NULL AND s.contended = 0 AND s.regime = 'equal-clock'
AND s.protocol = 'rounds' AND s.kind <> 'selftest' AND {RACED}
AND e.device_class = :device_class AND s.dtype = :dtype AND s.layout = :layout
AND s.epilogue = :epilogue AND s.acc = :acc AND s.batch = :batch AND (:template IS NULL OR r.template = :template)"""
_EXACTLY = " AND (s.m, s.n, s.k, s.lda, s.ldb, s.ldd, s.beta) = (:m, :n, :k, :lda, :ldb, :ldd, :beta)"
_PROBLEM = ("m", "n", "k", "lda", "ldb", "ldd", "beta", "dtype", "layout", "epilogue", "acc", "batch")
_FINALS = f"""SELECT s.* FROM sweeps s JOIN environments e ON e.key = s.environment_key
WHERE {ELIGIBLE} AND s.l2 = 'cold' AND e.device_class = :device_class
AND {" AND ".join(f"s.{name} = :{name}" for name in _PROBLEM)} ORDER BY s.started_at DESC, s.key DESC"""
_LATEST_FIRST = " ORDER BY s.started_at DESC, s.key DESC, r.key DESC"


def known(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None
) -> list[KnownConfig]:
    """Verified configs of exactly this problem: what the finals that stand took, then the others, best first.

    Each has its latest measurement.
    """
    rows = _verified(connection, problem, device_class, template, _EXACTLY)
    return _best_first(connection, rows, device_class)


def nearest(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None
) -> KnownConfig | None:
    """The best config of the nearest shape: least sum of |log| of M, N and K ratios, the latest of equals."""
    rows = _verified(connection, problem, device_class, template, "")
    if not rows:
        return None
    closest = problem_of(min(rows, key=lambda row: _distance(row, problem)))
    return _best_first(connection, [row for row in rows if problem_of(row) == closest], device_class)[0]


def checks(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """On which device and when each source of each template was last found right, per dtype and layout."""
    query = """SELECT r.template, e.name AS device, CASE e.kind WHEN 'cpu' THEN 'cpu' ELSE 'cuda' END AS backend,
    s.dtype, s.layout, t.sha256 AS source_sha256, max(r.started_at) AS at
    FROM runs r JOIN sweeps s ON s.key = r.sweep_key JOIN environments e ON e.key = s.environment_key
    JOIN sources t ON t.key = r.source_key WHERE r.role = 'config' AND r.status = 'ok' AND r.error_rel_fro IS NOT NULL
    AND e.kind <> 'scripted' GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY at"""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in cursor_by_name(connection).execute(query):
        found.setdefault(row["template"], []).append(dict(row))
    return found


def _verified(
    connection: sqlite3.Connection, problem: Problem, device_class: str, template: str | None, condition: str
) -> list[sqlite3.Row]:
    parameters: dict[str, Any] = {name: getattr(problem, name) for name in _PROBLEM}
    parameters |= {"device_class": device_class, "template": template}
    return cursor_by_name(connection).execute(_VERIFIED + condition + _LATEST_FIRST, parameters).fetchall()


def _best_first(connection: sqlite3.Connection, rows: list[sqlite3.Row], device_class: str) -> list[KnownConfig]:
    latest: dict[tuple[object, ...], KnownConfig] = {}
    for row in rows:
        latest.setdefault(_identity(row), _config(row, json.loads(row["config"])))
    taken = _taken(connection, rows[0], device_class) if rows else None
    first = latest.pop(taken, None) if taken is not None else None
    others = sorted(latest.values(), key=lambda one: (one.ratio is None, -(one.ratio or 0), one.median_ns))
    return others if first is None else [first, *others]


def _identity(row: sqlite3.Row) -> tuple[object, ...]:
    return row["template"], row["sha256"], tuple(sorted(json.loads(row["config"]).items()))


def _taken(connection: sqlite3.Connection, like: sqlite3.Row, device_class: str) -> tuple[object, ...] | None:
    """What the finals that stand took, of the problem of this row; None where none decided."""
    same = {name: like[name] for name in _PROBLEM}
    given = {**same, "device_class": device_class}
    finals = cursor_by_name(connection).execute(_FINALS, given).fetchall()
    if not finals:
        return None
    stands = standing(connection, finals, "key")
    if stands["verdict"] not in DECIDED:
        return None
    query = """SELECT r.template, t.sha256, r.config FROM runs r LEFT JOIN sources t ON t.key = r.source_key
    WHERE r.sweep_key = ? AND r.label = ? AND r.role = 'config'"""
    winner = cursor_by_name(connection).execute(query, (stands["key"], stands["winner"])).fetchone()
    return None if winner is None else _identity(winner)


def _config(row: sqlite3.Row, config: dict[str, Any]) -> KnownConfig:
    relations = json.loads(row["relations"] or "{}")
    usable = [name for name, (ratio, _, _) in relations.items() if ratio is not None]
    reference = yardstick(usable)
    return KnownConfig(
        template=row["template"],
        config=config,
        source_sha256=row["sha256"] or "",
        problem=problem_of(row),
        run_id=row["run_id"],
        started_at=row["run_started_at"],
        median_ns=row["median_ns"],
        reference=reference,
        ratio=relations[reference][0] if reference else None,
        finals=row["kind"] == "finals",
    )


def _distance(row: sqlite3.Row, problem: Problem) -> float:
    return sum(abs(math.log(row[name] / getattr(problem, name))) for name in ("m", "n", "k"))
