"""What of a GPU can be read here, each row with its reading or the reason: `doctor` shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmsweep.counters.foreign import busy_pids, now_us
from gemmsweep.counters.gpus import NvmlMissingError, reason
from gemmsweep.counters.nvml import Nvml, throttle_names


@dataclass(frozen=True, slots=True)
class Capability:
    """One row: what it read, or why it could not."""

    name: str
    readable: bool
    detail: str


def probe_gpm(n: Any, board: Any) -> str:
    if not n.nvmlGpmQueryDeviceSupport(board).isSupportedDevice:
        raise NvmlMissingError("this GPU has none (Hopper and later do)")
    return "supported"


def probe_throttle(n: Any, board: Any) -> str:
    return ", ".join(throttle_names(n.nvmlDeviceGetCurrentClocksEventReasons(board))) or "none now"


def probe_others(n: Any, board: Any) -> str:
    """Whether other processes' load is seen: without it, one that merely has the GPU open may count."""
    present = len(n.nvmlDeviceGetComputeRunningProcesses(board))
    return f"{present} open this GPU, {len(busy_pids(n, board, now_us() - 1_000_000))} at work"


PROBES: dict[str, Callable[[Any, Any], str]] = {
    "clocks": lambda n, board: f"{n.nvmlDeviceGetClockInfo(board, n.NVML_CLOCK_SM)} MHz SM",
    "power": lambda n, board: f"{n.nvmlDeviceGetPowerUsage(board) / 1000:.0f} W",
    "throttle reasons": probe_throttle,
    "energy": lambda n, board: f"{n.nvmlDeviceGetTotalEnergyConsumption(board) / 1e6:.0f} kJ",
    "GPM": probe_gpm,
    "other processes": probe_others,
    "MIG": lambda n, board: "on" if n.nvmlDeviceGetMigMode(board)[0] else "off",
}


def capabilities(uuid: str) -> list[Capability]:
    """The rows of one GPU."""
    nvml = Nvml(uuid)
    if nvml.handle is None:
        return [Capability(name, False, nvml.problem) for name in PROBES]
    return [capability(nvml, name) for name in PROBES]


def capability(nvml: Nvml, name: str) -> Capability:
    try:
        return Capability(name, True, PROBES[name](nvml.module, nvml.board))
    except Exception as error:
        return Capability(name, False, reason(error))
