"""Stored rows as the JSON of the contract: every key present, null where there is nothing.

SQLite itself writes the JSON of a run, with 15 digits: building 100,000 of them in Python took three times as long.
Runs are read in batches of sweeps, so that any number of them streams through little memory.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from gemmsweep.model import PROBLEM_FIELDS
from gemmsweep.store.filters import Conditions, Filter, conditions
from gemmsweep.store.schema import RACED
from gemmsweep.store.sound import require_sound

Json = dict[str, Any]
BATCH = 32  # sweeps

SWEEPS = """SELECT s.key AS sweep_key, s.*, e.device_class
FROM sweeps s JOIN environments e ON e.key = s.environment_key"""
# When each config was found wrong, in whatever race or check, on which problem and kind of device.
_WRONG = f"""SELECT r.template, r.source_key, r.config, r.started_at AS wrong_at, e.device_class,
{", ".join(f"s.{name}" for name in PROBLEM_FIELDS)} FROM runs r JOIN sweeps s ON s.key = r.sweep_key
JOIN environments e ON e.key = s.environment_key WHERE r.role = 'config' AND r.status IN ('incorrect', 'unstable')"""
_WRONG_SINCE = f"""SELECT json_group_object(run_id, wrong_at) FROM (SELECT r.run_id, max(w.wrong_at) AS wrong_at
FROM wrong w JOIN runs r ON (r.template, r.config) = (w.template, w.config) AND r.source_key IS w.source_key
WHERE r.sweep_key = s.key AND {RACED} AND r.started_at < w.wrong_at AND w.device_class = e.device_class
AND {" AND ".join(f"w.{name} = s.{name}" for name in PROBLEM_FIELDS)} GROUP BY r.key)"""
_SUMMARY = f"""WITH wrong AS MATERIALIZED ({_WRONG})
SELECT s.sweep_id, s.experiment, s.started_at, s.varied, s.regime, s.l2, s.protocol,
coalesce((SELECT max(rounds) FROM runs WHERE sweep_key = s.key),
  (SELECT nullif(count(DISTINCT round), 0) FROM rounds JOIN runs r ON r.key = run_key WHERE r.sweep_key = s.key)) AS rounds,
nullif(s.verdict, 'none') AS verdict,
(SELECT run_id FROM runs WHERE sweep_key = s.key AND label = s.winner AND s.verdict = 'winner') AS winner_run_id,
(SELECT run_id FROM runs WHERE sweep_key = s.key AND label = s.winner) AS kept_run_id,
(SELECT json_group_array(run_id) FROM runs WHERE sweep_key = s.key AND label IN (SELECT value FROM json_each(s.ties))) AS ties,
(SELECT json_group_object(label, reason) FROM runs WHERE sweep_key = s.key AND role = 'reference' AND status <> 'ok')
  AS not_raced,
(SELECT count(*) FROM runs r WHERE r.sweep_key = s.key AND {RACED}) AS raced,
({_WRONG_SINCE}) AS wrong_since, s.margin_pct, s.pairs_different, s.contended, s.stopped, s.kind, s.template, s.start, s.command,
json_object('driver', e.driver, 'runtime', e.runtime, 'gemmsweep_version', e.gemmsweep_version, 'commit', e.commit_id)
  AS environment
FROM sweeps s JOIN environments e ON e.key = s.environment_key"""
_OF_SWEEPS = "FROM sweeps s JOIN environments e ON e.key = s.environment_key"
_IN_KEYS = "IN (SELECT value FROM json_each(:keys))"
_ROWS = (
    ({"s": "sweeps", "e": "environments"}, f"{_OF_SWEEPS} WHERE s.key {_IN_KEYS}"),
    ({"r": "runs"}, f"FROM runs r WHERE r.sweep_key {_IN_KEYS}"),
    ({"c": "counters"}, f"FROM counters c JOIN runs r ON r.key = c.run_key WHERE r.sweep_key {_IN_KEYS}"),
)
_JSON_COLUMNS = ("ties", "not_raced", "wrong_since", "start", "environment")

_INPUT_DTYPE = "CASE r.dtype WHEN 'tf32' THEN 'fp32' ELSE r.dtype END"
_RELATION = "json_extract(r.relations, '$.' || json_quote(f.label) || '{}')"
_REFERENCES = f"""SELECT json_group_object(f.label, json_object('median_us', f.median_ns / 1e3,
  'ci95_us', json(CASE WHEN f.ci95_low_ns IS NOT NULL THEN json_array(f.ci95_low_ns / 1e3, f.ci95_high_ns / 1e3) END),
  'ratio', {_RELATION.format("[0]")},
  'ci95', json(CASE WHEN {_RELATION.format("[2]")} IS NOT NULL THEN
    json_array({_RELATION.format("[1]")}, {_RELATION.format("[2]")}) END),
  'kernels', json(f.kernels), 'version', f.version))
