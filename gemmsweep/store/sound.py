"""Whether stored rows are what the schema says: SQLite itself lets any value into any column."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from gemmsweep.model import OPERANDS
from gemmsweep.store.values import Damaged

# Columns that hold JSON, and what it must be.
_JSON = {
    "config": "object", "relations": "object", "launch": "object", "kernels": "array", "build_options": "array",
    "start": "object", "axis_values": "array", "ties": "array", "packages": "object",
}  # fmt: skip
# And what none of its entries may be. A parameter's value is an integer or a name; a relation is [ratio, low, high] or nulls: a
# ratio is positive, and without one there is no interval. An interval that is open above, as older files have it, is none.
_NO_VALUE = "type NOT IN ('integer', 'text')"
_NO_FIGURE = "(json_type(value, '{0}') NOT IN ('real', 'integer', 'null') OR abs(json_extract(value, '{0}')) = 9e999)"
_NO_RELATION = f"""CASE type WHEN 'array' THEN json_array_length(value) <> 3 OR json_extract(value, '$[0]') <= 0
OR {_NO_FIGURE.format("$[0]")} OR {_NO_FIGURE.format("$[1]")} OR {_NO_FIGURE.format("$[2]")}
OR json_type(value, '$[0]') = 'null' AND (json_type(value, '$[1]') <> 'null' OR json_type(value, '$[2]') <> 'null')
OR json_type(value, '$[2]') <> 'null' AND (json_type(value, '$[1]') = 'null' OR json_extract(value, '$[1]') < 0
  OR json_extract(value, '$[2]') <= 0 OR json_extract(value, '$[1]') > json_extract(value, '$[2]')) ELSE 1 END"""
_WRONG_ENTRY = {"config": _NO_VALUE, "start": _NO_VALUE, "relations": _NO_RELATION}
_UNLIKE = {
    "INTEGER": "typeof({0}) NOT IN ('integer', 'null')",
    "REAL": "(typeof({0}) NOT IN ('real', 'integer', 'null') OR abs({0}) = 9e999)",
    "TEXT": "typeof({0}) NOT IN ('text', 'null')",
    "BLOB": "typeof({0}) NOT IN ('blob', 'null')",
}
# What a stored launch holds at least: a type, a list of any length, or an object with these keys.
_LAUNCH = {
    "steps": [{"kernel": str, "args": [str], "grid": [int], "block": [int], "smem_bytes": int}],
    "workspaces": [{"name": str, "bytes": int, "zero": str}],
    "tensor_maps": [{"name": str, "operand": str, "box": [int], "swizzle": int, "promotion": int}],
}


def launch_of(row: sqlite3.Row) -> dict[str, Any] | None:
    """The launch in a row of `runs`. Raises Damaged where `show` could not print it, or a host not follow it."""
    if row["launch"] is None:
        return None
    launch: dict[str, Any] = json.loads(row["launch"])
    if not (_is_like(launch, _LAUNCH) and all(map(_has_extent, launch["tensor_maps"]))):
        raise Damaged(f"the launch of run {row['run_id'][-8:]}")
    return launch


def _is_like(value: object, shape: Any) -> bool:
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and _is_like(value[key], inner) for key, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_is_like(item, shape[0]) for item in value)
    return type(value) is shape  # True is no integer


def _has_extent(tensor_map: Mapping[str, Any]) -> bool:
    """An operand's is that of the problem; before there were tensor maps of workspaces, none had an extent of its own."""
    extent, of_workspace = tensor_map.get("extent", []), tensor_map["operand"].startswith("workspace:")
    if not (_is_like(extent, [int]) and _is_like(tensor_map.get("ld", 0), int)):
        return False
    return len(extent) == 2 if of_workspace else not extent and tensor_map["operand"] in OPERANDS


def require_sound(
    connection: sqlite3.Connection, tables: Mapping[str, str], source: str, parameters: Mapping[str, Any]
) -> None:
    """Raises ValueError where a row of `source` (FROM … WHERE …) has a value of another kind in one of `tables` (alias → name)."""
    wrong = " OR ".join(_wrong(connection, alias, name) for alias, name in tables.items())
    if connection.execute(f"SELECT 1 {source} AND ({wrong}) LIMIT 1", parameters).fetchone():
        raise ValueError("a value of another kind than its column")


def _wrong(connection: sqlite3.Connection, alias: str, table: str) -> str:
    """SQL that is true of a row with a value that its column does not hold."""
    wrong = []
    for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})"):
        column = f"{alias}.{name}"
        wrong.append(_UNLIKE[kind].format(column))
        if name in _JSON:
            unlike = f"json_type({column}) <> '{_JSON[name]}'"
            if name in _WRONG_ENTRY:
                unlike += f" OR EXISTS (SELECT 1 FROM json_each({column}) WHERE {_WRONG_ENTRY[name]})"
            unlike = f"CASE WHEN json_valid({column}) THEN {unlike} ELSE 1 END"
            wrong.append(f"({column} IS NOT NULL AND {unlike})")
    return " OR ".join(wrong)
