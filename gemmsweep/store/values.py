"""What may enter a column: SQLite turns NaN into NULL in silence, and refuses integers from 2⁶³ and broken UTF-8."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gemmsweep.errors import DatabaseError

_LIMIT = 2**63


class Damaged(DatabaseError):
    """A stored value that does not read back, and why; who has the file open adds its name."""


def now() -> str:
    """This moment in UTC as ISO 8601 with milliseconds, `2026-11-29T21:49:05.123Z`: such text sorts by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text(value: str | None) -> str | None:
    """Text that SQLite can hold: no NUL, no half surrogates (of file names that are not UTF-8). "" becomes NULL."""
    if not value:
        return None
    return value.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")


def integer(value: int, what: str) -> int:
    """An integer that must be kept exactly. Raises DatabaseError from 2⁶³ on."""
    if not -_LIMIT <= value < _LIMIT:
        raise DatabaseError(f"{what} {value} does not fit in 63 bits. Choose a smaller one.")
    return value


def reading(value: int | None) -> int | None:
    """An integer a sensor gave: one that is out of range was not measured."""
    return value if value is not None and -_LIMIT <= value < _LIMIT else None


def number(value: float | None) -> float | None:
    """A figure; NaN and infinity mean "not measured" and become NULL openly."""
    return float(value) if value is not None and math.isfinite(value) else None


def interval(edges: tuple[float, float]) -> tuple[float, float] | tuple[None, None]:
    """Both ends, or neither: two rounds have an interval that is open, which is none."""
    return edges if all(map(math.isfinite, edges)) else (None, None)


def duration(value: float, label: str) -> float:
    """A time in nanoseconds. Raises DatabaseError where it is not finite and positive: such a time must never rank."""
    if not (math.isfinite(value) and value > 0):
        raise DatabaseError(f"{label!r} has no usable time ({value} ns). Its sweep stays unfinished: run it again.")
    return value


def to_json(value: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> str:
    """Compact JSON, the order of keys kept."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def compress(content: str, dictionary: bytes) -> bytes:
    """zlib of UTF-8, primed with `dictionary` (b"": none): a rendered kernel beside its template takes 200 bytes."""
    packer = zlib.compressobj(9, zdict=dictionary) if dictionary else zlib.compressobj(9)
    return packer.compress(content.encode("utf-8", "backslashreplace")) + packer.flush()


def expand(packed: bytes, dictionary: bytes) -> str:
    """The inverse of `compress`. Raises Damaged."""
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    try:
        return (unpacker.decompress(packed) + unpacker.flush()).decode("utf-8")
    except (zlib.error, UnicodeDecodeError) as error:
        raise Damaged(f"a stored source: {error}") from error
