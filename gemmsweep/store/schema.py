"""The tables, as migrations: each function takes the schema one version further, and is never edited once released.

`PRAGMA user_version` counts the migrations a file has had; `PRAGMA application_id` says that it is gemmsweep's.
Comments inside the statements are kept by SQLite, so `.schema` in any tool shows them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

APPLICATION_ID = 0x67656D6D  # "gemm"
Migration = Callable[[sqlite3.Connection], None]
MIGRATIONS: list[Migration] = []


def migration(function: Migration) -> Migration:
    """Append a step to the schema's history."""
    MIGRATIONS.append(function)
    return function


def version(connection: sqlite3.Connection) -> int:
    """How many migrations this file has had."""
    count: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return count


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the newest schema. The caller holds the write transaction."""
    for step in MIGRATIONS[version(connection) :]:
        step(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


@migration
def first_tables(connection: sqlite3.Connection) -> None:
    for statement in (ENVIRONMENTS, SOURCES, SWEEPS, RUNS, ROUNDS, PACKED_ROUNDS, COUNTERS):
        connection.execute(statement)
    for columns in ("sweeps (started_at)", "sweeps (session_id)", "sweeps (request_key)", "runs (identity)"):
        name = columns.replace(" (", "_by_").rstrip(")")
        connection.execute(f"CREATE INDEX {name} ON {columns}")
    connection.execute("CREATE INDEX sweeps_by_problem ON sweeps (m, n, k, dtype, layout)")
    connection.execute(ROUND_VALUES)
    connection.execute(RESULTS)


@migration
def accuracy_classes(connection: sqlite3.Connection) -> None:
    """Runs say how they sum products; until then all summed as their problem asks for, in fp32."""
    connection.execute(
        "ALTER TABLE runs ADD COLUMN acc TEXT NOT NULL DEFAULT 'fp32' /* accuracy class: one not its sweep's never wins */"
    )
    connection.execute("DROP VIEW results")
    connection.execute(RESULTS.replace("s.dtype, s.acc,", f"s.dtype, r.acc, {RANKED} AS ranked,"))


RANKED = "r.acc = s.acc"  # in SQL what `ranking.is_ranked` is
# A config that was found right, raced and may win, in SQL over `runs r` of `sweeps s`.
RACED = f"r.role = 'config' AND r.status = 'ok' AND r.median_ns > 0 AND {RANKED}"
DECIDED = ("winner", "tie")  # verdicts that say which config to take

ENVIRONMENTS = """
CREATE TABLE environments (
  key INTEGER PRIMARY KEY,
  fingerprint TEXT NOT NULL UNIQUE, -- hash of every other column: equal environments are one row
  kind TEXT NOT NULL, -- cuda, cpu, scripted
  name TEXT NOT NULL,
  uuid TEXT NOT NULL,
  arch TEXT NOT NULL,
  sm_count INTEGER NOT NULL, -- CPU: cores the process may use
  memory_bytes INTEGER NOT NULL,
  l2_bytes INTEGER NOT NULL,
  max_smem_bytes INTEGER NOT NULL, -- of one block, opt-in
  clock_max_mhz INTEGER,
  power_limit_w REAL,
  mig TEXT,
  driver TEXT,
  runtime TEXT,
  device_index INTEGER NOT NULL,
  device_class TEXT NOT NULL, -- devices whose results may stand in one ranking
  gemmsweep_version TEXT NOT NULL,
  commit_id TEXT, -- of the checkout gemmsweep ran from; -dirty where it had changes
  python TEXT NOT NULL,
  packages TEXT NOT NULL, -- JSON: name → version
  host TEXT NOT NULL
)"""

SOURCES = """
CREATE TABLE sources ( -- templates, includes, rendered kernels and build logs, each text once
  key INTEGER PRIMARY KEY,
  sha256 TEXT NOT NULL UNIQUE, -- of a template: over its text and its includes
  name TEXT,
  text_zlib BLOB, -- zlib of UTF-8; NULL: only the hash is known
  dictionary_key INTEGER REFERENCES sources (key) -- zlib preset dictionary: the end (32 KB) of that source's text
)"""

SWEEPS = """
CREATE TABLE sweeps ( -- one axis raced, or finals
  key INTEGER PRIMARY KEY,
  sweep_id TEXT NOT NULL UNIQUE, -- UUIDv7
  session_id TEXT NOT NULL, -- the command's; its sweeps share it
  session_finished_at TEXT, -- the command came to its end
  request_key TEXT NOT NULL, -- hash of what the user asked
  position INTEGER NOT NULL, -- within the session
  kind TEXT NOT NULL, -- axis, finals
  experiment TEXT,
  template TEXT, -- NULL: finals over several
  environment_key INTEGER NOT NULL REFERENCES environments (key),
  started_at TEXT NOT NULL, -- UTC, ISO 8601
  finished_at TEXT, -- NULL: interrupted or still running
  m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, batch INTEGER NOT NULL,
  dtype TEXT NOT NULL, -- fp32, tf32, fp16, bf16
  acc TEXT NOT NULL, -- type of the accumulator
  layout TEXT NOT NULL, -- nn; nt: B stored (n, k)
  lda INTEGER NOT NULL, ldb INTEGER NOT NULL, ldd INTEGER NOT NULL, -- elements
  beta REAL NOT NULL,
  epilogue TEXT NOT NULL,
  distribution TEXT NOT NULL, seed INTEGER NOT NULL, -- of the operands
  varied TEXT, -- NULL: finals, single configs
  axis_values TEXT NOT NULL, -- JSON list
  start TEXT NOT NULL, -- JSON: the first config
  start_origin TEXT NOT NULL,
  regime TEXT NOT NULL, -- equal-clock, own-power, burst
  l2 TEXT NOT NULL, -- cold, hot
  protocol TEXT NOT NULL, -- rounds, alone
  command TEXT NOT NULL,
  verdict TEXT, -- winner, tie, undecided, none; NULL below here: unfinished
  winner TEXT, -- label of a run
  ties TEXT, -- JSON list of labels not told apart from the leader
  margin_pct REAL, -- leader over the next; of a tie or undecided: the uncertainty
  pairs_different INTEGER,
  contended INTEGER, -- 1: others used the device
  stopped TEXT, -- decided, narrow, time
  adopted INTEGER, -- 1: the start of what followed changed
  power_capped_pct REAL -- share of bursts under SW power cap; NULL: not measured
)"""

RUNS = """
CREATE TABLE runs ( -- one config, or reference, of a sweep
  key INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE, -- UUIDv7
  sweep_key INTEGER NOT NULL REFERENCES sweeps (key) ON DELETE CASCADE,
  label TEXT NOT NULL,
  role TEXT NOT NULL, -- config, reference
  status TEXT NOT NULL, -- before the race; view `results` has the one to read
  reason TEXT,
  started_at TEXT NOT NULL,
  template TEXT,
  config TEXT NOT NULL, -- JSON
  identity TEXT NOT NULL, -- hash of source, config, problem, build, device class, inputs and regime
  source_key INTEGER REFERENCES sources (key), -- template and includes
  rendered_key INTEGER REFERENCES sources (key),
  log_key INTEGER REFERENCES sources (key), -- what the compiler printed
  compiler TEXT, build_arch TEXT,
  build_options TEXT, -- JSON list
  launch TEXT, -- JSON: steps with kernel, args, grid, block, smem_bytes; workspaces
  build_key TEXT, -- hash of everything that reached the compiler
  registers INTEGER, spill_bytes INTEGER,
  static_smem_bytes INTEGER, -- as the compiler says
  smem_bytes INTEGER, -- dynamic and static, per block
  compile_ms REAL,
  occupancy_pct REAL, limiter TEXT,
  error_max_scaled REAL, -- in units of the allowed elementwise bound
  error_rel_fro REAL, error_rel_fro_vendor REAL,
  version TEXT, kernels TEXT, -- of a reference; kernels: JSON list
  peak_tflops REAL, peak_clock_mhz INTEGER, peak_gbps REAL, -- nameplate, and the clock it is quoted at
  rounds INTEGER, launches INTEGER, -- launches: per burst
  median_ns REAL, ci95_low_ns REAL, ci95_high_ns REAL, -- per launch
  left_early INTEGER, -- 1: certainly slow, left the race
  relations TEXT, -- JSON: reference → [ratio, low, high]; ratio = reference time / own time
  joules REAL, -- per launch
  UNIQUE (sweep_key, label)
)"""

ROUNDS = """
CREATE TABLE rounds ( -- of unfinished sweeps; finished ones are in packed_rounds
  run_key INTEGER NOT NULL REFERENCES runs (key) ON DELETE CASCADE,
  round INTEGER NOT NULL,
  burst_ns INTEGER NOT NULL, launches INTEGER NOT NULL,
  sm_clock_mhz INTEGER, power_mw INTEGER, -- NULL: not measured
  throttle INTEGER, -- NVML clocks event reasons, bit mask
  PRIMARY KEY (run_key, round)
) WITHOUT ROWID"""

PACKED_ROUNDS = """
CREATE TABLE packed_rounds ( -- read them through view round_values
  run_key INTEGER PRIMARY KEY REFERENCES runs (key) ON DELETE CASCADE,
  blob BLOB NOT NULL -- format: gemmsweep/store/packing.py
)"""

COUNTERS = """
CREATE TABLE counters (
  run_key INTEGER NOT NULL REFERENCES runs (key) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value REAL, -- NULL: not measured, never 0
  unit TEXT NOT NULL,
  basis TEXT NOT NULL, -- nvml, gpm, ncu, stamp, account, check
  PRIMARY KEY (run_key, name)
) WITHOUT ROWID"""

ROUND_VALUES = """
CREATE VIEW round_values AS -- needs the SQL function unpack_rounds, which gemmsweep registers
SELECT run_key, round, burst_ns, launches, sm_clock_mhz, power_mw, throttle FROM rounds
UNION ALL
SELECT p.run_key, json_extract(j.value, '$[5]'), json_extract(j.value, '$[0]'), json_extract(j.value, '$[1]'),
  json_extract(j.value, '$[2]'), json_extract(j.value, '$[3]'), json_extract(j.value, '$[4]')
