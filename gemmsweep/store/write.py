"""Rows going in. Each function is one write transaction of its caller."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmsweep.analysis.readings import SW_POWER_CAP
from gemmsweep.errors import DatabaseError
from gemmsweep.protocol import Burst, Counter
from gemmsweep.record import Attempt, Environment, Measurement, Outcome, SweepStart
from gemmsweep.store import packing, values
from gemmsweep.store.ids import uuid7

if TYPE_CHECKING:
    from sqlite_utils import Database

Row = dict[str, Any]


def fingerprint(row: Mapping[str, Any]) -> str:
    """A hash that equal rows share."""
    return hashlib.sha256(values.to_json(dict(sorted(row.items()))).encode()).hexdigest()[:32]


def environment_key(db: Database, environment: Environment) -> int:
    """The row of this environment, made where it is new."""
    device = environment.device
    row: Row = {
        "kind": device.kind, "name": values.text(device.name) or "", "uuid": values.text(device.uuid) or "",
        "arch": device.arch, "sm_count": device.sm_count, "memory_bytes": device.memory_bytes,
        "l2_bytes": device.l2_bytes, "max_smem_bytes": device.max_smem_bytes, "clock_max_mhz": device.clock_max_mhz,
        "power_limit_w": values.number(device.power_limit_w), "mig": values.text(device.mig),
        "driver": values.text(device.driver), "runtime": values.text(device.runtime), "device_index": device.index,
        "device_class": values.text(device.device_class), "gemmsweep_version": environment.gemmsweep_version,
        "commit_id": values.text(environment.commit), "python": environment.python,
        "packages": values.to_json(dict(sorted(environment.packages.items()))),
        "host": values.text(environment.host) or "",
    }  # fmt: skip
    return put_environment(db, row)


def put_environment(db: Database, row: Row) -> int:
    """The key of an environment given by its columns."""
    mark = fingerprint(row)
    found = db.execute("SELECT key FROM environments WHERE fingerprint = ?", (mark,)).fetchone()
    return found[0] if found else insert(db, "environments", {"fingerprint": mark, **row})


def begin_sweep(db: Database, start: SweepStart, environment: Environment) -> int:
    """A new, unfinished sweep; its key."""
    problem = start.problem
    row: Row = {
        "sweep_id": uuid7(), "session_id": start.session_id, "request_key": start.request_key,
        "position": start.position, "kind": start.kind, "experiment": values.text(start.experiment),
        "template": values.text(start.template), "environment_key": environment_key(db, environment),
        "started_at": values.now(),
        **{name: values.integer(getattr(problem, name), name) for name in ("m", "n", "k", "batch")},
        **{name: values.integer(getattr(problem, name), name) for name in ("lda", "ldb", "ldd")},
        "dtype": problem.dtype, "acc": problem.acc, "layout": problem.layout, "beta": problem.beta,
        "epilogue": problem.epilogue, "distribution": start.inputs.distribution,
        "seed": values.integer(start.inputs.seed, "seed"), "varied": start.varied,
        "axis_values": values.to_json(start.values), "start": values.to_json(start.start),
        "start_origin": values.text(start.start_origin) or "", "regime": start.regime, "l2": start.l2,
        "protocol": start.protocol, "command": values.text(start.command) or "",
    }  # fmt: skip
    return insert(db, "sweeps", row)


def source_key(db: Database, sha256: str) -> int | None:
    """The row of a source known by its hash, made without text where it is new. "" is None."""
    if not sha256:
        return None
    db.execute("INSERT OR IGNORE INTO sources (sha256) VALUES (?)", (sha256,))
    key: int = db.execute("SELECT key FROM sources WHERE sha256 = ?", (sha256,)).fetchone()[0]
    return key


def save_source(db: Database, sha256: str, name: str, content: str, like: int | None = None) -> int:
    """Keep a text under its hash; `like` is the key of a similar text, which makes it small."""
    key = source_key(db, sha256)
    assert key is not None
    if db.execute("SELECT text_zlib IS NULL FROM sources WHERE key = ?", (key,)).fetchone()[0]:
        primer = (source_text(db.conn, like) or "").encode() if like else b""
        db.execute(
            "UPDATE sources SET name = ?, text_zlib = ?, dictionary_key = ? WHERE key = ?",
            (values.text(name), values.compress(content, primer), like if primer else None, key),
        )
    return key


def source_text(connection: sqlite3.Connection, key: int | None) -> str | None:
    """The text of a source; None where only its hash is known."""
    query = "SELECT text_zlib, dictionary_key FROM sources WHERE key = ?"
    packed, dictionary_key = connection.execute(query, (key,)).fetchone() or (None, None)
    if packed is None:
        return None
    return values.expand(packed, (source_text(connection, dictionary_key) or "").encode())


def source_sha256(connection: sqlite3.Connection, key: int | None) -> str | None:
    """The hash of a source, which is on record where its text is not."""
    row = connection.execute("SELECT sha256 FROM sources WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def save_attempt(db: Database, sweep_key: int, attempt: Attempt, rendered_source: str | None) -> int:
    """Insert or update the run of this label; its key."""
    build, errors = attempt.build, attempt.errors
    template_key = source_key(db, attempt.source_sha256)
    row: Row = {
        "sweep_key": sweep_key, "label": attempt.label, "role": attempt.role, "status": attempt.status,
        "reason": values.text(attempt.reason), "template": values.text(attempt.template),
        "config": values.to_json(attempt.config), "identity": _identity(db, sweep_key, attempt),
        "source_key": template_key,
        "rendered_key": _save_text(db, f"{attempt.template} {attempt.label}", rendered_source, template_key),
        "log_key": _save_text(db, "build log", build.log if build else None, None),
        "compiler": build.compiler if build else None, "build_arch": build.arch if build else None,
        "build_options": values.to_json(build.options) if build else None, "build_key": build.key if build else None,
        "launch": values.to_json(attempt.launch) if attempt.launch is not None else None,
        "registers": build.registers if build else None, "spill_bytes": build.spill_bytes if build else None,
        "static_smem_bytes": build.smem_bytes if build else None, "smem_bytes": attempt.smem_bytes,
        "compile_ms": values.number(build.compile_ms) if build else None,
        "occupancy_pct": values.number(attempt.occupancy_pct), "limiter": values.text(attempt.limiter),
        "error_max_scaled": values.number(errors.max_scaled) if errors else None,
        "error_rel_fro": values.number(errors.rel_fro) if errors else None,
        "error_rel_fro_vendor": values.number(errors.rel_fro_vendor) if errors else None,
        "version": values.text(attempt.version),
        "kernels": values.to_json(attempt.kernels) if attempt.kernels else None,
        "peak_tflops": values.number(attempt.peak_tflops), "peak_clock_mhz": attempt.peak_clock_mhz,
        "peak_gbps": values.number(attempt.peak_gbps), "acc": attempt.acc,
    }  # fmt: skip
    found = db.execute("SELECT key FROM runs WHERE sweep_key = ? AND label = ?", (sweep_key, attempt.label)).fetchone()
    if not found:
        return insert(db, "runs", {"run_id": uuid7(), "started_at": values.now(), **row})
    update(db, "runs", found[0], row)
    return int(found[0])


def save_round(db: Database, run_keys: Mapping[str, int], index: int, bursts: Sequence[Burst]) -> None:
    """One round of bursts."""
    db.conn.executemany(
        "INSERT OR REPLACE INTO rounds (run_key, round, burst_ns, launches, sm_clock_mhz, power_mw, throttle) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run_keys[burst.label], index, values.integer(burst.burst_ns, "burst_ns"),
                values.integer(burst.launches, "launches"), values.reading(burst.sm_clock_mhz),
                values.reading(burst.power_mw), values.reading(burst.throttle),
            )
            for burst in bursts
        ],
    )  # fmt: skip


def drop_rounds(db: Database, sweep_key: int) -> None:
    """All rounds of a sweep are gone."""
    db.execute("DELETE FROM rounds WHERE run_key IN (SELECT key FROM runs WHERE sweep_key = ?)", (sweep_key,))


def save_counters(db: Database, run_key: int, counters: Iterable[Counter]) -> None:
    """Readings of a run; a later one of the same name replaces the earlier."""
    db.conn.executemany(
        "INSERT OR REPLACE INTO counters (run_key, name, value, unit, basis) VALUES (?, ?, ?, ?, ?)",
        [(run_key, one.name, values.number(one.value), one.unit, one.basis) for one in counters],
    )


def finish_sweep(db: Database, sweep_key: int, run_keys: Mapping[str, int], outcome: Outcome) -> None:
    """Pack the rounds, store what the race says of each label, and the verdict."""
    capped = db.execute(
        "SELECT 100.0 * avg(throttle & ? <> 0) FROM rounds JOIN runs ON runs.key = run_key WHERE sweep_key = ?",
        (SW_POWER_CAP, sweep_key),
    ).fetchone()[0]
    for run_key in run_keys.values():
        _pack_rounds(db, run_key)
    for label, measurement in outcome.measurements.items():
        update(db, "runs", run_keys[label], _measured(label, measurement))
    row: Row = {
        "finished_at": values.now(), "verdict": outcome.verdict, "winner": outcome.winner,
        "ties": values.to_json(outcome.ties), "margin_pct": values.number(outcome.margin_pct),
        "pairs_different": outcome.pairs_different,
        "contended": int(outcome.contended), "stopped": outcome.stopped, "adopted": int(outcome.adopted),
        "power_capped_pct": capped,
    }  # fmt: skip
    update(db, "sweeps", sweep_key, row)


def finish_session(db: Database, session_id: str) -> None:
    """The command came to its end: asked again, it shows what it found."""
    db.execute("UPDATE sweeps SET session_finished_at = ? WHERE session_id = ?", (values.now(), session_id))


def insert(db: Database, table: str, row: Row) -> int:
    """A new row; its key."""
    key = db.table(table).insert(row).last_pk
    assert isinstance(key, int)
    return key


def update(db: Database, table: str, key: int, row: Row) -> None:
    """Change the columns given."""
    columns = ", ".join(f"{name} = :{name}" for name in row)
    db.execute(f"UPDATE {table} SET {columns} WHERE key = :key", {**row, "key": key})


def _save_text(db: Database, name: str, content: str | None, like: int | None) -> int | None:
    if not content:
        return None
    mark = hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()
    return save_source(db, mark, name, content, like)


def _measured(label: str, measurement: Measurement) -> Row:
    low, high = values.interval(measurement.ci95_ns)
    return {
        "rounds": measurement.rounds, "launches": measurement.launches,
        "median_ns": values.duration(measurement.median_ns, label), "ci95_low_ns": low,
        "ci95_high_ns": high, "left_early": int(measurement.left_early),
        "relations": values.to_json(
            {name: [values.number(one.ratio), *values.interval(one.ci95)]
             for name, one in measurement.relations.items()}
        ),
        "joules": values.number(measurement.joules),
    }  # fmt: skip


def _pack_rounds(db: Database, run_key: int) -> None:
    rows = [
        packing.RoundRow(*row)
        for row in db.execute(
            "SELECT burst_ns, launches, sm_clock_mhz, power_mw, throttle, round FROM rounds "
            "WHERE run_key = ? ORDER BY round", (run_key,),
        )
    ]  # fmt: skip
    if rows:
        db.execute("INSERT OR REPLACE INTO packed_rounds VALUES (?, ?)", (run_key, packing.pack(rows)))
        db.execute("DELETE FROM rounds WHERE run_key = ?", (run_key,))


def _identity(db: Database, sweep_key: int, attempt: Attempt) -> str:
    """Runs that share it measured the same thing: what `diff` and history compare."""
    found = db.execute(
        "SELECT m, n, k, batch, dtype, acc, layout, lda, ldb, ldd, beta, epilogue, distribution, seed, regime, l2, "
        "protocol, device_class, driver FROM sweeps s JOIN environments e ON e.key = environment_key WHERE s.key = ?",
        (sweep_key,),
    ).fetchone()
    if found is None:
        raise DatabaseError(f"sweep {sweep_key} is no longer in the results file. Run the command again.")
    build = attempt.build
    own: Row = {
        "role": attempt.role, "template": attempt.template, "source": attempt.source_sha256,
        "config": sorted(attempt.config.items()), "version": attempt.version,
        "build": (build.compiler, build.arch, build.options) if build else None, "sweep": list(found),
    }  # fmt: skip
    if attempt.role == "reference":
        own["label"] = attempt.label
    return fingerprint(own)[:16]
