"""Devices behind one protocol (protocol.Device): CUDA GPUs, the CPU, and a scripted one for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmsweep.device.resolve import Found, detect, resolve_device

if TYPE_CHECKING:
    from gemmsweep.protocol import Device, DeviceSpec

__all__ = ["Found", "describe", "detect", "open_device", "resolve_device"]


def open_device(spec: DeviceSpec) -> Device:
    """The device a spec names; only in a worker process. Raises UsageError or EnvironmentProblem."""
    if spec.kind == "cuda":
        from gemmsweep.device.cuda.device import CudaDevice

        return CudaDevice(spec)
    if spec.kind == "scripted":
        from gemmsweep.device.scripted import ScriptedDevice

        return ScriptedDevice(spec)
    from gemmsweep.device.cpu import CpuDevice

    return CpuDevice(spec)


def describe() -> list[tuple[str, bool, str]]:
    """Rows of `doctor`: name, found, and the reading or the way out. Never raises."""
    from gemmsweep.device import report

    return report.describe()