FROM packed_rounds p, json_each(unpack_rounds(p.blob)) j"""

RESULTS = """
CREATE VIEW results AS -- one row per run, references included, with everything derived
SELECT *, 100 * tflops / peak_tflops AS pct_peak,
  100 * tflops / (peak_tflops * sm_clock_mhz / peak_clock_mhz) AS pct_peak_at_clock,
  100 * gbps / peak_gbps AS pct_bandwidth
FROM (
  SELECT r.key AS run_key, r.sweep_key, r.run_id, s.sweep_id, s.session_id, r.started_at, r.label, r.role,
    CASE WHEN r.status = 'ok' AND s.finished_at IS NULL THEN 'unfinished' ELSE r.status END AS status, r.reason,
    s.experiment, s.m, s.n, s.k, s.batch, s.dtype, s.acc, s.layout, s.lda, s.ldb, s.ldd, s.beta, s.epilogue,
    s.distribution || '(seed=' || s.seed || ')' AS inputs,
    e.name AS device, e.uuid, e.arch, e.sm_count, e.power_limit_w, e.device_class,
    r.template, t.sha256 AS source_sha256, r.config, r.identity,
    s.varied, s.regime, s.l2, s.protocol, s.kind = 'finals' AS finals, s.contended, r.rounds,
    r.median_ns / 1e3 AS median_us, r.ci95_low_ns / 1e3 AS ci95_low_us, r.ci95_high_ns / 1e3 AS ci95_high_us,
    2e-3 * s.m * s.n * s.k * s.batch / r.median_ns AS tflops, -- flop per ns are GFLOP/s
    s.batch * ( -- compulsory bytes: inputs once, the output once, and once more where it is read
      1.0 * (s.m * s.k + s.k * s.n) * CASE s.dtype WHEN 'fp16' THEN 2 WHEN 'bf16' THEN 2 ELSE 4 END
      + 1.0 * s.m * s.n * CASE s.dtype WHEN 'fp16' THEN 2 WHEN 'bf16' THEN 2 ELSE 4 END
        * CASE s.beta WHEN 0 THEN 1 ELSE 2 END) / r.median_ns AS gbps,
    (SELECT value FROM counters c WHERE c.run_key = r.key AND c.name = 'sm_clock_mhz') AS sm_clock_mhz,
    r.left_early, r.relations, r.joules, r.error_max_scaled, r.error_rel_fro, r.error_rel_fro_vendor,
    r.compiler, r.registers, r.spill_bytes, coalesce(r.smem_bytes, r.static_smem_bytes) AS smem_bytes, r.compile_ms,
    r.occupancy_pct, r.limiter, r.version, r.kernels, r.peak_tflops, r.peak_clock_mhz, r.peak_gbps
  FROM runs r
  JOIN sweeps s ON s.key = r.sweep_key
  JOIN environments e ON e.key = s.environment_key
  LEFT JOIN sources t ON t.key = r.source_key
)"""
