"""Readings of one GPU through NVML. Every field is read on its own: one that fails is None, the rest remain.

Calls cost 2–17 µs each, the energy counter 3–19 ms. Power is an average over about a second and energy moves in steps:
neither describes a burst of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmsweep.counters.foreign import Foreign, Others
from gemmsweep.counters.gpus import NvmlMissingError, attempt, board_of, find_handle, start

if TYPE_CHECKING:
    from gemmsweep.protocol import Counter

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


class Nvml:
    """Readings of one GPU, found by UUID. Never raises: what cannot be read is None."""

    def __init__(self, uuid: str) -> None:
        self.problem = ""  # why nothing can be read, where nothing can
        self.module: Any = None
        self.handle: Any = None
        self.board: Any = None
        self._others: Others | None = None
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
        self._others = Others(self.module, self.handle, self.sample().utilisation_pct)

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
        """Who else uses the device; utilisation is that of the moment this object was made."""
        return Foreign() if self._others is None else self._others.seen()

    def foreign_load(self) -> str:
        """See `Others.load`; empty without NVML."""
        return "" if self._others is None else self._others.load()

    def window(self, run_load: Callable[[Callable[[], bool]], None]) -> tuple[Counter, ...]:
        """NVML and GPM readings while only `run_load` runs, in this thread, until it is told enough; see gpm.window."""
        from gemmsweep.counters import gpm

        return gpm.window(self, run_load)
