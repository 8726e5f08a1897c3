"""Two sweeps into one database and a reader that keeps asking: python tests/benchmarks/bench_two_writers.py [SECONDS].

Two CPU sweeps of different problems write into one results file, one after the other for SECONDS (300), while `gemmsweep report`
runs in a loop. Prints how often a command failed, and how often a user would have read of a lock. Both should be 0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmsweep.store import open_store

SWEEPS = ("96x96x96", "64x128x96")
AXES = ("--vary", "BK=64,128", "--vary", "UNROLL=2,4")
LOCK = re.compile(r"\b(locked|lock)\b", re.IGNORECASE)
READS = (("report", "--format", "json"), ("report", "--last"), ("export-best",))


@dataclass
class Tally:
    """What became of the commands of one kind."""

    commands: int = 0
    failed: int = 0
    lock_errors: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, ended: subprocess.CompletedProcess[str], *, allowed: Sequence[int] = (0,)) -> None:
        """Count one command; a lock counts wherever it is mentioned."""
        self.commands += 1
        self.lock_errors += LOCK.search(ended.stderr) is not None
        if ended.returncode not in allowed or "Traceback" in ended.stderr:
            self.failed += 1
            self.messages.append(ended.stderr.strip()[-300:])


def gemmsweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gemmsweep", *arguments], capture_output=True, text=True)


def sweeping(shape: str, end: float, tally: Tally) -> None:
    """Sweep a problem again and again with new data, the last one cut short by its time limit."""
    seed = 0
    while (left_s := end - time.monotonic()) > 2:
        limit = f"{max(2.0, left_s):.0f}s"
        arguments = ("--shape", shape, *AXES, "--seed", str(seed), "--time-limit", limit)
        tally.add(gemmsweep("run", "--device", "cpu", *arguments))
        seed += 1


def reading(end: float, tally: Tally) -> None:
    """Read in a loop; exit code 1 says that there is nothing to show yet."""
    number = 0
    while time.monotonic() < end:
        tally.add(gemmsweep(*READS[number % len(READS)]), allowed=(0, 1))
        number += 1


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    writers, readers = Tally(), Tally()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        os.environ |= {"GEMMSWEEP_DB": str(path), "GEMMSWEEP_CACHE": f"{folder}/cache"}
        with open_store(path):
            pass
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=sweeping, args=(shape, end, writers)) for shape in SWEEPS]
        threads.append(threading.Thread(target=reading, args=(end, readers)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with open_store(path, readonly=True) as store:
            check = store.connection.raw.execute("PRAGMA integrity_check").fetchone()[0]
            runs = sum(1 for _ in store.runs())
    for name, tally in (("sweeps", writers), ("reads", readers)):
        print(f"{tally.commands} {name}, {tally.failed} failed, {tally.lock_errors} lock errors")
        for message in tally.messages[:5]:
            print(f"  {message}")
    print(f"{runs} runs stored in {seconds:.0f} s, integrity_check: {check}")
    sys.exit(1 if writers.failed or readers.failed or writers.lock_errors or readers.lock_errors else 0)


if __name__ == "__main__":
    main()
