"""Are kernels right at random shapes? 300 triples per template, dtype and layout, each checked against the oracle; a table.

    python tests/benchmarks/bench_triples.py [COUNT [TEMPLATE ...]]       needs a GPU; --plan before the rest counts only

M, N and K are drawn from SIZES, as far as the template has a config for them: gemv takes M to 4, stream to 16, skinny to 128. The
others are checked at LARGE cubed, too.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gemmsweep.analysis.account import offline_device
from gemmsweep.errors import UsageError
from gemmsweep.feasible import first_feasible
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import find_template
from gemmsweep.verify.cases import Extent, pairs

SIZES = (1, 7, 8, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 1000)
TEMPLATES = {
    "naive": 1000,
    "simt": 1000,
    "mma": 1000,
    "wgmma": 1000,
    "gemv": 4,
    "stream": 16,
    "skinny": 128,
}  # and the most rows
FEW_ROWS = (2, 3, 4)
LARGE = 8192
AT_A_TIME = 10  # commands: most of a check is the host's work
HOPELESS = 20  # problems without a config, after which none has one
ARCH, SEED = "sm_90a", 20261130


def triples(template: Template, device: DeviceInfo, dtype: str, layout: str, count: int) -> list[Problem]:
    """`count` different problems, or all there are."""
    rows = [m for m in (*SIZES, *FEW_ROWS) if m <= TEMPLATES.get(template.name, 1000)]
    every = [(m, n, k) for m in rows for n in SIZES for k in SIZES]
    random.Random(f"{SEED} {template.name} {dtype} {layout}").shuffle(every)
    found: list[Problem] = []
    for tried, shape in enumerate(every):
        problem = Problem.of(*shape, dtype, layout)
        try:
            first_feasible(template, problem, device)
        except UsageError:
            if tried > HOPELESS and not found:  # mma takes fp32 only as sums of fp16 products: another accuracy class
                break
            continue
        found.append(problem)
        if len(found) == count:
            break
    return found


def verified(template: str, problems: list[Problem]) -> Counter[str]:
    """right and wrong, by `gemmsweep verify`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.csv"
        lines = [f"{p.m},{p.n},{p.k},{p.dtype},{p.layout}" for p in problems]
        path.write_text("\n".join(["m,n,k,dtype,layout", *lines]) + "\n")
        command = [sys.executable, "-m", "gemmsweep", "verify", template, "--shapes", str(path), "--format", "json"]
        # Locks lie in TMPDIR. They keep commands from disturbing each other's times, and nothing is timed here.
        alone = {**os.environ, "TMPDIR": folder}
        ran = subprocess.run(
            [*command, "--db", f"{folder}/x.db"], capture_output=True, text=True, check=False, env=alone
        )
    if not ran.stdout.strip():
        sys.exit(ran.stderr)
    (result,) = json.loads(ran.stdout)["templates"]
    return Counter(right=result["right"], wrong=result["wrong"])


def main() -> None:
    words = sys.argv[1:]
    plan = "--plan" in words
    given = [word for word in words if word != "--plan"]
    count = int(given[0]) if given else 300
    device = offline_device(ARCH)
    print("| template | dtype | layout | problems | right | wrong |\n| --- | --- | --- | ---: | ---: | ---: |")

    def line(name: str, dtype: str, layout: str) -> tuple[str, bool]:
        problems = triples(find_template(name), device, dtype, layout, count)
        if problems and TEMPLATES.get(name, LARGE) >= max(SIZES):
            problems.append(Problem.of(LARGE, LARGE, LARGE, dtype, layout))
        found = Counter() if plan or not problems else verified(name, problems)
        counts = f"{len(problems)} | {found['right']} | {found['wrong']}"
        return f"| {name} | {dtype} | {layout} | {counts} |", plan or found["right"] == len(problems)

    works = [(name, *pair) for name in given[1:] or TEMPLATES for pair in pairs(find_template(name), Extent())]
    all_right = True
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for text, right in pool.map(lambda work: line(*work), works):
            print(text, flush=True)
            all_right = all_right and right
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
