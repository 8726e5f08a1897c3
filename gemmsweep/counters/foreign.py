"""Who else uses a GPU, as far as NVML tells: load that disturbs a race, and processes that merely have the device open."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from gemmsweep.counters.gpus import attempt

BUSY_PCT = 10  # utilisation, of the board before we start or of another process, that counts as load


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


def now_us() -> int:
    """The time by NVML's samples."""
    return int(time.time() * 1e6)


def busy_pids(nvml: Any, handle: Any, since_us: int) -> set[int]:
    """Processes that worked on a GPU after a moment. Raises where NVML does not tell: of MIG slices, by old drivers."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except Exception as error:
        if getattr(error, "value", None) in (0, getattr(nvml, "NVML_ERROR_NOT_FOUND", 6)):
            return set()  # how NVML says that nobody did
        raise
    return {int(s.pid) for s in samples if BUSY_PCT <= int(s.smUtil) <= 100 and int(s.timeStamp) > since_us}


class Others:
    """Looks at one device, from the moment it is made: before any load of ours."""

    def __init__(self, nvml: Any, handle: Any, busy_before_pct: int | None) -> None:
        self._nvml, self._handle, self._busy_before = nvml, handle, busy_before_pct
        self._there_before = len(self._pids() or ())
        self._looked_us = now_us()

    def seen(self) -> Foreign:
        """Who else uses the device; utilisation is that of the moment this began, before any load of ours."""
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
        lists = [attempt(lambda name: getattr(self._nvml, name)(self._handle), name) for name in names]
        if all(processes is None for processes in lists):
            return None
        return {int(process.pid) for processes in lists for process in processes or ()}

    def _at_work(self, pids: set[int]) -> int | None:
        """Of these, how many others have been at work since the last look; None where NVML does not tell (MIG, old drivers)."""
        busy = attempt(busy_pids, self._nvml, self._handle, self._looked_us)
        if busy is None:
            return None
        ours = os.getpid()
        return len((busy & pids) - {ours}) if ours in pids else max(0, len(busy & pids) - 1)

    def load(self) -> str:
        """`seen`'s load in words, for a process that uses the device itself; the next look is at what comes after."""
        words = self.seen().load
        self._looked_us = now_us()
        return words
