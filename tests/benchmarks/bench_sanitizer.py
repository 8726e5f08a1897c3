"""Do compute-sanitizer's memcheck and racecheck find anything in the kernels? A table of templates, dtypes, layouts and errors.

    python tests/benchmarks/bench_sanitizer.py [SANITIZER] [TEMPLATE ...]        needs a GPU; about 5 s per line

Each kernel runs twice on a small ragged problem (`python -m gemmsweep.replay`), one process per tool and kernel, several at a time.
racecheck sees shared memory only; what it makes of asynchronous copies and mbarriers is for a reader to judge: reports are printed,
and minimal_mbarrier.py, a right kernel of a few lines that synchronises as `wgmma` does, is run as the last line for comparison.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob
from itertools import product
from pathlib import Path

from minimal_mbarrier import RIGHT

from gemmsweep import replay
from gemmsweep.analysis.account import offline_device
from gemmsweep.build import build_one
from gemmsweep.errors import UsageError
from gemmsweep.feasible import declared_starts, first_feasible
from gemmsweep.model import Config, Inputs, Problem
from gemmsweep.plan import differences
from gemmsweep.protocol import DeviceSpec
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import find_template
from gemmsweep.verify.cases import Extent, pairs

SHAPE = (132, 136, 72)  # ragged tiles in every direction, rows of whole 16 bytes
SHAPES = {
    "gemv": [(3, 130, 264)],
    "stream": [(13, 144, 544)],
    "skinny": [(60, 130, 264)],
    "wgmma": [SHAPE, (60, 136, 264)],  # other starts are proposed for few rows
}
TOOLS = ("memcheck", "racecheck")
AT_A_TIME = 14
PLACES = ("/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer")


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel on a problem."""

    template: Template
    problem: Problem
    config: Config

    @property
    def title(self) -> str:
        moved = differences(self.template.defaults(), self.config)
        return f"{self.template.name} | {self.problem} | {' '.join(f'{k}={v}' for k, v in moved.items()) or 'defaults'}"


def works(names: list[str]) -> Iterator[Work]:
    """Every template in every dtype and layout, and the starts that its header proposes in one dtype of each layout."""
    device = offline_device("sm_90a")
    for name in names:
        template = find_template(name)
        shapes, kinds = SHAPES.get(name, [SHAPE]), list(pairs(template, Extent()))
        leading = {layout: dtype for dtype, layout in reversed(kinds)}
        for shape, (dtype, layout) in product(shapes, kinds):
            leads = leading[layout] == dtype
            if shape != shapes[0] and not leads:
                continue
            problem = Problem.of(*shape, dtype, layout)
            try:
                configs = [first_feasible(template, problem, device)]
            except UsageError:
                continue
            configs += declared_starts(template, problem, device) if leads else []
            yield from (
                Work(template, problem, config) for index, config in enumerate(configs) if config not in configs[:index]
            )


def checked(sanitizer: str, work: Work, tool: str) -> tuple[str, str]:
    """Errors as the tool counts them, and the beginning of its report where there are some."""
    resolved = render.resolve(work.template, work.problem, render.device_env(offline_device("sm_90a")), work.config)
    build = build_one(render.render(work.template, resolved), work.template.target("sm_90a") or "sm_90a")
    assert build.ok, build.reason
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.json"
        launch = render.plan_launch(work.template, resolved)
        replay.write_spec(path, DeviceSpec("cuda"), work.problem, Inputs(), build, launch)
        names = {f"kernel_name={build.symbols.get(step.kernel, step.kernel)}" for step in launch.steps}
        filters = [word for name in sorted(names) for word in ("--kernel-name", name)]
        # Libraries that look for what a driver has fail 34 times in each process; that is no error of a kernel's.
        api = ["--report-api-errors", "no"] if tool == "memcheck" else []
        line = [sanitizer, "--tool", tool, *api, *filters, sys.executable, "-m", "gemmsweep.replay", str(path)]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    said = ran.stdout + ran.stderr
    total = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", said)
    if total is None:
        return "no summary", "\n".join(said.splitlines()[-4:])
    count = total[1] or total[2]
    return count, "" if count == "0" else "\n".join(line for line in said.splitlines() if line.startswith("========="))[
        :1500
    ]


def main() -> None:
    words = sys.argv[1:]
    found = shutil.which("compute-sanitizer") or next((p for place in PLACES for p in sorted(glob(place))), "")
    sanitizer = words.pop(0) if words and os.path.sep in words[0] else found
    if not sanitizer:
        sys.exit("compute-sanitizer is not here: give its path.")
    wanted = list(works(words or ["naive", "simt", "mma", "wgmma", "gemv", "stream", "skinny"]))
    print(f"| template | problem | config | {' | '.join(TOOLS)} |\n| --- | --- | --- |{' ---: |' * len(TOOLS)}")
    reports = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = [[pool.submit(checked, sanitizer, work, tool) for tool in TOOLS] for work in wanted]
        for work, futures in zip(wanted, answers, strict=True):
            results = [future.result() for future in futures]
            print(f"| {work.title} | {' | '.join(count for count, _ in results)} |", flush=True)
            reports += [f"{work.title}\n{text}" for _, text in results if text]
        minimal = [sys.executable, str(Path(__file__).with_name("minimal_mbarrier.py"))]
        ran = subprocess.run(
            [sanitizer, "--tool", "racecheck", *minimal], capture_output=True, text=True, timeout=300, check=False
        )
        hazards = re.search(r"RACECHECK SUMMARY: (\d+) hazard", ran.stdout + ran.stderr)
        print(
            f"| minimal_mbarrier | bulk copies, two stages | {'right' if RIGHT in ran.stdout else 'wrong'} | – "
            f"| {hazards[1] if hazards else 'no summary'} |"
        )
    print("\n" + "\n\n".join(reports))
    sys.exit(bool(reports))


if __name__ == "__main__":
    main()
