"""Do our times and cycles agree with Nsight Compute's and with an event loop of torch's? A table in Markdown.

    python tests/benchmarks/bench_agreement.py [NCU]        needs a GPU, torch, and ncu that may count

Kernels from about 3 us to 5 ms, each in this process: bursts of ours (graphs, median of BURSTS, effective SM
clock) in turn with the same launches on a stream of torch's, captured by torch and timed by torch's events around its own
graph; then under ncu. What is known to differ is accounted for:
- The card rests before each burst. A product that heats it runs at 1400 MHz, where DRAM and L2, whose clocks do not fall,
  cost it fewer SM cycles than under ncu, which runs one launch at full clock.
- Everything is hot, one set of buffers.
- torch's events lie outside its graph: a kernel that waits lets the host be ahead, or the graph's start would count.
- A launch alone on an idle card finds its caches of instructions and addresses cold: ncu counts 700 to 1,300 cycles more of
  it. So it counts a range of launches here, a burst of RANGE_MS.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmsweep import oracle, replay
from gemmsweep.build import build_one
from gemmsweep.counters import ncu
from gemmsweep.device import open_device
from gemmsweep.model import Build, Inputs, Launch, Problem
from gemmsweep.protocol import Burst, DeviceSpec
from gemmsweep.template import render
from gemmsweep.template.library import find_template

SPEC = DeviceSpec("cuda")
BURSTS, BURST_MS, REST_S = 9, 5.0, 0.1
CYCLES = "sm__cycles_elapsed.max"
RANGE_MS = 20.0  # the start of a range is 0.1% of it
WAIT_CYCLES = 10_000_000  # 5 ms: longer than the host takes to start a graph
COOPERATIVE = {"SCHEDULE": "cooperative", "BN": 256, "STAGES": 4, "STAGGER": 3}
KERNELS: tuple[tuple[str, Problem, Mapping[str, Any]], ...] = (
    ("gemv", Problem.of(1, 2048, 2048, "bf16", "nt"), {"WARPS": 4, "SPLIT_K": 4}),
    ("gemv", Problem.of(1, 4096, 4096, "bf16", "nt"), {"WARPS": 4, "SPLIT_K": 4}),
    ("wgmma", Problem.of(2048, 2048, 2048, "bf16", "nt"), {**COOPERATIVE, "CLUSTER_M": 1, "TAIL": 1}),
    ("wgmma", Problem.of(4096, 4096, 4096, "bf16", "nt"), COOPERATIVE),
    ("mma", Problem.of(4096, 4096, 4096, "fp16", "nt"), {}),
    ("simt", Problem.of(4096, 4096, 4096, "fp32", "nn"), {}),
    ("simt", Problem.of(4096, 4096, 4096, "fp32", "nn"), {"BK": 64}),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Per launch; `us` None: only cycles are comparable."""

    us: float | None
    cycles: float | None


def built(template: str, problem: Problem, moved: Mapping[str, Any], device: Any) -> tuple[Build, Launch]:
    found = find_template(template)
    resolved = render.resolve(found, problem, render.device_env(device.info), {**found.defaults(), **moved})
    assert not render.broken_rules(found, resolved), render.broken_rules(found, resolved)
    source = render.render(found, resolved)
    build = build_one(source, found.target(device.info.arch) or device.info.arch)
    assert build.ok, build.reason
    return build, render.plan_launch(found, resolved)


def by_us(device: Any, label: str) -> Burst:
    """One burst of ours, of a rested card."""
    time.sleep(REST_S)
    return device.burst(label)


def reading(bursts: Sequence[Burst]) -> Reading:
    """Median of bursts, and cycles at the effective clock of each."""
    us = [burst.burst_ns / burst.launches / 1e3 for burst in bursts]
    cycles = [burst.burst_ns / burst.launches / 1e3 * burst.sm_clock_mhz for burst in bursts if burst.sm_clock_mhz]
    return Reading(statistics.median(us), statistics.median(cycles) if cycles else None)


