"""Are kernels right at random shapes? 300 triples per template, dtype and layout, each checked against the oracle; a table.

    python tests/benchmarks/bench_triples.py [COUNT [TEMPLATE[:DTYPE:LAYOUT] ...]]      needs a GPU; --plan counts only

M, N and K are drawn from SIZES, as far as the template has a config for them: gemv takes M to 4, stream to 16, skinny to 128. The
others are checked at LARGE cubed, too. Where the vendor library's own result is beyond the bound, a kernel has no yardstick: such
triples are counted apart, and as many are drawn beyond COUNT (SPARE) that COUNT remain. What is wrong is told below the table.
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
SPARE = 20  # triples beyond COUNT
NO_YARDSTICK = "itself is off"
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


def verified(template: str, problems: list[Problem]) -> tuple[Counter[str], list[str]]:
    """How many are right, wrong and without a yardstick by `gemmsweep verify`, and what it says of the wrong ones."""
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
    said = json.loads(ran.stdout)
    (result,) = said["templates"]
    wrong = [failure for failure in said["failures"] if NO_YARDSTICK not in failure["reason"]]
    without = len(said["failures"]) - len(wrong)
    told = [f"{failure['command']}: {failure['reason']}" for failure in wrong]
    return Counter(right=result["right"], wrong=len(wrong), without=without), told


def wanted(words: list[str]) -> list[tuple[str, str, str]]:
    """Template, dtype and layout of every line."""
    named = [tuple(word.split(":")) for word in words]
    whole = [word[0] for word in named if len(word) == 1] or ([] if named else list(TEMPLATES))
    every = [(name, *pair) for name in whole for pair in pairs(find_template(name), Extent())]
    return every + [(word[0], word[1], word[2]) for word in named if len(word) == 3]


def main() -> None:
    words = sys.argv[1:]
    plan = "--plan" in words
    given = [word for word in words if word != "--plan"]
    count = int(given[0]) if given else 300
    device = offline_device(ARCH)
    heads = ("problems", "right", "wrong", "no yardstick")
    print(f"| template | dtype | layout | {' | '.join(heads)} |\n| --- | --- | --- |{' ---: |' * len(heads)}")

    def line(name: str, dtype: str, layout: str) -> tuple[str, list[str]]:
        problems = triples(find_template(name), device, dtype, layout, count + SPARE)
        if problems and TEMPLATES.get(name, LARGE) >= max(SIZES):
            problems.append(Problem.of(LARGE, LARGE, LARGE, dtype, layout))
        found, told = (Counter[str](), []) if plan or not problems else verified(name, problems)
        counts = " | ".join(str(n) for n in (len(problems), found["right"], found["wrong"], found["without"]))
        if not plan and problems and found.total() < len(problems):
            told.append(f"{name} {dtype} {layout}: only {found.total()} of {len(problems)} were checked")
        return f"| {name} | {dtype} | {layout} | {counts} |", told

    everything = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for text, told in pool.map(lambda work: line(*work), wanted(given[1:])):
            print(text, flush=True)
            everything += told
    print("\n" + "\n".join(everything))
    sys.exit(bool(everything))


if __name__ == "__main__":
    main()
