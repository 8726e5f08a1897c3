"""`gemmsweep tune` on a real GPU: on time, every problem answered, and what it found is what is exported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
LIMIT_S = 45


def test_it_ends_on_time_with_every_problem_answered(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k,dtype,layout\n1,2048,2048,bf16,nt\n16,2048,2048,fp16,nt\n512,512,512,fp32,nn\n")
    command = [sys.executable, "-m", "gemmsweep"]
    tune = [
        *command,
        "tune",
        "--shapes",
        str(shapes),
        "--time-limit",
        f"{LIMIT_S}s",
        "--format",
        "json",
        "--device",
        "cuda:0",
    ]
    began = time.monotonic()
    ran = subprocess.run(tune, capture_output=True, text=True, timeout=300)
    assert time.monotonic() - began < LIMIT_S + 10
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)["answers"]
    assert all(a["winner"] and a["best"]["finals"] and a["best"]["error"]["max_scaled"] <= 1 for a in answers)
    assert all(len([f for f in a["families"] if f["state"] != "refused"]) >= 2 for a in answers)
    assert any(f["races"] for a in answers for f in a["families"] if f["state"] != "refused"), "an axis was raced"
    exported = subprocess.run([*command, "export-best", "--format", "json"], capture_output=True, text=True, timeout=60)
    assert {b["run_id"] for b in json.loads(exported.stdout)["best"]} == {a["best"]["run_id"] for a in answers}
