"""UUIDv7 for sessions, sweeps and runs, and finding one by a piece of it."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
import uuid

from gemmsweep.errors import UsageError

SHORT = 8  # the last 8 digits: the first ones are the time, and equal for everything measured within a minute
_PIECE = re.compile(r"[0-9a-f-]{4,36}")


def uuid7() -> str:
    """A new UUIDv7 (RFC 9562): 48 bits of milliseconds, 74 random bits. Python has its own from 3.14."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=value))


def short(identifier: str) -> str:
    """How an id is shown: its last 8 digits."""
    return identifier[-SHORT:]


def resolve(connection: sqlite3.Connection, noun: str, given: str) -> str:
    """The full id of the one sweep or run (`noun`) whose id begins or ends with `given`.

    Raises UsageError where `given` is not a piece of an id, fits none, or fits several.
    """
    piece = given.strip().lower()
    if not _PIECE.fullmatch(piece):
        raise UsageError(f"{given!r} is not a {noun} id. Give at least 4 of its first or last digits (0-9, a-f).")
    column, table = f"{noun}_id", f"{noun}s"
    query = f"SELECT {column} FROM {table} WHERE {column} LIKE ? OR {column} LIKE ? ORDER BY key DESC LIMIT 6"
    found: list[str] = [row[0] for row in connection.execute(query, (f"{piece}%", f"%{piece}"))]
    if not found:
        raise UsageError(f"no {noun} has the id {given!r}. List them with: gemmsweep report --format json.")
    if len(found) > 1:
        some = ", ".join(short(one) for one in found[:5]) + (", …" if len(found) > 5 else "")
        raise UsageError(f"{given!r} fits several {noun}s: {some}. Give more digits.")
    return found[0]
