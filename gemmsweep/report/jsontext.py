"""JSON that every parser reads: infinities and NaN, which JSON lacks, are written as null."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False)  # made once: json.dumps makes one per call


def text(value: object) -> str:
    """`value` as one line of JSON."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_array(name: str, items: Iterable[object], out: TextIO) -> None:
    """Write `"name": [items]`, an item per line, holding one item at a time; an item that is a str is JSON already."""
    out.write(f"{text(name)}: [")
    separator = "\n"
    for item in items:
        out.write(separator + (item if isinstance(item, str) else text(item)))
        separator = ",\n"
    out.write("]")
