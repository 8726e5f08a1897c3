"""Opening a results file: who may read it, who may write it, and what to do when neither works."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gemmsweep.errors import DatabaseError
from gemmsweep.store import packing, schema, values

if TYPE_CHECKING:
    from sqlite_utils import Database

BUSY_SECONDS = 30.0
Warn = Callable[[str], None]


class Connection:
    """An open results file. Every statement runs inside `reading()` or `writing()`, which raise DatabaseError."""

    def __init__(self, path: Path, raw: sqlite3.Connection, *, readonly: bool) -> None:
        from sqlite_utils import Database

        self.path = path
        self.readonly = readonly
        self.raw = raw
        self.identity = identity_of(path)
        # Plugins of the user's sqlite-utils have no business in this file.
        self.db: Database = Database(raw, execute_plugins=False)
        self.db.register_function(packing.unpack_to_json, deterministic=True, name="unpack_rounds")

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """One write transaction, taken at once: a deferred one fails when two writers meet, whatever the timeout.

        Within another it is part of that one.
        """
        if self.raw.in_transaction:
            yield self.db
            return
        if self.readonly:
            raise DatabaseError(f"{self.path} was opened for reading only.")
        self._require_still_there()
        with clear_errors(self.path), transaction(self.raw):
            yield self.db

    def _require_still_there(self) -> None:
        """SQLite goes on writing into a file that was moved or deleted: results that nobody will find."""
        if self.identity is None or identity_of(self.path) != self.identity:
            raise DatabaseError(
                f"{self.path} was moved, deleted or replaced while in use. Start again with the file in place."
            )

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Statements that change nothing."""
        try:
            with clear_errors(self.path):
                yield self.raw
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            # What is stored is ours: JSON, hashes, packed numbers. Where it does not read back, something else wrote it.
            raise DatabaseError(
                f"{self.path} is damaged ({type(error).__name__} in a stored value).{_RESTORE}"
            ) from error

    def close(self) -> None:
        """Close. The last writer leaves one plain file: WAL files beside it would be missed by copies and by git."""
        if not self.readonly:
            with suppress(sqlite3.Error):  # others still have it open; then it stays in WAL mode
                self.raw.execute("PRAGMA busy_timeout = 0")
                self.raw.execute("PRAGMA journal_mode = DELETE")
        self.raw.close()


