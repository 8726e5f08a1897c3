"""The scripted device stands in for a GPU in other tests: right by default, wrong where told so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gemmsweep import check
from gemmsweep.device import open_device
from gemmsweep.errors import UsageError
from gemmsweep.model import Build, Inputs, Launch, Problem
from gemmsweep.oracle import make_oracle
from gemmsweep.protocol import Device, DeviceFailure, DeviceSpec

BUILD, LAUNCH = Build(True, "k", "nvrtc", "sm_90", ()), Launch(())


def scripted(folder: Path, script: str) -> Device:
    path = folder / "gpu.toml"
    path.write_text(script)
    return open_device(DeviceSpec("scripted", script=str(path)))


def rules(folder: Path, **values: object) -> Device:
    lines = "\n".join(f"{key} = {value!r}" for key, value in values.items())
    return scripted(folder, f"[[rule]]\nmatch = 'x'\n{lines}\n")


def verdict(device: Device, problem: Problem) -> tuple[str, str]:
    oracle = make_oracle(np, problem, Inputs())
    device.prepare(problem, oracle.random.a, oracle.random.b, oracle.random.c, "cold", oracle.bias)
    device.load("x", BUILD, LAUNCH)
    checked = check.check(device, "x", oracle, burst_ms=0.3)
    return checked.status, checked.reason


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_results_pass_the_checks_by_default(tmp_path: Path, dtype: str, layout: str) -> None:
    assert verdict(scripted(tmp_path, ""), Problem.of(13, 6, 17, dtype, layout, ldd=9)) == ("ok", "")
    bias = Problem.of(13, 6, 17, dtype, layout, epilogue="bias+leaky_relu")
    assert verdict(scripted(tmp_path, ""), bias) == ("ok", "")


@pytest.mark.parametrize("result", ["wrong", "nan", "zero", "skip", "outside"])
def test_results_made_wrong_are_caught(tmp_path: Path, result: str) -> None:
    assert verdict(rules(tmp_path, result=result), Problem.of(13, 6, 17))[0] == "incorrect"


def test_times_follow_the_script(tmp_path: Path) -> None:
    device = rules(tmp_path, time_us=50.0, noise_pct=1.0, throttle=[0, 4], clock_mhz=1410, power_mw=699000)
    again = rules(tmp_path, time_us=50.0, noise_pct=1.0)
    for one in (device, again):
        one.prepare(Problem.of(2, 2, 2), *(np.zeros((2, 2), np.float32) for _ in range(3)), "cold")
        one.load("x", BUILD, LAUNCH)
        assert one.calibrate("x", 0.1) == 50.0
    bursts = [device.burst("x") for _ in range(50)]
    assert [b.burst_ns for b in bursts] == [again.burst("x").burst_ns for _ in range(50)]
    assert np.mean([b.burst_ns / b.launches for b in bursts]) == pytest.approx(50e3, rel=0.01)
    assert np.std([b.burst_ns / b.launches for b in bursts]) == pytest.approx(500, rel=0.4)
    assert [b.throttle for b in bursts[:3]] == [0, 4, 0]
    assert (bursts[0].sm_clock_mhz, bursts[0].power_mw) == (1410, 699000)


def test_drift_and_late_faults(tmp_path: Path) -> None:
    device = rules(tmp_path, drift_pct=1.0, burst="illegal", after=2)
    device.prepare(Problem.of(2, 2, 2), *(np.zeros((2, 2), np.float32) for _ in range(3)), "cold")
    device.load("x", BUILD, LAUNCH)
    device.calibrate("x", 0.1)
    first, second = (device.burst("x").burst_ns for _ in range(2))
    assert second == pytest.approx(1.01 * first)
    with pytest.raises(DeviceFailure) as caught:
        device.burst("x")
    assert caught.value.fatal


@pytest.mark.parametrize(("kind", "error"), [("refuse", DeviceFailure), ("exception", RuntimeError)])
def test_faults_at_load_hit_only_their_label(tmp_path: Path, kind: str, error: type[Exception]) -> None:
    device = rules(tmp_path, load=kind)
    with pytest.raises(error):
        device.load("x=1", BUILD, LAUNCH)
    device.load("y=1", BUILD, LAUNCH)
    assert device.load_reference("cublas", 1) == ("Scripted 1.0", ("scripted_kernel",))


def test_a_crash_kills_the_process(tmp_path: Path) -> None:
    script = tmp_path / "gpu.toml"
    script.write_text("open = 'crash'\n")
    imports = "from gemmsweep.device import open_device; from gemmsweep.protocol import DeviceSpec"
    code = f"{imports}; open_device(DeviceSpec('scripted', script={str(script)!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -11


def test_fields_of_the_device_can_be_set(tmp_path: Path) -> None:
    device = scripted(tmp_path, "device = { sm_count = 4, arch = 'sm_75' }\n")
    assert (device.info.sm_count, device.info.arch, device.info.kind) == (4, "sm_75", "scripted")


@pytest.mark.parametrize("script", ["[[rule]]\nspeed = 1\n", "rule = [", "device = { cores = 3 }"])
def test_scripts_that_cannot_be_meant(tmp_path: Path, script: str) -> None:
    with pytest.raises(UsageError, match="device script"):
        scripted(tmp_path, script)
