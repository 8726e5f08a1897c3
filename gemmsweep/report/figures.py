"""Numbers, dates and names as text. Absent values show as a dash: a value that was not measured is never 0."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from gemmsweep.references import half_width

Record = Mapping[str, Any]  # a SWEEP, RUN or BEST of the JSON contract, or a part of one
ABSENT = "–"
ABSURD = 10  # times a value, or a part of it: an interval that reaches further says nothing at all
NO_FIGURE = "no figure"
BREAKS = ("Zl", "Zp")
_COLOURS = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")  # terminal escapes, as compilers colour their messages
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")


def clean(text: object) -> str:
    """One printable line: terminal colours vanish, any whitespace becomes a space, a control or bidi character `?`."""
    if text is None:
        return ""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_printable(character) for character in _COLOURS.sub("", plain))


def _printable(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category in BREAKS:
        return " "
    return "?" if category in INVISIBLE else character


def first_line(text: object) -> str:
    """The first line of a log or reason that says anything, cleaned."""
    lines = (clean(line).strip() for line in str(text or "").splitlines())
    return next((line for line in lines if line), "")


def significant(value: float | None, digits: int = 4) -> str:
    """`value` with `digits` significant digits, never in exponents; whole numbers keep all of theirs."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{value:.{min(max(digits - 1 - magnitude, 0), 12)}f}"


def short(value: float | None) -> str:
    """`significant`, in exponents where it would begin with a row of zeros: `0.0926`, `1.208e-6`."""
    if not value or not math.isfinite(value) or abs(value) >= 1e-3:
        return significant(value)
    digits, exponent = f"{value:.3e}".split("e")
    return f"{digits}e{int(exponent)}"


def percent(value: float | None) -> str:
    """A percentage without its sign: one decimal, two below 1."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.2f}" if abs(value) < 0.995 else f"{value:.1f}"


def trimmed(value: float | None) -> str:
    """One decimal, and none where it is 0: `12.5`, `25`."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.1f}".removesuffix(".0")


def whole(value: float | None) -> str:
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.0f}"


def kilobytes(value: float | None) -> str:
    """Bytes as KB of 1024, with a decimal only where there is one."""
    return ABSENT if value is None or not math.isfinite(value) else f"{trimmed(value / 1024)} KB"


def registers(build: Record | None) -> str:
    """Registers per thread, and the bytes that did not fit them: `168 +24B`."""
    if not build or build.get("registers") is None:
        return ABSENT
    return f"{build['registers']} +{build['spill_bytes']}B" if build.get("spill_bytes") else f"{build['registers']}"


def spills(run: Record) -> bool:
    return bool((run.get("build") or {}).get("spill_bytes"))


def uncertainty(value: float | None, interval: Sequence[float] | None) -> str:
    """Half of a 95% interval relative to its value: `±0.12%`; nothing where there is none."""
    half = half_width(value, interval)
    return "" if half is None else f"±{percent(100 * half)}%"


def says_nothing(value: float, interval: Sequence[float]) -> bool:
    """Whether a 95% interval holds values of different orders of magnitude."""
    return interval[0] * ABSURD < value or interval[1] > value * ABSURD


def span(interval: Sequence[float]) -> str:
    """Both ends of an interval: `1.9–64`."""
    return f"{significant(interval[0], 2)}–{significant(interval[1], 2)}"


def times(ratio: float) -> str:
    """A ratio with two decimals, more where two would say nothing: `1.03`, `0.998`, `0.052`."""
    if ratio < 0.1:
        return significant(ratio, 2)
    return f"{ratio:.3f}" if f"{ratio:.2f}" == "1.00" and f"{ratio:.3f}" != "1.000" else f"{ratio:.2f}"


def counter(run: Record, name: str) -> float | None:
    value: float | None = ((run.get("counters") or {}).get(name) or {}).get("value")
    return value


def short_id(identifier: str | None) -> str:
    """The last 8 digits of a UUIDv7: its first 8 are the time, equal for all runs of a minute."""
    return clean(identifier)[-8:] if identifier else ABSENT


def day(moment: str | None) -> str:
    """The date of an ISO 8601 time."""
    return clean(moment)[:10] if moment else ABSENT


def minute(moment: str | None) -> str:
    """Date and time of an ISO 8601 time in UTC, to the minute."""
    return clean(moment)[:16].replace("T", " ") if moment else ABSENT


def duration(seconds: float) -> str:
    """`8 s`, `2 min 05 s`, `1 h 10 min`."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
