"""The store as the rest of gemmsweep sees it: `with open_store(path) as store: ...`. SQL stays inside this package."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gemmsweep.errors import UsageError
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.protocol import Burst, Counter
from gemmsweep.record import Attempt, Environment, Outcome, SweepStart
from gemmsweep.store import best, detail, filters, known, read, sessions, write
from gemmsweep.store.connect import Connection, Warn, open_for_reading, open_for_writing
from gemmsweep.store.filters import EVERYTHING, Filter
from gemmsweep.store.ids import resolve
from gemmsweep.store.records import KnownConfig, StoredSession, StoredSweep

Json = dict[str, Any]
_log = logging.getLogger("gemmsweep")


def open_store(path: Path | str, readonly: bool = False, warn: Warn = _log.warning) -> Store:
    """Open a results file, making it where it may be written. `warn` is told what works only in part.

    Raises DatabaseError where the file is missing (readonly), damaged, foreign, newer, locked or out of reach.
    """
    place = Path(path)
    return Store(open_for_reading(place, warn) if readonly else open_for_writing(place, warn))


class Store:
    """An open results file. Every method may raise DatabaseError; each writing one is a single transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.path = connection.path
        self._run_keys: dict[int, dict[str, int]] = {}
        self._sources: set[str] = set()  # hashes of texts that are in the file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; afterwards it is complete in itself unless others have it open."""
        self.connection.close()

    # Writing

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is written inside is one transaction, for rows that are known at once. Other writers wait meanwhile."""
        try:
            with self.connection.writing():
                yield
        except BaseException:  # nothing of it is in the file
            self._sources.clear()
            self._run_keys.clear()
            raise

    def begin_sweep(self, start: SweepStart, environment: Environment) -> int:
        """Record a sweep about to be raced; its key for the calls below."""
        with self.connection.writing() as db:
            return write.begin_sweep(db, start, environment)

    def save_source(self, sha256: str, name: str, text: str) -> None:
        """Keep the text of a template or include under its hash. Saved before the attempts it makes theirs small."""
        if sha256 in self._sources:
            return
        with self.connection.writing() as db:
            write.save_source(db, sha256, name, text)
        self._sources.add(sha256)

    def save_attempt(self, sweep_key: int, attempt: Attempt, rendered_source: str | None = None) -> int:
        """Insert, or update by its label, what became of a config; the run's key."""
        with self.connection.writing() as db:
            key = write.save_attempt(db, sweep_key, attempt, rendered_source)
        self._keys(sweep_key)[attempt.label] = key
        return key

    def save_round(self, sweep_key: int, index: int, bursts: Sequence[Burst]) -> None:
        """Record one round; the same index again replaces it."""
        keys = self._keys(sweep_key)
        with self.connection.writing() as db:
            write.save_round(db, keys, index, bursts)

    def drop_rounds(self, sweep_key: int) -> None:
        """Forget the rounds of an unfinished sweep, which is to be raced anew."""
        with self.connection.writing() as db:
            write.drop_rounds(db, sweep_key)

    def save_counters(self, run_key: int, counters: Iterable[Counter]) -> None:
        """Record readings of a run."""
        with self.connection.writing() as db:
            write.save_counters(db, run_key, counters)

    def finish_sweep(self, sweep_key: int, outcome: Outcome) -> None:
        """Record what the race says, and pack its rounds. Raises DatabaseError for a time that is not one."""
        keys = self._keys(sweep_key)
        with self.connection.writing() as db:
            write.finish_sweep(db, sweep_key, keys, outcome)

    def finish_session(self, session_id: str) -> None:
        """Mark the command as done, so that asking again shows instead of racing."""
        with self.connection.writing() as db:
            write.finish_session(db, session_id)

    # Taking up earlier work

    def find_session(self, request_key: str, device_uuid: str) -> StoredSession | None:
        """The latest session of this request on this physical device, with every round."""
        with self.connection.reading() as raw:
            return sessions.find_session(raw, request_key, device_uuid)

    def known(
        self, problem: Problem, device_class: str, template: str | None = None, l2: str = "cold"
    ) -> list[KnownConfig]:
        """Verified configs on record for exactly this problem: what `export-best` names, then the others, best first."""
        with self.connection.reading() as raw:
            return known.known(raw, problem, device_class, template, l2)

    def starts(self, problem: Problem, device_class: str, template: str, l2: str = "cold") -> list[KnownConfig]:
        """Those of one template, in the order in which a sweep may start from them."""
        return known.starts(self.known(problem, device_class, template, l2))

    def nearest(
        self, problem: Problem, device_class: str, template: str | None = None, l2: str = "cold"
    ) -> KnownConfig | None:
        """Where to start from the nearest shape on record with this dtype, layout and epilogue."""
        with self.connection.reading() as raw:
            return known.nearest(raw, problem, device_class, template, l2)

    def gpus(self) -> list[DeviceInfo]:
        """One GPU of each class on record, the latest first."""
        with self.connection.reading() as raw:
            return sessions.gpus(raw)

    # Reading

    def run_lines(self, wanted: Filter = EVERYTHING) -> Iterator[str]:
        """RUN objects of the contract as JSON text, streamed. Raises UsageError for a malformed filter."""
        with self.connection.reading() as raw:
            yield from read.run_lines(raw, wanted)

    def runs(self, wanted: Filter = EVERYTHING) -> Iterator[Json]:
        """RUN objects of the contract, streamed; to write JSON, `run_lines` is three times as fast."""
        return map(json.loads, self.run_lines(wanted))

    def sweeps(self, wanted: Filter = EVERYTHING) -> Iterator[Json]:
        """SWEEP objects of the contract, streamed. Raises UsageError for a malformed filter."""
        with self.connection.reading() as raw:
            yield from read.sweeps(raw, wanted)

    def best(self, wanted: Filter = EVERYTHING) -> Iterator[Json]:
        """BEST objects of the contract, one per problem and device class."""
        with self.connection.reading() as raw:
            yield from best.best(raw, wanted)

    def stored_sweeps(self, wanted: Filter = EVERYTHING, *, rounds: bool = False) -> Iterator[StoredSweep]:
        """Sweeps as dataclasses, oldest first; their raw rounds only where asked for."""
        with self.connection.reading() as raw:
            found = filters.conditions(raw, wanted)
            condition = f"WHERE {found.sweeps} ORDER BY s.started_at, s.key"
            yield from sessions.load_sweeps(raw, condition, found.parameters, rounds=rounds)

    def run_detail(self, run: str) -> Json:
        """All there is of the run with this piece of an id. Raises UsageError where it is unknown or ambiguous."""
        with self.connection.reading() as raw:
            return detail.run_detail(raw, run)

    def config_run(self, run: str) -> Json:
        """`run_detail` of a run with a config. Raises UsageError for one of a reference, which has none."""
        found = self.run_detail(run)
        if found["role"] == "reference":
            raise UsageError(
                f"run {run} is of the reference {found['label']}, which has no config: name one of a template."
            )
        return found

    def sweep_id(self, sweep_key: int) -> str:
        """The UUID of a sweep."""
        with self.connection.reading() as raw:
            found: str = raw.execute("SELECT sweep_id FROM sweeps WHERE key = ?", (sweep_key,)).fetchone()[0]
        return found

    def full_id(self, noun: str, piece: str) -> str:
        """The id of the "sweep" or "run" that begins or ends with `piece`. Raises UsageError."""
        with self.connection.reading() as raw:
            return resolve(raw, noun, piece)

    def any_runs(self, wanted: Filter = EVERYTHING) -> bool:
        """Whether `runs` would yield anything."""
        with self.connection.reading() as raw:
            return filters.any_runs(raw, wanted)

    def newest_kind(self, wanted: Filter = EVERYTHING) -> str | None:
        """The kind of the sweep begun last."""
        with self.connection.reading() as raw:
            return filters.newest_kind(raw, wanted)

    def checks(self) -> dict[str, list[Json]]:
        """Verified runs by template name: device, backend, dtype, layout, source_sha256, and when last."""
        with self.connection.reading() as raw:
            return known.checks(raw)

    def why_empty(self, wanted: Filter, *, finals: bool = False) -> str:
        """A sentence for a filter that nothing passes; `finals` for `best`."""
        with self.connection.reading() as raw:
            return filters.why_empty(raw, wanted, finals=finals)

    def _keys(self, sweep_key: int) -> dict[str, int]:
        if sweep_key not in self._run_keys:
            with self.connection.reading() as raw:
                query = "SELECT label, key FROM runs WHERE sweep_key = ?"
                self._run_keys[sweep_key] = dict(raw.execute(query, (sweep_key,)).fetchall())
        return self._run_keys[sweep_key]
