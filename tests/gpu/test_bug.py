"""A template with every mistake a kernel can make, swept in one command on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

BUG = Path(__file__).parents[1] / "data" / "bug" / "bug.cu"
EXPECTED = {
    "none": "ok", "oob": "runtime", "assert": "runtime", "misaligned": "runtime", "hang": "timeout",
    "wrong": "incorrect", "nan": "incorrect", "stale_counter": "incorrect", "race": "unstable",
}  # fmt: skip


def gemmsweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user runs it."""
    return subprocess.run([sys.executable, "-m", "gemmsweep", *arguments], capture_output=True, text=True, timeout=300)


def latest_runs() -> list[dict[str, Any]]:
    runs = json.loads(gemmsweep("report", "--last", "--format", "json").stdout)["runs"]
    return [run for run in runs if not run["finals"]]


def test_every_bug_costs_one_config_and_the_next_sweep_is_healthy() -> None:
    shape = ("--shape", "256x256x256", "--device", "cuda:0")
    swept = gemmsweep("run", "--template", str(BUG), *shape, "--vary", "BUG", "--config-limit", "5s")
    assert swept.returncode == 0, swept.stderr
    assert "Traceback" not in swept.stderr
    runs = latest_runs()
    assert {run["config"]["BUG"]: run["status"] for run in runs} == EXPECTED
    assert all(run["reason"] for run in runs if run["status"] != "ok")

    after = gemmsweep("run", "--template", "naive", *shape, "--vary", "UNROLL=2,4", "--time-limit", "30s")
    assert after.returncode == 0, after.stderr
    assert {run["status"] for run in latest_runs()} == {"ok"}
