"""A function of torch raced on a real GPU by the command; no other process of ours may have the GPU open meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

FUNCTIONS = """
def multiplies(a, b, c, task):
    import torch
    def tensor(x):
        x = torch.as_tensor(x)
        return x.view(torch.bfloat16) if task.dtype == "bf16" else x
    b = tensor(b)
    torch.matmul(tensor(a), b.T if task.layout == "nt" else b, out=tensor(c))
"""


def test_torch_races_in_the_same_rounds(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    command = ("run", "--template", "naive", "--shape", "512x512x512", "--dtype", "bf16", "--device", "cuda:0")
    ran = gemmsweep(*command, "--against", f"py:{path}:multiplies", "--time-limit", "30s")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(gemmsweep("report", "--last", "--format", "json").stdout)
    assert [sweep["not_raced"] for sweep in report["sweeps"]] == [{}, {}]
    run = report["runs"][-1]
    found = run["references"]["functions.multiplies"]
    assert found["ratio"] > 0
    assert found["kernels"]
    assert "torch" in found["version"]
    assert run["references"]["cublaslt_best"]["ratio"] > 0


def gemmsweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user runs it."""
    return subprocess.run([sys.executable, "-m", "gemmsweep", *arguments], capture_output=True, text=True, timeout=300)
