"""Run a built kernel twice on random data and nothing else: what a profiler is pointed at. `python -m gemmsweep.replay SPEC`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmsweep.device import open_device
from gemmsweep.elements import from_float
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import DTYPES, Build, Inputs, Launch, Problem, Step, TensorMap, Workspace
from gemmsweep.oracle import random_matrices
from gemmsweep.protocol import DeviceSpec

TIMES = 2  # the first warms up: caches, lazily loaded code


def write_spec(path: Path, device: DeviceSpec, problem: Problem, inputs: Inputs, build: Build, launch: Launch) -> None:
    """All that `main` needs, as JSON."""
    build_facts = {"path": build.path, "symbols": dict(build.symbols), "arch": build.arch}
    spec = {"device": asdict(device), "problem": asdict(problem), "inputs": asdict(inputs), "launch": asdict(launch)}
    path.write_text(json.dumps({**spec, "build": build_facts}))


def launch_of(stored: Mapping[str, Any]) -> Launch:
    """A `Launch` from its plain JSON, as runs keep it."""

    def triple(values: Any) -> tuple[int, int, int]:
        x, y, z = values
        return x, y, z

    steps = tuple(
        Step(s["kernel"], tuple(s["args"]), triple(s["grid"]), triple(s["block"]), s["smem_bytes"])
        for s in stored["steps"]
    )
    maps = tuple(
        TensorMap(**{**m, "box": tuple(m["box"]), "extent": tuple(m.get("extent", ()))})
        for m in stored.get("tensor_maps", ())
    )
    workspaces = tuple(Workspace(**w) for w in stored.get("workspaces", ()))
    rest = {name: stored[name] for name in ("deterministic", "reads_c", "threads") if name in stored}
    return Launch(steps, workspaces, maps, **rest)


def main(path: str) -> None:
    """Prepare, load, launch."""
    spec = json.loads(Path(path).read_text())
    problem, inputs = Problem(**spec["problem"]), Inputs(**spec["inputs"])
    device = open_device(DeviceSpec(**spec["device"]))
    matrices = random_matrices(device.xp, problem, inputs)
    axis, bias = parse_epilogue(problem.epilogue).bias_axis, None
    if axis is not None:
        ones = device.xp.ones(problem.n if axis == "n" else problem.m, dtype=device.xp.float32)
        bias = from_float(device.xp, ones, DTYPES[problem.dtype][1])
    device.prepare(problem, matrices.a, matrices.b, matrices.c, "hot", bias)
    facts = spec["build"]
    build = Build(True, "", "", facts["arch"], (), path=facts["path"], symbols=facts["symbols"])
    device.load("run", build, launch_of(spec["launch"]))
    for _ in range(TIMES):
        device.launch("run", device.ring[0])
    device.close()


if __name__ == "__main__":
    main(sys.argv[1])
