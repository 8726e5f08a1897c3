"""What `gemmsweep --help` costs against importing click and rich: the ratio of medians, in fresh processes, interleaved.

python tests/benchmarks/bench_start.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import click, rich": [sys.executable, "-c", "import click, rich.console, rich.table, rich.progress"],
    "gemmsweep --help": [sys.executable, "-m", "gemmsweep", "--help"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - begin)
    medians_ms = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    for name, median_ms in medians_ms.items():
        print(f"{name:<20} {median_ms:6.1f} ms")
    print(f"ratio {medians_ms['gemmsweep --help'] / medians_ms['import click, rich']:.2f}, to stay below 2.5")


if __name__ == "__main__":
    main()