FROM runs f WHERE f.sweep_key = r.sweep_key AND f.role = 'reference' AND f.status = 'ok'"""
_COUNTERS = """SELECT json_group_object(c.name, json_object('value', c.value, 'unit', c.unit, 'basis', c.basis))
FROM counters c WHERE c.run_key = r.run_key"""
_RUN = f"""json_object('run_id', r.run_id, 'sweep_id', r.sweep_id, 'started_at', r.started_at, 'status', r.status,
'reason', r.reason,
'problem', json_object('m', r.m, 'n', r.n, 'k', r.k, 'batch', r.batch, 'a_dtype', {_INPUT_DTYPE},
  'b_dtype', {_INPUT_DTYPE}, 'd_dtype', {_INPUT_DTYPE}, 'acc', r.acc, 'dtype', r.dtype, 'layout', r.layout,
  'lda', r.lda, 'ldb', r.ldb, 'ldd', r.ldd, 'beta', r.beta, 'epilogue', r.epilogue),
'device', json_object('name', r.device, 'uuid', r.uuid, 'arch', r.arch, 'sm_count', r.sm_count,
  'power_limit_w', r.power_limit_w),
'template', r.template, 'source_sha256', r.source_sha256, 'config', json(r.config), 'varied', r.varied,
'regime', r.regime, 'l2', r.l2, 'protocol', r.protocol, 'rounds', r.rounds,
'finals', json(CASE r.finals WHEN 1 THEN 'true' ELSE 'false' END), 'inputs', r.inputs, 'median_us', r.median_us,
'ci95_us', json(CASE WHEN r.ci95_low_us IS NOT NULL THEN json_array(r.ci95_low_us, r.ci95_high_us) END),
'tflops', r.tflops, 'pct_peak', r.pct_peak, 'pct_peak_at_clock', r.pct_peak_at_clock, 'gbps', r.gbps,
'pct_bandwidth', r.pct_bandwidth, 'joules', r.joules, 'references', ({_REFERENCES}),
'error', json_object('max_scaled', r.error_max_scaled, 'rel_fro', r.error_rel_fro,
  'rel_fro_vendor', r.error_rel_fro_vendor),
'build', json_object('compiler', r.compiler, 'registers', r.registers, 'spill_bytes', r.spill_bytes,
  'smem_bytes', r.smem_bytes, 'compile_ms', r.compile_ms),
'occupancy_pct', r.occupancy_pct, 'limiter', r.limiter, 'counters', ({_COUNTERS}))"""


def run_lines(connection: sqlite3.Connection, wanted: Filter) -> Iterator[str]:
    """RUN objects as JSON text, in the order they were measured; references are inside them, not among them."""
    found = conditions(connection, wanted)
    query = f"{SWEEPS} WHERE {found.sweeps} ORDER BY s.started_at, s.key"
    for _, lines in expand(connection, cursor_by_name(connection).execute(query, found.parameters), found):
        yield from lines.values()


def sweeps(connection: sqlite3.Connection, wanted: Filter) -> Iterator[Json]:
    """SWEEP objects in the order they were started."""
    found = conditions(connection, wanted)
    require_sound(
        connection, {"s": "sweeps", "e": "environments"}, f"{_OF_SWEEPS} WHERE {found.sweeps}", found.parameters
    )
    query = f"{_SUMMARY} WHERE {found.sweeps} ORDER BY s.started_at, s.key"
    for row in cursor_by_name(connection).execute(query, found.parameters):
        contended = row["contended"]
        parsed = {name: json.loads(row[name] or "null") for name in _JSON_COLUMNS}
        yield {**dict(row), **parsed, "contended": None if contended is None else bool(contended)}


def expand(
    connection: sqlite3.Connection, sweep_rows: Iterable[sqlite3.Row], found: Conditions
) -> Iterator[tuple[sqlite3.Row, dict[str, str]]]:
    """Each sweep (rows of `SWEEPS`) with the RUN texts of what the filter wants of it, by label."""
    query = f"""SELECT r.sweep_key, r.label, {_RUN} FROM results r
    WHERE r.sweep_key {_IN_KEYS} AND {found.runs} ORDER BY r.run_key"""
    stream = iter(sweep_rows)
    while batch := list(itertools.islice(stream, BATCH)):
        keys = json.dumps([row["sweep_key"] for row in batch])
        for tables, source in _ROWS:
            require_sound(connection, tables, source, {"keys": keys})
        lines: dict[int, dict[str, str]] = {}
        for sweep_key, label, line in connection.execute(query, {**found.parameters, "keys": keys}):
            lines.setdefault(sweep_key, {})[label] = line
        for sweep in batch:
            yield sweep, lines.get(sweep["sweep_key"], {})


def cursor_by_name(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor whose rows know their columns' names."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor
