"""Stored rows back as the dataclasses they came from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from gemmsweep.model import PROBLEM_FIELDS, Build, DeviceInfo, Errors, Inputs, Problem
from gemmsweep.protocol import Burst
from gemmsweep.record import Attempt, Environment, Measurement, Outcome, Relation, SweepStart
from gemmsweep.store import packing
from gemmsweep.store.records import StoredSession, StoredSweep
from gemmsweep.store.sound import launch_of

_SWEEPS = """SELECT s.key AS sweep_key, s.kind AS sweep_kind, e.kind AS device_kind, s.*, e.*
FROM sweeps s JOIN environments e ON e.key = s.environment_key"""
_RUNS = """SELECT r.*, t.sha256 FROM runs r LEFT JOIN sources t ON t.key = r.source_key
WHERE r.sweep_key = ? ORDER BY r.key"""


def find_session(connection: sqlite3.Connection, request_key: str, device_uuid: str) -> StoredSession | None:
    """The latest session of this request on this physical device, rounds included."""
    row = connection.execute(
        "SELECT session_id FROM sweeps s JOIN environments e ON e.key = environment_key "
        "WHERE request_key = ? AND uuid = ? ORDER BY started_at DESC, s.key DESC LIMIT 1",
        (request_key, device_uuid),
    ).fetchone()
    if row is None:
        return None
    condition = "WHERE s.session_id = ? ORDER BY s.position, s.key"
    sweeps = tuple(load_sweeps(connection, condition, row, rounds=True))
    query = "SELECT count(session_finished_at) > 0 FROM sweeps WHERE session_id = ?"
    finished = bool(connection.execute(query, row).fetchone()[0])
    return StoredSession(row[0], finished, sweeps[0].started_at, sweeps)


def gpus(connection: sqlite3.Connection) -> list[DeviceInfo]:
    """One GPU of each class that sweeps are on record of, that of the latest sweep first."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    query = """SELECT e.kind AS device_kind, e.*, max(s.key) AS latest
    FROM environments e JOIN sweeps s ON e.key = s.environment_key
    WHERE e.kind <> 'cpu' GROUP BY e.device_class ORDER BY latest DESC"""
    return [_environment(row).device for row in cursor.execute(query)]


def load_sweeps(
    connection: sqlite3.Connection, condition: str, parameters: Any, *, rounds: bool
) -> Iterator[StoredSweep]:
    """Sweeps that a condition on `s` (sweeps) and `e` (environments) selects."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    for row in cursor.execute(f"{_SWEEPS} {condition}", parameters):
        yield _sweep(connection, row, rounds)


def load_rounds(connection: sqlite3.Connection, run_key: int) -> list[packing.RoundRow]:
    """A run's rounds, packed or not, in order."""
    packed = connection.execute("SELECT blob FROM packed_rounds WHERE run_key = ?", (run_key,)).fetchone()
    columns = "burst_ns, launches, sm_clock_mhz, power_mw, throttle, round"
    plain = connection.execute(f"SELECT {columns} FROM rounds WHERE run_key = ? ORDER BY round", (run_key,))
    return (packing.unpack(packed[0]) if packed else []) + [packing.RoundRow(*row) for row in plain]


def problem_of(row: sqlite3.Row | Mapping[str, Any]) -> Problem:
    """The problem in a row with the columns of `sweeps`, or in a PROBLEM of the JSON contract, which has them, too."""
    return Problem(**{name: row[name] for name in PROBLEM_FIELDS})