class TorchLoop:
    """The same launches, captured and timed by torch."""

    def __init__(self, device: Any, label: str, launches: int) -> None:
        import torch
        from cuda.bindings import driver

        item, sets = device._labels[label], len(device.ring)
        self.launches, self.stream, self.graph = launches, torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
            for index in range(launches):
                item.enqueue(stream, device.ring[index % sets])

    def us(self) -> float:
        """One replay, of a rested card."""
        import torch

        time.sleep(REST_S)
        with torch.cuda.stream(self.stream):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(WAIT_CYCLES)
            begin.record()
            self.graph.replay()
            end.record()
            end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.launches


def by_ncu(tool: str, problem: Problem, build: Build, launch: Launch) -> float | None:
    """SM cycles per launch, counted by ncu over a range of launches: a burst of ours in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.json"
        replay.write_spec(path, SPEC, problem, Inputs(), build, launch)
        line = [
            tool, "--replay-mode", "app-range", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--cache-control", "none", "--metrics", CYCLES, sys.executable, __file__, "--range", str(path),
        ]  # fmt: skip
        ran = subprocess.run(line, capture_output=True, text=True, check=False)
        told = re.search(r"launches (\d+)", ran.stdout)
    found = {counter.name: counter.value for counter in ncu.parse(ran.stdout)}
    cycles = found.get("ncu_cycles")
    if cycles is None or told is None:
        print(ncu.advice(ran.stdout + ran.stderr), ran.stderr[-300:], file=sys.stderr)
        return None
    return cycles / int(told[1])


def one_range(path: Path) -> None:
    """What ncu is pointed at: a burst of ours between the marks of a range."""
    import cupy

    spec = json.loads(path.read_text())
    problem, facts = Problem(**spec["problem"]), spec["build"]
    device: Any = open_device(SPEC)
    prepare(device, problem)
    build = Build(True, "", "", facts["arch"], (), path=facts["path"], symbols=facts["symbols"])
    device.load("run", build, replay.launch_of(spec["launch"]))
    device.calibrate("run", RANGE_MS)
    launches = device.burst("run").launches
    time.sleep(REST_S)
    cupy.cuda.profiler.start()
    device.replay("run")
    cupy.cuda.profiler.stop()
    print(f"launches {launches}", flush=True)
    device.close()


def prepare(device: Any, problem: Problem) -> None:
    matrices = oracle.random_matrices(device.xp, problem, Inputs())
    device.prepare(problem, matrices.a, matrices.b, matrices.c, "hot", None)


def main() -> None:
    tool = sys.argv[1] if len(sys.argv) > 1 else ncu.find()
    device = open_device(SPEC)
    print(f"{device.info.name}\n")
    print("| kernel | problem | µs | torch µs | off | cycles | ncu cycles | off |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for template, problem, moved in KERNELS:
        prepare(device, problem)
        build, launch = built(template, problem, moved, device)
        device.load("run", build, launch)
        device.calibrate("run", BURST_MS)
        loop = TorchLoop(device, "run", device.burst("run").launches)
        pairs = [(by_us(device, "run"), loop.us()) for _ in range(BURSTS)]
        mine, torch_us = reading([burst for burst, _ in pairs]), statistics.median(us for _, us in pairs)
        device.unload("run")
        counted = by_ncu(tool, problem, build, launch) if tool else None
        row = [
            template, str(problem), f"{mine.us:.2f}", f"{torch_us:.2f}", percent(torch_us, mine.us), whole(mine.cycles),
            whole(counted), percent(counted, mine.cycles),
        ]  # fmt: skip
        print(f"| {' | '.join(row)} |", flush=True)
    device.close()


def percent(other: float | None, mine: float | None) -> str:
    return "–" if not other or not mine else f"{100 * (other / mine - 1):+.1f}%"


def whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--range"]:
        one_range(Path(sys.argv[2]))
    else:
        main()
