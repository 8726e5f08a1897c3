"""`--device`: what is chosen, and what a user is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsweep.counters import gpus
from gemmsweep.counters.gpus import Facts, NvmlMissingError
from gemmsweep.device import resolve, resolve_device
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.protocol import DeviceSpec

ONE, TWO = "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"


def machine(monkeypatch: pytest.MonkeyPatch, *uuids: str, cupy: bool = True, driver: str = "580.10") -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = [Facts(uuid, index, "NVIDIA H200", 1 << 37, 700000) for index, uuid in enumerate(uuids)]
    monkeypatch.setattr(gpus, "list_gpus", lambda: found)
    monkeypatch.setattr(gpus, "driver_version", lambda: driver)
    monkeypatch.setattr(resolve, "has_cupy", lambda: cupy)


def test_auto_takes_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ONE, TWO)
    assert resolve_device("auto") == DeviceSpec("cuda")
    assert resolve_device("cuda:1") == DeviceSpec("cuda", index=1)
    assert resolve_device(TWO.lower()) == DeviceSpec("cuda", uuid=TWO)
    assert resolve_device("cpu") == DeviceSpec("cpu")


def test_auto_without_a_driver_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Facts]:
        raise NvmlMissingError("no driver")

    monkeypatch.setattr(gpus, "list_gpus", missing)
    assert resolve_device("auto") == DeviceSpec("cpu")
    with pytest.raises(UsageError, match=r"no device 'cuda:0' here\. Choose one of: auto, cpu"):
        resolve_device("cuda:0")


@pytest.mark.parametrize(("driver", "extra"), [("580.159.04", "cuda13"), ("535.54.03", "cuda12")])
def test_a_gpu_without_cupy_stops_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch, driver: str, extra: str
) -> None:
    machine(monkeypatch, ONE, cupy=False, driver=driver)
    for text in ("auto", "cuda:0", ONE):
        with pytest.raises(EnvironmentProblem, match=rf"pip install 'gemmsweep\[{extra}\]'"):
            resolve_device(text)
    assert resolve_device("cpu").kind == "cpu"


def test_a_driver_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ONE, cupy=False, driver="470.57")
    with pytest.raises(EnvironmentProblem, match="too old"):
        resolve_device("auto")


def test_unknown_devices_are_answered_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ONE, TWO)
    for text in ("cuda:2", "tpu", "GPU-3", "cuda:x", ""):
        with pytest.raises(UsageError, match=ONE):
            resolve_device(text)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("", []), ("-1", []), ("1", 1), ("0,1", 2), (TWO, [TWO]), (f"{TWO},{ONE}", [TWO, ONE]), ("GPU-2222", [TWO])],
)
def test_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch, mask: str, expected: list[str] | int) -> None:
    machine(monkeypatch, ONE, TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    found = [gpu.uuid for gpu in resolve.detect()]
    assert (len(found) if isinstance(expected, int) else found) == expected


def test_scripted_device(tmp_path: Path) -> None:
    script = tmp_path / "gpu.toml"
    script.write_text("")
    assert resolve_device(f"scripted:{script}") == DeviceSpec("scripted", script=str(script))
    with pytest.raises(UsageError, match="no device script"):
        resolve_device("scripted:nowhere.toml")


def test_doctor_rows_name_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmsweep.device import describe, report

    machine(monkeypatch, ONE)
    monkeypatch.setattr(report, "capabilities", lambda uuid: [])
    monkeypatch.setattr(report, "CUPY_PACKAGES", ("no-such-package",))
    rows = {name: (found, detail) for name, found, detail in describe()}
    assert rows["NVIDIA driver"] == (True, "580.10")
    assert ONE in rows["GPU 0"][1]
    assert rows["CuPy"] == (False, "pip install 'gemmsweep[cuda13]'")
    assert rows["CPU"][0]


def test_doctor_without_a_driver_says_so() -> None:
    from gemmsweep.device import describe

    rows = {name: found for name, found, _ in describe()}
    assert rows["CPU"]
    assert "NVIDIA driver" in rows
