"""The rounds of one run as one small blob.

A blob is a zlib stream without header (raw deflate). Inside, all integers are varints: 7 bits a byte, lowest first, the
top bit set on all bytes but the last; signed ones are zigzag-coded first (0, -1, 1, -2 … → 0, 1, 2, 3 …).

    version   1
    n         number of rounds
    6 columns, in this order: burst_ns, launches, sm_clock_mhz, power_mw, throttle, round

    a column: kind      0 = no value at all, 1 = every value, 2 = some values
              presence  (kind 2 only) n bytes, 1 where there is a value, 0 where it was not measured
              scale     (kinds 1, 2)  greatest common divisor of the values: CUDA events tick in 32 ns
              deltas    (kinds 1, 2)  signed, one per value: value / scale, less the one before it (the first: less 0)
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemmsweep.errors import DatabaseError
from gemmsweep.store.values import Damaged

VERSION = 1
NONE, ALL, SOME = 0, 1, 2


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One burst of one run; the fields are the columns of table `rounds`."""

    burst_ns: int
    launches: int
    sm_clock_mhz: int | None
    power_mw: int | None
    throttle: int | None
    round: int

    def values(self) -> tuple[int | None, ...]:
        return (self.burst_ns, self.launches, self.sm_clock_mhz, self.power_mw, self.throttle, self.round)


def pack(rows: Sequence[RoundRow]) -> bytes:
    """The blob of a run's rounds."""
    out = bytearray((VERSION,))
    _put(out, len(rows))
    for column in zip(*(row.values() for row in rows), strict=True):
        _put_column(out, column)
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(bytes(out)) + packer.flush()


def unpack(blob: bytes) -> list[RoundRow]:
    """The rounds in a blob. Raises Damaged, or DatabaseError where it is of a later version."""
    try:
        source = iter(zlib.decompress(blob, wbits=-15))
        version = next(source)
        if version != VERSION:
            raise DatabaseError(f"rounds are packed as version {version}. Upgrade: pip install --upgrade gemmsweep.")
        count = _take(source)
        columns = [_take_column(source, count) for _ in range(6)] if count else []
    except zlib.error as error:
        raise Damaged(f"the rounds of a run: {error}") from error
    except (StopIteration, RuntimeError) as error:  # the latter is the former of a generator
        raise Damaged("the rounds of a run: they end too early") from error
    return [RoundRow(*row) for row in zip(*columns, strict=True)]


def unpack_to_json(blob: bytes) -> str:
    """A blob as JSON rows, in the order of columns above: the SQL function `unpack_rounds` of view `round_values`."""
    return json.dumps([row.values() for row in unpack(blob)])


def _put(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _take(source: Iterator[int]) -> int:
    value = shift = 0
    while True:
        byte = next(source)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def _put_column(out: bytearray, column: Iterable[int | None]) -> None:
    cells = tuple(column)
    values = [value for value in cells if value is not None]
    kind = NONE if not values else ALL if len(values) == len(cells) else SOME
    out.append(kind)
    if kind == NONE:
        return
    if kind == SOME:
        out.extend(value is not None for value in cells)
    scale = math.gcd(*values) or 1
    _put(out, scale)
    before = 0
    for value in values:
        delta = value // scale - before
        before = value // scale
        _put(out, delta << 1 if delta >= 0 else (-delta << 1) - 1)


def _take_column(source: Iterator[int], count: int) -> list[int | None]:
    kind = next(source)
    if kind == NONE:
        return [None] * count
    presence = [next(source) for _ in range(count)] if kind == SOME else [1] * count
    scale = _take(source)
    value = 0
    cells: list[int | None] = []
    for present in presence:
        if present:
            coded = _take(source)
            value += coded >> 1 if not coded & 1 else -((coded + 1) >> 1)
        cells.append(value * scale if present else None)
    return cells
