"""What `doctor` tells of devices: driver, GPUs, Python packages for them, readable counters, surroundings, CPU."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gemmsweep.counters import gpus, ncu
from gemmsweep.counters.capabilities import capabilities
from gemmsweep.device import machine
from gemmsweep.device.resolve import Found, detect, install_line
from gemmsweep.errors import EnvironmentProblem

Row = tuple[str, bool, str]  # name, found, detail
CUPY_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def describe() -> list[Row]:
    """Rows of name, found, and the reading or the way out. Never raises."""
    driver = gpus.driver_version()
    found = detect()
    rows = [driver_row(driver)]
    for index, gpu in enumerate(found):
        rows += gpu_rows(index, gpu)
    if driver:
        rows += package_rows(driver)
    return [*rows, *surroundings(), cpu_row()]


def driver_row(driver: str | None) -> Row:
    if driver:
        return "NVIDIA driver", True, driver
    try:
        gpus.start()
    except gpus.NvmlMissingError as error:
        return "NVIDIA driver", False, f"{error}: the CPU is used"
    return "NVIDIA driver", False, "version unreadable"


def gpu_rows(index: int, gpu: Found) -> list[Row]:
    memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / 2**30:.0f} GiB"
    limit = "" if gpu.power_limit_w is None else f", {gpu.power_limit_w:.0f} W"
    counters: list[Row] = [(f"  {row.name}", row.readable, row.detail) for row in capabilities(gpu.uuid)]
    return [(f"GPU {index}", True, f"{gpu.name}{memory}{limit}, {gpu.uuid}"), *counters]


def package_rows(driver: str) -> list[Row]:
    """CuPy and what the cuBLAS reference needs, with the install line that fits the driver."""
    try:
        line = install_line(driver)
    except EnvironmentProblem as problem:
        line = str(problem)
    wanted = {"CuPy": CUPY_PACKAGES, "cuda-bindings": ("cuda-bindings",), "nvmath-python": ("nvmath-python",)}
    return [package_row(name, packages, line) for name, packages in wanted.items()]


def package_row(name: str, packages: tuple[str, ...], line: str) -> Row:
    for package in packages:
        try:
            return name, True, f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return name, False, line


def surroundings() -> list[Row]:
    """What hides counters: a container, WSL2; and Nsight Compute, which reads what NVML cannot."""
    rows: list[Row] = []
    tool = ncu.find()
    rows.append(("ncu", tool is not None, tool or "not found: bank conflicts are not counted"))
    if "microsoft" in kernel_text().lower():
        rows.append(("WSL2", True, "hardware counters and some NVML fields are the host's to enable"))
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        rows.append(("container", True, "other users' processes on the GPU may be invisible; ncu may be refused"))
    return rows


def kernel_text() -> str:
    try:
        return Path("/proc/version").read_text()
    except OSError:
        return ""


def cpu_row() -> Row:
    info = machine.describe()
    memory, cache = info.memory_bytes / 2**30, info.l2_bytes / 2**20
    return "CPU", True, f"{info.name}, {info.sm_count} cores, {memory:.0f} GiB, last-level cache {cache:.0f} MiB"
