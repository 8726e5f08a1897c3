"""Seconds per config of a long sweep, all included, and the wall time in which neither a compiler nor the device works.

    python tests/benchmarks/bench_sweep.py [arguments of gemmsweep run; default: 40 simt configs at 4096^3]

Runs into a database and a build cache of its own, so nothing is reused. Builds and the requests to the worker process are taken as
the time in which compiler and device work.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from gemmsweep.build.pool import Builders
from gemmsweep.link import Link
from gemmsweep.store import Filter, open_store
from gemmsweep.worker import Worker

AXES = ("BK", "BN", "BM", "TM", "STAGES", "PAD", "SWIZZLE", "VEC", "UNROLL", "GROUP_M")
DEFAULT = ["--template", "simt", "--shape", "4096x4096x4096", *(word for axis in AXES for word in ("--vary", axis))]
BUSY: list[tuple[float, float]] = []
SPENT_S: dict[str, list[float]] = defaultdict(list)


def timed(owner: type, name: str, *, busy: bool = True) -> None:
    """Record when a method is at work, and on which request."""
    original: Callable[..., Any] = getattr(owner, name)

    def method(*arguments: Any, **named: Any) -> Any:
        begin = time.monotonic()
        try:
            return original(*arguments, **named)
        finally:
            end = time.monotonic()
            if busy:
                BUSY.append((begin, end))
            SPENT_S[arguments[1] if name == "_ask" else name].append(end - begin)

    setattr(owner, name, method)


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Total length of intervals that may overlap."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    from gemmsweep.cli.main import main as gemmsweep

    for owner, name in ((Worker, "_ask"), (Worker, "finish_round"), (Builders, "build_all")):
        timed(owner, name)
    timed(Link, "start", busy=False)  # start-up is shown, and counted as idle
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GEMMSWEEP_DB": f"{folder}/bench.db", "GEMMSWEEP_CACHE": f"{folder}/cache"}
        begin = time.monotonic()
        try:
            gemmsweep(["run", *(sys.argv[1:] or DEFAULT)])
        except SystemExit as end:
            print(f"exit code {end.code}")
        wall_s = time.monotonic() - begin
        with open_store(f"{folder}/bench.db", readonly=True) as store:
            configs = sum(run["varied"] is not None for run in store.runs(Filter()))
    idle_s = wall_s - union_s(BUSY)
    print(f"{configs} configs in {wall_s:.1f} s: {wall_s / configs:.2f} s per config, finals and start-up included")
    for name, spent in sorted(SPENT_S.items(), key=lambda item: -sum(item[1])):
        print(f"{name:14} {len(spent):5} x {1e3 * sum(spent) / len(spent):8.1f} ms = {sum(spent):6.2f} s")
    print(f"neither compiler nor device at work: {idle_s:.1f} s, {100 * idle_s / wall_s:.0f}%")


if __name__ == "__main__":
    main()
