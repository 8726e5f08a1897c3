"""Joining results files. The ids of sweeps and runs are unique everywhere, so merging twice changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmsweep.errors import DatabaseError, UsageError
from gemmsweep.store.connect import Connection
from gemmsweep.store.read import cursor_by_name
from gemmsweep.store.records import MergeCounts
from gemmsweep.store.runs import open_store
from gemmsweep.store.write import insert, put_environment

if TYPE_CHECKING:
    from sqlite_utils import Database

Row = dict[str, Any]
# A sweep measured further is worth more: finished before unfinished, then more rounds, then more attempts.
_PROGRESS = """SELECT key, (finished_at IS NOT NULL) AS finished,
(SELECT count(*) FROM rounds JOIN runs ON runs.key = run_key WHERE sweep_key = s.key) AS rounds,
(SELECT count(*) FROM runs WHERE sweep_key = s.key) AS attempts FROM sweeps s WHERE sweep_id = ?"""
# Later than its sweep: `profile` adds them.
_COUNTERS = """SELECT run_id, name, value, unit, basis FROM counters JOIN runs r ON r.key = run_key
JOIN sweeps s ON s.key = sweep_key WHERE sweep_id = ?"""


def merge(
    target: Path | str, others: Sequence[Path | str], *, without_sources: bool = False, redact_host: bool = False
) -> MergeCounts:
    """Add to `target` what the other files have; one transaction per file.

    `without_sources` leaves the texts of kernels and build logs behind (hashes stay), `redact_host` the host names.
    As git's merge driver (`%A`, `%B`) the result is in `%A`. Raises DatabaseError; UsageError where a file is its own
    target.
    """
    for other in others:
        _require_another(Path(other), Path(target))
    total = MergeCounts()
    with open_store(target) as store:
        for other in others:
            with (
                open_store(other, readonly=True) as source,
                source.connection.reading(),  # what does not fit together in it
                store.connection.writing() as db,
            ):
                try:
                    with _not_of_db():
                        one = _Copy(source.connection, db, without_sources, redact_host).everything()
                except sqlite3.IntegrityError as error:  # nothing of the target's: what it is given contradicts itself
                    raise DatabaseError(f"{other} is damaged ({error}). Merge another copy of it.") from error
            total = MergeCounts(
                total.added + one.added, total.updated + one.updated, total.known + one.known, total.runs + one.runs
            )
    return total


def _require_another(other: Path, target: Path) -> None:
    """Raises for a file that cannot be merged, before there is a target."""
    if other.exists() and target.exists() and other.samefile(target):
        raise UsageError(f"{other} cannot be merged into itself. Name another file.")
    with _not_of_db(), open_store(other, readonly=True):
        pass


@contextmanager
def _not_of_db() -> Iterator[None]:
    """What is found wrong is the file that is merged; --db names the target."""
    try:
        yield
    except DatabaseError as error:
        raise DatabaseError(str(error).replace(" with --db", "")) from error


@dataclass(slots=True)
class _Copy:
    """One file's rows on their way into another, with their new keys."""

    source: Connection  # each statement in its own `reading()`: what fails beside them is the target's
    target: Database
    without_sources: bool
    redact_host: bool

    def everything(self) -> MergeCounts:
        added = updated = known = runs = 0
        environments = self._environments()
        sources = self._sources()
        for sweep in self._rows("SELECT * FROM sweeps ORDER BY key"):
            sweep_id = sweep["sweep_id"]
            mine = self.target.execute(_PROGRESS, (sweep_id,)).fetchone()
            if mine is None:
                added += 1
                runs += self._sweep(sweep, environments, sources)
                continue
            self._mark_session(sweep)
            [theirs] = self._rows(_PROGRESS, sweep_id)
            if mine[1:] >= tuple(theirs.values())[1:]:
                grown = self._add_counters(self._rows(_COUNTERS, sweep_id))
                known, updated = (known, updated + 1) if grown else (known + 1, updated)
                continue
            counters = _by_name(self.target.conn, _COUNTERS, sweep_id)
            marked = self.target.execute("SELECT session_finished_at FROM sweeps WHERE key = ?", (mine[0],)).fetchone()[
                0
            ]
            sweep["session_finished_at"] = marked  # by `_mark_session`: either file's
            self.target.execute("DELETE FROM sweeps WHERE key = ?", (mine[0],))
            updated += 1
            runs += self._sweep(sweep, environments, sources)
            self._add_counters(counters)
        return MergeCounts(added, updated, known, runs)

    def _environments(self) -> dict[int, int]:
        keys = {}
        for row in self._rows("SELECT * FROM environments"):
            old = row.pop("key")
            row.pop("fingerprint")
            keys[old] = put_environment(self.target, {**row, "host": ""} if self.redact_host else row)
        return keys

    def _sources(self) -> dict[int | None, int | None]:
        keys: dict[int | None, int | None] = {None: None}
        rows = self._rows("SELECT * FROM sources")
        for row in rows:
            self.target.execute("INSERT OR IGNORE INTO sources (sha256, name) VALUES (:sha256, :name)", row)
            keys[row["key"]] = self.target.execute("SELECT key FROM sources WHERE sha256 = :sha256", row).fetchone()[0]
        for row in [] if self.without_sources else rows:
            self.target.execute(
                "UPDATE sources SET name = ?, text_zlib = ?, dictionary_key = ? WHERE key = ? AND text_zlib IS NULL",
                (row["name"], row["text_zlib"], keys[row["dictionary_key"]], keys[row["key"]]),
            )
        return keys

    def _sweep(self, sweep: Row, environments: dict[int, int], sources: dict[int | None, int | None]) -> int:
        old = sweep.pop("key")
        sweep["environment_key"] = environments[sweep["environment_key"]]
        new = insert(self.target, "sweeps", sweep)
        count = 0
        for run in self._rows("SELECT * FROM runs WHERE sweep_key = ? ORDER BY key", old):
            old_run = run.pop("key")
            run |= {name: sources[run[name]] for name in ("source_key", "rendered_key", "log_key")}
            new_run = insert(self.target, "runs", {**run, "sweep_key": new})
            for table in ("rounds", "packed_rounds", "counters"):
                rows = self._rows(f"SELECT * FROM {table} WHERE run_key = ?", old_run)
                self._copy_rows(table, [{**row, "run_key": new_run} for row in rows])
            count += 1
        return count

    def _copy_rows(self, table: str, rows: list[Row]) -> None:
        if rows:
            marks = ", ".join(f":{name}" for name in rows[0])
            self.target.conn.executemany(f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})", rows)

    def _add_counters(self, rows: list[Row]) -> int:
        """Counters for the runs of these ids; one that is there already stays. How many were new."""
        return self.target.conn.executemany(
            "INSERT OR IGNORE INTO counters (run_key, name, value, unit, basis) "
            "SELECT key, :name, :value, :unit, :basis FROM runs WHERE run_id = :run_id",
            rows,
        ).rowcount

    def _mark_session(self, sweep: Row) -> None:
        self.target.execute(
            "UPDATE sweeps SET session_finished_at = coalesce(session_finished_at, ?) WHERE sweep_id = ?",
            (sweep["session_finished_at"], sweep["sweep_id"]),
        )

    def _rows(self, query: str, *parameters: int | str) -> list[Row]:
        with self.source.reading() as raw:
            return _by_name(raw, query, *parameters)


def _by_name(connection: sqlite3.Connection, query: str, *parameters: int | str) -> list[Row]:
    return [dict(row) for row in cursor_by_name(connection).execute(query, parameters)]
