"""Everything on record of one run, for `gemmsweep show run`."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

from gemmsweep.store.filters import Conditions
from gemmsweep.store.ids import resolve
from gemmsweep.store.read import SWEEPS, Json, cursor_by_name, expand
from gemmsweep.store.sessions import load_rounds
from gemmsweep.store.sound import launch_of
from gemmsweep.store.standing import found_wrong
from gemmsweep.store.write import source_sha256, source_text


def run_detail(connection: sqlite3.Connection, piece: str) -> Json:
    """RUN of the contract, plus label, role, launches, command, the build, both sources, the log and all rounds.

    `wrong_since`: when its config was last found wrong, if that was later. A reference can be asked for too.
    Raises UsageError for an unknown or ambiguous id.
    """
    run_id = resolve(connection, "run", piece)
    row = cursor_by_name(connection).execute("SELECT * FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    rows = cursor_by_name(connection).execute(f"{SWEEPS} WHERE s.key = ?", (row["sweep_key"],))
    [(sweep, lines)] = expand(connection, rows, Conditions("1", "r.run_id = :run", {"run": run_id}))
    wrong_at = found_wrong(connection, sweep).get((row["template"], row["source_key"], row["config"]), "")
    return {
        **json.loads(lines[row["label"]]),
        "label": row["label"],
        "wrong_since": wrong_at if wrong_at > row["started_at"] else None,
        "role": row["role"],
        "launches": row["launches"],
        "left_early": None if row["left_early"] is None else bool(row["left_early"]),
        "version": row["version"],
        "kernels": json.loads(row["kernels"]) if row["kernels"] else None,
        "command": sweep["command"],
        "build_arch": row["build_arch"],
        "build_options": json.loads(row["build_options"]) if row["build_options"] else None,
        "build_key": row["build_key"],
        "launch": launch_of(row),
        "template_source": source_text(connection, row["source_key"]),
        "rendered_source": source_text(connection, row["rendered_key"]),
        "rendered_sha256": source_sha256(connection, row["rendered_key"]),
        "build_log": source_text(connection, row["log_key"]),
        "round_values": _rounds(connection, row),
    }


def _rounds(connection: sqlite3.Connection, row: sqlite3.Row) -> list[Json]:
    """A run's rounds, each with what a launch of every reference took in it: only ratios within a round are compared."""
    query = "SELECT key, label FROM runs WHERE sweep_key = ? AND role = 'reference' AND key <> ?"
    references = {
        label: {one.round: one.burst_ns / one.launches / 1e3 for one in load_rounds(connection, key)}
        for key, label in connection.execute(query, (row["sweep_key"], row["key"]))
    }
    return [
        asdict(one) | {f"{label}_us": us.get(one.round) for label, us in references.items()}
        for one in load_rounds(connection, row["key"])
    ]
