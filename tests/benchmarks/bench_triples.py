"""Are kernels right at random shapes? 300 triples per template, dtype and layout, each checked against the oracle; a table.

    python tests/benchmarks/bench_triples.py [COUNT [TEMPLATE ...]]       needs a GPU; --plan before the rest counts only

M, N and K are drawn from SIZES, as far as the template has a config for them: gemv takes M to 4, stream to 16, skinny to 128.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
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
        ran = subprocess.run([*command, "--db", f"{folder}/x.db"], capture_output=True, text=True, check=False)
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
    wrong = 0
    print("| template | dtype | layout | triples | right | wrong |\n| --- | --- | --- | ---: | ---: | ---: |")
    for name in given[1:] or TEMPLATES:
        template = find_template(name)
        for dtype, layout in pairs(template, Extent()):
            problems = triples(template, device, dtype, layout, count)
            found = Counter() if plan else verified(name, problems)
            print(
                f"| {name} | {dtype} | {layout} | {len(problems)} | {found['right']} | {found['wrong']} |", flush=True
            )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
