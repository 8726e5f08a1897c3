"""NVML, the only code that calls pynvml. Every field is read on its own: one that fails is None, the rest remain.

Calls cost 2–17 µs each, the energy counter 3–19 ms. Power is an average over about a second and energy moves in steps:
neither describes a burst of milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmsweep.protocol import Counter

BUSY_PCT = 10  # utilisation, of the board before we start or of another process, that counts as load
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
    """What is not ours on a device. A process that merely has it open disturbs nobody; one at work does."""

    processes: int | None = None  # others that have it open
    at_work: int | None = None  # of those, seen at work since the last look; None where NVML does not tell
    newcomers: int = 0  # of those, since we began
    utilisation_pct: int | None = None  # of the board before we started

    @property
    def load(self) -> str:
        """What disturbs, in words; empty where there is nothing to see. Of a newcomer nothing is known: it counts."""
        if self.utilisation_pct is not None and self.utilisation_pct >= BUSY_PCT:
            others = f"{counted(self.processes)} on this GPU, " if self.processes else ""
            return f"{others}{self.utilisation_pct}% busy before the first measurement"
        if self.at_work:
            return f"{counted(self.at_work)} at work on this GPU"
        if self.at_work is None and self.newcomers:
            return f"{counted(self.newcomers)} came to this GPU, and NVML does not tell whether at work"
        return ""

    @property
    def note(self) -> str:
        """Others that are there and count as no load, in words."""
        if not self.processes or self.load:
            return ""
        has = "has" if self.processes == 1 else "have"
        seen = self.at_work is not None or self.utilisation_pct is not None
        return f"{counted(self.processes)} {has} this GPU open, " + (
            "idle" if seen else "whether idle NVML does not tell"
        )


def counted(processes: int) -> str:
    return f"{processes} other process{'es' if processes > 1 else ''}"


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


def now_us() -> int:
    """The time by NVML's samples."""
    return int(time.time() * 1e6)


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


def busy_pids(nvml: Any, handle: Any, since_us: int) -> set[int]:
    """Processes that worked on a GPU after a moment. Raises where NVML does not tell: of MIG slices, by old drivers."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except Exception as error:
        if getattr(error, "value", None) in (0, getattr(nvml, "NVML_ERROR_NOT_FOUND", 6)):
            return set()  # how NVML says that nobody did
        raise
    return {int(s.pid) for s in samples if BUSY_PCT <= int(s.smUtil) <= 100 and int(s.timeStamp) > since_us}


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
        self._there_before: int = 0
        self._looked_us = 0
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
        self._there_before = len(self._pids() or ())
        self._looked_us = now_us()

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
        pids = self._pids()
        if pids is None:
            return Foreign(utilisation_pct=self._busy_before)
        # In a container the PIDs may be the host's: then one of those listed is this process under another number.
        others = max(0, len(pids) - 1)
        newcomers = max(0, len(pids) - max(1, self._there_before))
        return Foreign(others, self._at_work(pids), newcomers, self._busy_before)

    def _pids(self) -> set[int] | None:
        """Processes that have the device open, this one among them; None where they cannot be listed. Containers hide some."""
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        lists = [attempt(lambda name: getattr(self.module, name)(self.handle), name) for name in names]
        if all(processes is None for processes in lists):
            return None
        return {int(process.pid) for processes in lists for process in processes or ()}

    def _at_work(self, pids: set[int]) -> int | None:
        """Of these, how many others have been at work since the last look; None where NVML does not tell (MIG, old drivers)."""
        busy = attempt(busy_pids, self.module, self.handle, self._looked_us)
        if busy is None:
            return None
        ours = os.getpid()
        return len((busy & pids) - {ours}) if ours in pids else max(0, len(busy & pids) - 1)

    def foreign_load(self) -> str:
        """`foreign`'s load in words, for a process that uses the device itself; the next look is at what comes after."""
        words = self.foreign().load
        self._looked_us = now_us()
        return words

    def window(self, run_load: Callable[[float], None], seconds: float = 0.0) -> tuple[Counter, ...]:
        """NVML and GPM readings while only `run_load(duration_s)` runs, in this thread; see gpm.window."""
        from gemmsweep.counters import gpm

        return gpm.window(self, run_load, seconds)
