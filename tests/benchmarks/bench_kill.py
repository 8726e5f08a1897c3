"""kill -9 at random moments of a CPU sweep, the same command resuming each time: python tests/benchmarks/bench_kill.py [N] [SEED].

After each kill, what a reader had seen committed just before is looked for again. Prints rows lost, rows doubled, damaged files and
processes left over. All four should be 0. N defaults to 200; a kill takes about three seconds.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gemmsweep.store import open_store

COMMAND = ("run", "--device", "cpu", "--shape", "96x96x96", "--vary", "BK=64,128", "--vary", "UNROLL=2,4")
LATEST_S = 6.0  # the latest moment of a kill after the start of the command
GRACE_S = 2.0  # for orphans to go
DOUBLED = """
SELECT session_id, position, regime, count(*) FROM sweeps GROUP BY session_id, position, regime HAVING count(*) > 1
UNION ALL SELECT sweep_key, label, '', count(*) FROM runs GROUP BY sweep_key, label HAVING count(*) > 1
UNION ALL SELECT run_key, round, '', count(*) FROM round_values GROUP BY run_key, round HAVING count(*) > 1
UNION ALL SELECT request_key, 'sessions', '', count(DISTINCT session_id) FROM sweeps
  GROUP BY request_key HAVING count(DISTINCT session_id) > 1
"""
COMMITTED = (
    "SELECT 'sweep', sweep_id, '', '' FROM sweeps",
    "SELECT 'verdict', sweep_id, verdict, winner FROM sweeps WHERE finished_at IS NOT NULL",
    "SELECT 'run', run_id, label, status FROM runs WHERE status <> 'ok'",
    "SELECT 'run', run_id, label, '' FROM runs",
    "SELECT 'round', r.run_id, v.round, v.burst_ns FROM round_values v JOIN runs r ON r.key = v.run_key",
    "SELECT 'counter', r.run_id, c.name, c.value FROM counters c JOIN runs r ON r.key = c.run_key",
)


def committed(path: Path) -> set[tuple[object, ...]]:
    """Everything a reader sees: one entry per sweep, verdict, run, round and counter."""
    if not path.exists() or path.stat().st_size == 0:
        return set()
    with open_store(path, readonly=True) as store:
        return {row for query in COMMITTED for row in store.connection.raw.execute(query)}


def faults_of(path: Path) -> tuple[int, int]:
    """(rows doubled, 1 where SQLite finds damage)."""
    if not path.exists():
        return 0, 0
    with open_store(path, readonly=True) as store:
        doubled = sum(row[3] - 1 for row in store.connection.raw.execute(DOUBLED))
        found = store.connection.raw.execute("PRAGMA integrity_check").fetchall()
        foreign = store.connection.raw.execute("PRAGMA foreign_key_check").fetchall()
    return doubled, int(found != [("ok",)] or bool(foreign))


def processes_of(folder: str) -> Iterator[int]:
    """Living processes with `folder` in their environment, this one aside."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if folder.encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def orphans(folder: str) -> list[int]:
    """Those still there after a grace period."""
    end = time.monotonic() + GRACE_S
    while (left := list(processes_of(folder))) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def kill_once(folder: str, path: Path, seed: int, after_s: float) -> tuple[bool, set[tuple[object, ...]]]:
    """Start or resume the sweep of a seed and kill it after a while; (whether it had ended by itself, what was seen before)."""
    environment = {**os.environ, "GEMMSWEEP_DB": str(path), "GEMMSWEEP_CACHE": f"{folder}/cache"}
    command = [sys.executable, "-m", "gemmsweep", *COMMAND, "--seed", str(seed)]
    with open(f"{folder}/messages.txt", "a") as messages:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=messages, stderr=messages)
        try:
            ended = process.wait(after_s) is not None
        except subprocess.TimeoutExpired:
            ended = False
        try:
            seen = committed(path)
        except (sqlite3.Error, OSError):
            seen = set()
        process.send_signal(signal.SIGKILL)
        process.wait()
    if ended and process.returncode != 0:
        raise SystemExit(f"the sweep ended with {process.returncode}:\n{Path(messages.name).read_text()[-2000:]}")
    return ended, seen


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    totals: Counter[str] = Counter(lost=0, doubled=0, corrupt=0, orphans=0)
    killed = finished = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path, known = Path(folder) / "results.db", set[tuple[object, ...]]()
        while killed < kills:
            ended, seen = kill_once(folder, path, finished, rng.uniform(0.0, LATEST_S))
            finished, killed = finished + ended, killed + (not ended)
            left = orphans(folder)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            known |= seen
            totals["orphans"] += len(left)
            totals["lost"] += len(known - committed(path))
            doubled, corrupt = faults_of(path)
            totals["doubled"] += doubled
            totals["corrupt"] += corrupt
            print(f"\r{killed} kills, {finished} sweeps finished, {dict(totals)}", end="", file=sys.stderr, flush=True)
        rows = len(committed(path))
    print(file=sys.stderr)
    print(
        f"{killed} kills in {time.monotonic() - begin:.0f} s, {finished} sweeps finished meanwhile, {rows} rows at the end"
    )
    print(", ".join(f"{name} {count}" for name, count in totals.items()))
    sys.exit(1 if any(totals.values()) else 0)


if __name__ == "__main__":
    main()
