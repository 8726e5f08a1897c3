"""NVML, the only code that calls pynvml. Every field is read on its own: one that fails is None, the rest remain.

Calls cost 2–17 µs each, the energy counter 3–19 ms. Power is an average over about a second and energy moves in steps:
neither describes a burst of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmsweep.protocol import Counter

BUSY_PCT = 10  # utilisation before we start that counts as somebody else's
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def throttle_names(mask: int) -> tuple[str, ...]:
    """Words for the bits of a clocks-event-reasons mask."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a board. `utilisation_pct` covers NVML's last sampling period (up to a second)."""

    power_mw: int | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: int | None = None
    utilisation_pct: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while a command runs."""

    uuid: str
    index: int | None = None  # NVML's numbering, not CUDA's
    name: str | None = None
    memory_bytes: int | None = None
    power_limit_mw: int | None = None
    clock_max_mhz: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Load that is not ours: other processes, utilisation before we started."""

    processes: int | None = None
    utilisation_pct: int | None = None


class NvmlMissingError(Exception):
    """NVML cannot be used at all; the message says why."""


def start() -> Any:
    """The initialised pynvml module. Raises NvmlMissingError."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlMissingError(f"nvidia-ml-py is not installed ({error})") from error
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NvmlMissingError(reason(error)) from error
    return pynvml


def reason(error: Exception) -> str:
    """NVML's own words for an error, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """The value, or None where NVML (or an old driver, or a container) refuses."""
    try:
        return read(*arguments)
    except Exception:
        return None


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def find_handle(nvml: Any, uuid: str) -> Any:
    """Handle of a GPU or MIG slice by UUID, with or without its prefix; None where NVML has none of it."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for candidate in (f"GPU-{bare}", f"MIG-{bare}"):
        handle = attempt(nvml.nvmlDeviceGetHandleByUUID, candidate)
        if handle is not None:
            return handle
    return None


def board_of(nvml: Any, handle: Any) -> Any:
    """The card a MIG slice lies on, or the card itself: clocks and power belong to it."""
    if attempt(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)):
        return attempt(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle
    return handle


def read_facts(nvml: Any, handle: Any, uuid: str) -> Facts:
    board = board_of(nvml, handle)
    return Facts(
        uuid=text(attempt(lambda: nvml.nvmlDeviceGetUUID(handle))) or uuid,
        index=attempt(lambda: nvml.nvmlDeviceGetIndex(board)),
        name=text(attempt(lambda: nvml.nvmlDeviceGetName(handle))),
        memory_bytes=attempt(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        power_limit_mw=attempt(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board)),
        clock_max_mhz=attempt(lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_SM)),
        driver=text(attempt(nvml.nvmlSystemGetDriverVersion)),
    )


def facts_of(uuid: str) -> Facts:
    """Facts of one GPU; without NVML or for a UUID unknown to it, only the UUID with CUDA's usual prefix."""
    prefixed = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    try:
        nvml = start()
    except NvmlMissingError:
        return Facts(prefixed)
    handle = find_handle(nvml, uuid)
    if handle is None:
        return Facts(prefixed, driver=text(attempt(nvml.nvmlSystemGetDriverVersion)))
    return read_facts(nvml, handle, prefixed)


def list_gpus() -> list[Facts]:
    """All GPUs (of a card split by MIG: its slices), in NVML's order; no CUDA context. Raises NvmlMissingError."""
    nvml = start()
    found: list[Facts] = []
    for index in range(attempt(nvml.nvmlDeviceGetCount) or 0):
        handle = attempt(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            continue
        slots = range(attempt(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
        slices = [attempt(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot) for slot in slots]
        for device in [s for s in slices if s is not None] or [handle]:
            found.append(read_facts(nvml, device, ""))
    return found


def driver_version() -> str | None:
    """Version of the NVIDIA driver, None where there is none."""
    try:
        return str(text(attempt(start().nvmlSystemGetDriverVersion)) or "") or None
    except NvmlMissingError:
        return None


class Nvml:
    """Readings of one GPU, found by UUID. Never raises: what cannot be read is None."""

    def __init__(self, uuid: str) -> None:
        self.problem = ""  # why nothing can be read, where nothing can
        self.module: Any = None
        self.handle: Any = None
        self.board: Any = None
        self._busy_before: int | None = None
        try:
            self.module = start()
        except NvmlMissingError as error:
            self.problem = str(error)
            return
        self.handle = find_handle(self.module, uuid)
        if self.handle is None:
            self.problem = f"NVML knows no GPU {uuid}"
            return
        self.board = board_of(self.module, self.handle)
        self._busy_before = self.sample().utilisation_pct

    def read(self, function: str, *arguments: Any) -> Any:
        """One field of the board; None where it cannot be read."""
        if self.handle is None:
            return None
        return attempt(lambda: getattr(self.module, function)(self.board, *arguments))

    def sample(self) -> Sample:
        """What changes, each field on its own; about 60 µs, so it may stand between bursts."""
        if self.handle is None:
            return Sample()
        n = self.module
        utilisation = self.read("nvmlDeviceGetUtilizationRates")
        return Sample(
            power_mw=self.read("nvmlDeviceGetPowerUsage"),
            sm_clock_mhz=self.read("nvmlDeviceGetClockInfo", getattr(n, "NVML_CLOCK_SM", 1)),
            mem_clock_mhz=self.read("nvmlDeviceGetClockInfo", getattr(n, "NVML_CLOCK_MEM", 2)),
            temperature_c=self.read("nvmlDeviceGetTemperature", getattr(n, "NVML_TEMPERATURE_GPU", 0)),
            throttle=self.throttle(),
            utilisation_pct=None if utilisation is None else int(utilisation.gpu),
        )

    def throttle(self) -> int | None:
        """Clocks-event-reasons bit mask; older drivers know it by its older name."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            mask = self.read(name)
            if mask is not None:
                return int(mask)
        return None

    def energy_mj(self) -> int | None:
        """Energy since the driver was loaded. The call takes milliseconds; compare readings at least 0.5 s apart."""
        value = self.read("nvmlDeviceGetTotalEnergyConsumption")
        return None if value is None else int(value)

    def foreign(self) -> Foreign:
        """Who else uses the device; utilisation is that of the moment this object was made, before any load of ours."""
        if self.handle is None:
            return Foreign()
        return Foreign(self._foreign_processes(), self._busy_before)

    def _foreign_processes(self) -> int | None:
        """Processes on the device that are not this one; None where they cannot be listed. Containers hide some."""
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        lists = [attempt(lambda name: getattr(self.module, name)(self.handle), name) for name in names]
        if all(processes is None for processes in lists):
            return None
        pids = {int(process.pid) for processes in lists for process in processes or ()}
        # In a container the PIDs may be the host's: then one of those listed is this process under another number.
        return max(0, len(pids) - 1)

    def foreign_load(self) -> str:
        """`foreign` in words, for a process that uses the device itself; empty where there is none to see."""
        found = self.foreign()
        words: list[str] = []
        if found.processes:
            count = found.processes
            words.append(f"{count} other process{'es' if count > 1 else ''} on this GPU")
        if found.utilisation_pct is not None and found.utilisation_pct >= BUSY_PCT:
            words.append(f"{found.utilisation_pct}% busy before the first measurement")
        return ", ".join(words)

    def window(self, run_load: Callable[[float], None], seconds: float = 0.0) -> tuple[Counter, ...]:
        """NVML and GPM readings while only `run_load(duration_s)` runs, in this thread; see gpm.window."""
        from gemmsweep.counters import gpm

        return gpm.window(self, run_load, seconds)
