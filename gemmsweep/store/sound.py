"""Whether stored rows are what the schema says: SQLite itself lets any value into any column."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

# Columns that hold JSON, and what it must be.
_JSON = {
    "config": "object", "relations": "object", "launch": "object", "kernels": "array", "build_options": "array",
    "start": "object", "axis_values": "array", "ties": "array", "packages": "object",
}  # fmt: skip
_UNLIKE = {
    "INTEGER": "typeof({0}) NOT IN ('integer', 'null')",
    "REAL": "(typeof({0}) NOT IN ('real', 'integer', 'null') OR abs({0}) = 9e999)",
    "TEXT": "typeof({0}) NOT IN ('text', 'null')",
    "BLOB": "typeof({0}) NOT IN ('blob', 'null')",
}


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
            unlike = f"CASE WHEN json_valid({column}) THEN json_type({column}) <> '{_JSON[name]}' ELSE 1 END"
            wrong.append(f"({column} IS NOT NULL AND {unlike})")
    return " OR ".join(wrong)
