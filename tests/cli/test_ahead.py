"""Builds of later axes: begun while an axis is raced, from where it will leave off, and never made twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from screen import Run

from gemmsweep import sweep
from gemmsweep.build import Builders
from gemmsweep.contest import Contest

COMPILE_S = 0.5
AXES = ("UNROLL=2,4,8", "BM=4,8,16", "BN=32,64,16", "ORDER")
MOVING = "".join(
    f'[[rule]]\nmatch = "{match}"\ntime_us = {time_us}\nnoise_pct = 0.1\n'
    for match, time_us in (("UNROLL=8$", 90), ("BM=16$", 80), ("BN=64$", 70), ("ORDER=strided$", 60), ("=", 120))
)
# A compiler that takes its time, then notes the hash of what it was given: what had to make room has compiled nothing.
NVCC = f"""#!/bin/sh
if [ "$1" = --version ]; then echo "release 99.0, V99.0.1"; exit 0; fi
for source; do :; done
sleep {COMPILE_S}
cat "$source" *.cuh 2>/dev/null | sha256sum | cut -c-64 >> "$COMPILED"
echo ELF > kernel.cubin
echo "ptxas info    : Compiling entry function 'gemm' for 'sm_90'"
echo "ptxas info    : Used 40 registers, 380 bytes cmem[0]"
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvcc").write_text(NVCC)
    (folder / "nvcc").chmod(0o755)
    (tmp_path / "compiled").touch()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("COMPILED", str(tmp_path / "compiled"))
    monkeypatch.setattr("gemmsweep.build.pool._cores", lambda: 4)  # they sleep
    return tmp_path / "compiled"


def waited(monkeypatch: pytest.MonkeyPatch, built: Callable[..., Any] = Builders.build_all) -> list[float]:
    """Seconds that each call of build_all took from now on."""
    spent: list[float] = []

    def build_all(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return built(*arguments, **named)
        finally:
            spent.append(time.monotonic() - began)

    monkeypatch.setattr(Builders, "build_all", build_all)
    return spent


def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race takes some time, as on a device that is not scripted."""
    order = Contest.order

    def slow(self: Contest, rng: Any) -> list[str]:
        time.sleep(0.05)
        return order(self, rng)

    monkeypatch.setattr(Contest, "order", slow)


def test_a_sweep_that_moves_finds_its_next_axis_built_and_compiles_nothing_twice(
    gemmsweep: Run, scripted: Callable[[str], str], compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    axes = [word for axis in AXES for word in ("--vary", axis)]
    command = ("run", "--template", "naive", "--shape", "96x64x48", "--start", "defaults", *axes, "--compiler", "nvcc")
    slowly(monkeypatch)

    def swept(name: str) -> list[float]:
        monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / f"cache {name}"))
        compiled.write_text("")
        with monkeypatch.context() as patch:
            spent = waited(patch)
            assert gemmsweep(*command, "--device", scripted(MOVING), "--db", str(tmp_path / f"{name}.db")).code == 0
        assert set(Counter(compiled.read_text().split()).values()) == {1}
        report = gemmsweep("report", "--last", "--format", "json", "--db", str(tmp_path / f"{name}.db")).json
        moved = [run["config"] for run in report["runs"] if run["run_id"] == report["sweeps"][-1]["winner_run_id"]]
        assert moved == [{"UNROLL": 8, "BM": 16, "BN": 64, "ORDER": "strided"}]
        return spent

    with_waits = swept("with")
    monkeypatch.setattr(sweep, "Ahead", lambda *_: nullcontext(_Idle()))
    without_waits = swept("without")
    # The first axis is waited for; each of the three after it starts elsewhere than was known before.
    assert sum(without_waits[1:]) >= 3 * COMPILE_S
    assert sum(with_waits[1:]) < sum(without_waits[1:]) - COMPILE_S


class _Idle:
    def build(self, turns: object) -> None: ...
