"""Host memory of a dry run over very many configs: python tests/benchmarks/bench_memory.py [CONFIGS] (default 10,000).

A copy of `naive` declares an axis of CONFIGS values; a shape list repeats three values over CONFIGS / 3 problems. Target: each
below 400 MB. The same for 10 configs shows what is due to their number.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gemmsweep.template.locations import templates_folder

LIMIT_MB = 400
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def wide_template(folder: Path, values: int) -> Path:
    """`naive` with an axis of that many values."""
    text = (templates_folder() / "naive.cu").read_text()
    wide = f"values = [{', '.join(map(str, range(1, values + 1)))}]"
    text, count = re.subn(r"(?<=// UNROLL = \{ default = 4,  )values = \[[\d, ]+\]", wide, text)
    assert count == 1, "the header of naive no longer declares UNROLL like that"
    path = folder / f"naive_{values}.cu"
    path.write_text(text)
    return path


def shape_list(folder: Path, shapes: int) -> Path:
    path = folder / f"shapes_{shapes}.csv"
    path.write_text("m,n,k\n" + "".join(f"{64 + i},64,{1 + i % 97}\n" for i in range(shapes)))
    return path


def dry_run(what: str, *arguments: str) -> int:
    """Peak resident memory of one dry run, MB; printed with its time."""
    command = [sys.executable, "-m", "gemmsweep", "run", "--dry-run", "--arch", "sm_90a", *arguments]
    begin = time.perf_counter()
    answer = subprocess.check_output([sys.executable, "-c", MEASURE, *command], text=True)
    code, peak_mb = map(int, answer.split())
    print(f"{what}: {peak_mb} MB, {time.perf_counter() - begin:.1f} s" + (f", exit code {code}" if code else ""))
    return peak_mb if code == 0 else sys.maxsize


def main() -> None:
    configs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    worst_mb = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (10, configs):
            wide = ("--template", str(wide_template(folder, count)), "--vary", "UNROLL", "--shape", "512x512x512")
            listed = ("--template", "naive", "--vary", "UNROLL=1,2,4", "--shapes", str(shape_list(folder, count // 3)))
            worst_mb = max(worst_mb, dry_run(f"one axis of {count} values", *wide))
            worst_mb = max(worst_mb, dry_run(f"{count // 3} shapes of 3 values", *listed))
    print(f"limit {LIMIT_MB} MB: {'kept' if worst_mb < LIMIT_MB else 'EXCEEDED'}")
    sys.exit(0 if worst_mb < LIMIT_MB else 1)


if __name__ == "__main__":
    main()
