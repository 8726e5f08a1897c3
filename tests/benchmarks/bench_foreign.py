"""Is load of another process on the same GPU noticed? python tests/benchmarks/bench_foreign.py [TIMES] (default 10), needs a GPU.

A second process opens the GPU once and is idle; that must not count. Then `gemmsweep run` TIMES times while it multiplies: in
every other sweep from before the command begins, in the rest from the middle of the first race on. Each must come out contended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gemmsweep.store import Filter, open_store

LOAD = """
import sys, time, cupy
x = cupy.ones((4096, 4096), dtype=cupy.float32)
cupy.cuda.runtime.deviceSynchronize()
print("ready", flush=True)
for line in sys.stdin:
    end = time.monotonic() + float(line)
    while time.monotonic() < end:
        x @ x
        cupy.cuda.runtime.deviceSynchronize()
    print("done", flush=True)
"""
SWEEP = ("run", "--template", "simt", "--shape", "4096x4096x4096", "--regime", "equal-clock", "--vary", "UNROLL=8,16")
LOAD_S = 6.0


def sweep(path: Path, other: subprocess.Popen[str] | None, *, early: bool) -> tuple[bool, float]:
    """Whether a sweep's axis came out contended, and its seconds."""
    assert other is None or other.stdin is not None
    begin = time.monotonic()
    if other is not None and early:
        tell(other)
    command = [sys.executable, "-m", "gemmsweep", *SWEEP, "--remeasure", "--db", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if other is not None and not early and line.startswith("racing"):
                tell(other)
                early = True  # once
    with open_store(path, readonly=True) as store:
        axis = next(s for s in store.sweeps(Filter(last=True)) if s["kind"] == "axis")
    if other is not None and other.stdout is not None:
        other.stdout.readline()
    return bool(axis["contended"]), time.monotonic() - begin


def tell(other: subprocess.Popen[str]) -> None:
    assert other.stdin is not None
    other.stdin.write(f"{LOAD_S}\n")
    other.stdin.flush()


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GEMMSWEEP_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "foreign.db"
        with subprocess.Popen(
            [sys.executable, "-c", LOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            idle, _ = sweep(path, None, early=True)
            print(f"beside an idle process: {'contended (wrong)' if idle else 'not contended'}", flush=True)
            noticed = 0
            for place in range(times):
                contended, spent_s = sweep(path, other, early=place % 2 == 0)
                noticed += contended
                when = "before" if place % 2 == 0 else "during"
                print(f"load from {when} the race: {'noticed' if contended else 'MISSED'}, {spent_s:.1f} s", flush=True)
            other.kill()
    print(f"noticed {noticed} of {times}")
    sys.exit(idle or noticed < times)


if __name__ == "__main__":
    main()