@contextmanager
def transaction(raw: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or nothing at all."""
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise


def open_for_writing(path: Path, warn: Warn) -> Connection:
    """Open or create a results file and bring its schema up to date. Raises DatabaseError."""
    _require_a_place(path)
    with clear_errors(path):
        raw = _connect(f"{path.absolute().as_uri()}?mode=rwc")
        try:
            _require_ours(raw, path)
            use_wal(raw, path, warn)
            raw.execute("PRAGMA synchronous = FULL")
            raw.execute("PRAGMA foreign_keys = ON")
            if schema.version(raw) < len(schema.MIGRATIONS):
                with transaction(raw):
                    schema.migrate(raw)
        except BaseException:
            raw.close()
            raise
        return Connection(path, raw, readonly=False)


def open_for_reading(path: Path, warn: Warn) -> Connection:
    """Open a results file without changing it; one of an older schema is migrated in a copy in memory.

    Raises DatabaseError, also where the file does not exist.
    """
    _require_a_file(path)
    if not path.exists():
        raise DatabaseError(
            f"there is no results file {path}. Make one with `gemmsweep run`, or name another with --db."
        )
    with clear_errors(path):
        raw = _connect_readonly(path, warn)
        try:
            _require_ours(raw, path)
            if schema.version(raw) < len(schema.MIGRATIONS):
                raw = _migrated_copy(raw)
        except BaseException:
            raw.close()
            raise
        return Connection(path, raw, readonly=True)


def use_wal(raw: sqlite3.Connection, path: Path, warn: Warn) -> None:
    """Switch to write-ahead logging; where the file system has no shared memory (NFS), say so and go on without."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = raw.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            # The switch itself does not wait for other connections, whatever the busy timeout.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                mode = str(error)
                raw.execute("PRAGMA journal_mode = DELETE")
                break
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if mode != "wal":
        warn(f"{path} cannot use write-ahead logging here ({mode}); it works, but reading waits for writing.")


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _connect_readonly(path: Path, warn: Warn) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    raw = _connect(f"{uri}?mode=ro")
    try:
        raw.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return raw
    except sqlite3.OperationalError as error:
        raw.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY or os.access(path.parent, os.W_OK):
            raise
    # A file in WAL mode needs a file beside it even to be read; in a read-only folder nothing can change it either.
    if path.with_name(path.name + "-wal").exists():
        warn(f"{path} lies in a read-only folder: what its -wal file holds is not shown.")
    return _connect(f"{uri}?mode=ro&immutable=1")


def _migrated_copy(raw: sqlite3.Connection) -> sqlite3.Connection:
    copy = _connect("file::memory:")
    raw.backup(copy)
    raw.close()
    with transaction(copy):
        schema.migrate(copy)
    return copy


def _require_a_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise DatabaseError(f"there is no folder {path.parent}. Create it, or name another file with --db.")
    _require_a_file(path)
    if path.exists() and path.stat().st_nlink > 1:
        # Each name would get a -wal file of its own, and a writer by one name undo what a writer by the other stored.
        raise DatabaseError(
            f"{path} has {path.stat().st_nlink} names (hard links), which SQLite cannot write safely. Make a copy of it."
        )
    for place in (path, path.parent):
        if place.exists() and not os.access(place, os.W_OK):
            raise DatabaseError(f"{place} cannot be written. Change its permissions, or name another file with --db.")


def _require_a_file(path: Path) -> None:
    """Opening a pipe or a device may never end."""
    if path.is_dir():
        raise DatabaseError(f"{path} is a directory. Name a file in it, for example {path / 'results.db'}.")
    if path.exists() and not path.is_file():
        raise DatabaseError(f"{path} is no plain file. Name another file with --db.")


def _require_ours(raw: sqlite3.Connection, path: Path) -> None:
    owner = raw.execute("PRAGMA application_id").fetchone()[0]
    empty = raw.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if owner != schema.APPLICATION_ID and not (empty and owner == 0):
        raise DatabaseError(f"{path} is a database of another program. Name another file with --db.")
    found, known = schema.version(raw), len(schema.MIGRATIONS)
    if found > known:
        raise DatabaseError(
            f"{path} has schema {found}, this gemmsweep knows {known}. Upgrade it: pip install --upgrade gemmsweep."
        )


def identity_of(path: Path) -> tuple[int, int] | None:
    """Which file on which disk a path means now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into sentences with a way out."""
    try:
        yield
    except values.Damaged as error:
        raise DatabaseError(f"{path} is damaged ({error}).{_RESTORE}") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what it found
        raise DatabaseError(f"{path} {_SENTENCES[sqlite3.SQLITE_CORRUPT]}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        raise DatabaseError(f"{path} {_SENTENCES.get(code & 0xFF, f'cannot be used ({error}).{_RESTORE}')}") from error


_RESTORE = " Restore a copy, or name another file with --db."
_SENTENCES = {
    sqlite3.SQLITE_BUSY: f"has been locked by another process for {BUSY_SECONDS:.0f} s. Wait for it, or name another "
    "file with --db.",
    sqlite3.SQLITE_LOCKED: "is locked by another part of this process.",
    sqlite3.SQLITE_READONLY: "cannot be written, or needs repair after an interrupted write. Check its permissions "
    "and those of its folder, or copy it elsewhere and use --db.",
    sqlite3.SQLITE_PERM: "may not be opened. Check its permissions, or name another file with --db.",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened. Check that it is a file and its permissions, or name another file with --db.",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Free some space; what was stored before is safe.",
    sqlite3.SQLITE_IOERR: "cannot be read or written: its disk is full or failing, or a limit on file sizes was reached. "
    "Look at the disk; what was stored before is safe.",
    sqlite3.SQLITE_CORRUPT: f"is damaged.{_RESTORE}",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database. Name another file with --db.",
}