def _sweep(connection: sqlite3.Connection, row: sqlite3.Row, rounds: bool) -> StoredSweep:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    runs = cursor.execute(_RUNS, (row["sweep_key"],)).fetchall()
    stored = {run["label"]: load_rounds(connection, run["key"]) for run in runs} if rounds else {}
    return StoredSweep(
        key=row["sweep_key"],
        sweep_id=row["sweep_id"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        start=_start(row),
        environment=_environment(row),
        attempts={run["label"]: _attempt(run) for run in runs},
        run_ids={run["label"]: run["run_id"] for run in runs},
        run_keys={run["label"]: run["key"] for run in runs},
        rounds=_by_round(stored),
        outcome=_outcome(row, runs) if row["finished_at"] else None,
    )


def _by_round(stored: Mapping[str, list[packing.RoundRow]]) -> list[dict[str, Burst]]:
    rounds: dict[int, dict[str, Burst]] = {}
    for label, ones in stored.items():
        for one in ones:
            rounds.setdefault(one.round, {})[label] = _burst(label, one)
    return [rounds[number] for number in sorted(rounds)]


def _start(row: sqlite3.Row) -> SweepStart:
    return SweepStart(
        session_id=row["session_id"], request_key=row["request_key"], position=row["position"], kind=row["sweep_kind"],
        experiment=row["experiment"], template=row["template"] or "", problem=problem_of(row),
        inputs=Inputs(row["distribution"], row["seed"]), varied=row["varied"],
        values=tuple(json.loads(row["axis_values"])), start=json.loads(row["start"]),
        start_origin=row["start_origin"], regime=row["regime"], l2=row["l2"], protocol=row["protocol"],
        command=row["command"],
    )  # fmt: skip


def _environment(row: sqlite3.Row) -> Environment:
    device = DeviceInfo(
        row["device_kind"], row["name"], row["uuid"], row["arch"],
        row["sm_count"], row["memory_bytes"], row["l2_bytes"], row["max_smem_bytes"], row["clock_max_mhz"],
        row["power_limit_w"], row["mig"], row["driver"], row["runtime"], row["device_index"],
    )  # fmt: skip
    packages = json.loads(row["packages"])
    return Environment(device, row["gemmsweep_version"], row["commit_id"], row["python"], packages, row["host"])


def _attempt(run: sqlite3.Row) -> Attempt:
    build = errors = None
    if run["build_key"] is not None:
        build = Build(
            ok=run["status"] != "compile", key=run["build_key"], compiler=run["compiler"], arch=run["build_arch"],
            options=tuple(json.loads(run["build_options"])), registers=run["registers"],
            reason=(run["reason"] or "") if run["status"] == "compile" else "", spill_bytes=run["spill_bytes"],
            smem_bytes=run["static_smem_bytes"], compile_ms=run["compile_ms"],
        )  # fmt: skip
    if run["error_max_scaled"] is not None and run["error_rel_fro"] is not None:
        errors = Errors(run["error_max_scaled"], run["error_rel_fro"], run["error_rel_fro_vendor"])
    return Attempt(
        label=run["label"], role=run["role"], status=run["status"], template=run["template"] or "",
        source_sha256=run["sha256"] or "", config=json.loads(run["config"]), reason=run["reason"] or "", build=build,
        launch=launch_of(run),
        errors=errors, smem_bytes=run["smem_bytes"], occupancy_pct=run["occupancy_pct"], limiter=run["limiter"],
        version=run["version"], kernels=tuple(json.loads(run["kernels"] or "[]")), peak_tflops=run["peak_tflops"],
        peak_clock_mhz=run["peak_clock_mhz"], peak_gbps=run["peak_gbps"], acc=run["acc"],
    )  # fmt: skip


def _burst(label: str, row: packing.RoundRow) -> Burst:
    return Burst(label, row.burst_ns, row.launches, row.sm_clock_mhz, row.power_mw, row.throttle)


def _outcome(row: sqlite3.Row, runs: list[sqlite3.Row]) -> Outcome:
    measurements = {run["label"]: _measurement(run) for run in runs if run["median_ns"] is not None}
    return Outcome(
        row["verdict"], row["winner"], tuple(json.loads(row["ties"])), row["margin_pct"], row["pairs_different"],
        bool(row["contended"]), row["stopped"], bool(row["adopted"]), measurements,
    )  # fmt: skip


def _measurement(run: sqlite3.Row) -> Measurement:
    relations = {
        name: Relation(ratio, (low, high)) for name, (ratio, low, high) in json.loads(run["relations"]).items()
    }
    interval = (run["ci95_low_ns"], run["ci95_high_ns"])
    return Measurement(
        run["rounds"], run["launches"], run["median_ns"], interval, bool(run["left_early"]), relations, run["joules"]
    )
