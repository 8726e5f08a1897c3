"""How fast and lean a large lab book reads: python tests/benchmarks/bench_store.py [RUNS].

Builds a database of RUNS (100,000) runs with 10 counters each, then times what `report` does, each in a fresh process.
Targets: the latest session < 1 s; everything as JSON < 5 s and < 100 MB.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import store_samples as samples

from gemmsweep.store.ids import uuid7
from gemmsweep.store.runs import open_store

COUNTERS = ("sm_clock_mhz", "power_w", *(f"gpm_{name}_util_pct" for name in ("sm", "tensor", "dram", "fp32", "fp16")))
COUNTERS += ("gpm_sm_occupancy_pct", "temperature_c", "energy_mj")
PER_SWEEP = 8
CALLS = (("runs", "last=True"), ("sweeps", "last=True"), ("best", ""), ("sweeps", ""), ("run_lines", ""), ("runs", ""))
READ = """
import json, resource, sys, time
started = time.perf_counter()
from gemmsweep.store.filters import Filter
from gemmsweep.store.runs import open_store
count = size = 0
with open_store({path!r}, readonly=True) as store:
    for row in store.{method}(Filter({arguments})):
        count, size = count + 1, size + len(row if isinstance(row, str) else json.dumps(row))
seconds, cpu = time.perf_counter() - started, time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{method}({arguments}): {{count}} rows, {{size / 1e6:.1f}} MB of JSON, {{seconds:.2f}} s,", end=" ")
print(f"{{cpu:.2f}} s of CPU, peak {{peak:.0f}} MB")
"""


def build(path: Path, runs: int) -> None:
    """Fill a database through the store's schema, in one transaction."""
    times = {f"BK={8 * place + 8}": 2000.0 + place for place in range(PER_SWEEP)}
    with open_store(path) as store:
        seed = samples.race(store, samples.start(), times, rounds=0)
        with store.connection.writing() as db:
            names = [row[1] for row in db.execute("PRAGMA table_info(sweeps)") if row[1] not in ("key", "sweep_id")]
            run_names = [row[1] for row in db.execute("PRAGMA table_info(runs)") if row[1] not in ("key", "run_id")]
            template = db.execute(f"SELECT {', '.join(names)} FROM sweeps WHERE key = ?", (seed,)).fetchone()
            rows = db.execute(f"SELECT {', '.join(run_names)} FROM runs WHERE sweep_key = ?", (seed,)).fetchall()
            for number in range(runs // PER_SWEEP - 1):
                sweep = dict(zip(names, template, strict=True))
                at = f"2026-{1 + number % 12:02}-{1 + number % 28:02}T00:00:00.000Z"
                sweep |= {"sweep_id": uuid7(), "session_id": f"session {number // 4}", "started_at": at}
                _insert(db.conn, "sweeps", sweep)
                key = db.execute("SELECT last_insert_rowid()").fetchone()[0]
                for values in rows:
                    run = dict(zip(run_names, values, strict=True)) | {"run_id": uuid7(), "sweep_key": key}
                    _insert(db.conn, "runs", run)
            keys = [row[0] for row in db.execute("SELECT key FROM runs WHERE role = 'config'")]
            counters = ((key, name, key * 0.37, "MHz", "gpm") for key in keys for name in COUNTERS)
            db.conn.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)", counters)


def _insert(connection: object, table: str, row: dict[str, object]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))  # type: ignore[attr-defined]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        started = time.perf_counter()
        build(path, runs)
        print(f"built {runs} runs in {time.perf_counter() - started:.1f} s, {path.stat().st_size / 1e6:.0f} MB")
        for method, arguments in CALLS:
            script = READ.format(path=str(path), method=method, arguments=arguments)
            subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


if __name__ == "__main__":
    main()
