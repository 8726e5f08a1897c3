"""Keeps a device under load between requests, and knows since when it has been busy: a rested card clocks higher."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmsweep.analysis.readings import SW_POWER_CAP
from gemmsweep.protocol import Burst, Device, DeviceFailure

if TYPE_CHECKING:
    from gemmsweep.counters.nvml import Nvml

REST_S = 0.5  # of no load, after which the card has to settle again
KEEP_WARM_S = 20.0
UNCAPPED_S = 1.0  # NVML's power is an average over about a second
CAPPED_SHARE = 0.85  # of the power limit: below it a load is not going to be capped
LONG_NS = 50_000_000  # a burst of which all others in its round would feel the rest
LIGHT = 1.05  # times the clock under the usual load: whoever runs so much higher lets the card rest


def made_up_for_s(burst: Burst) -> float:
    """Seconds of load after a burst, where it hardly loaded the card: as long as it took itself, if that is long."""
    return min(burst.burst_ns / 1e9, KEEP_WARM_S) if burst.burst_ns >= LONG_NS else 0.0


class Warmth:
    """The load on a device that nobody asked a result of. `label`: what keeps it warm; None lets it rest."""

    def __init__(self, device: Device, nvml: Nvml | None) -> None:
        self._device, self._nvml = device, nvml
        self.label: str | None = None
        self._busy_since = self._busy_until = 0.0
        self._usual_mhz: int | None = None  # clock of the latest untimed load

    def worked(self) -> None:
        """A burst has just ended."""
        self._busy_until = time.monotonic()

    def make_up(self, burst: Burst) -> None:
        """Load for as long as a burst that was long and light has let the card cool: the next one's clock is to be everyone's.

        One launch of a naive kernel takes 0.3 s where cuBLAS takes 0.2 ms; who followed it ran at 1560 MHz, who did not at 1360.
        """
        mhz, usual_mhz = burst.sm_clock_mhz, self._usual_mhz
        if mhz is not None and usual_mhz is not None and mhz > LIGHT * usual_mhz:
            end = time.monotonic() + made_up_for_s(burst)
            self.keep(lambda: time.monotonic() >= end)

    def keep(self, wanted: Callable[[], bool]) -> None:
        """Load until something else is `wanted`, for a while: a parent that is stuck must not heat the card for ever."""
        end = time.monotonic() + KEEP_WARM_S
        while self.label is not None and time.monotonic() < end and not wanted():
            try:
                self._load(self.label)
            except DeviceFailure:
                self.label = None

    def warm_up(self, label: str, seconds: float) -> None:
        """Load until the card has been busy for `seconds`, less where nothing caps its clock."""
        while (busy_s := self._busy_until - self._busy_since) < seconds:
            if busy_s >= UNCAPPED_S and self._uncapped():
                return
            self._load(label)

    def _load(self, label: str) -> None:
        """One burst, untimed; a gap of more than half a second before it counts as a rest."""
        if time.monotonic() - self._busy_until > REST_S:
            self._busy_since = time.monotonic()
        self._usual_mhz = self._device.burst(label).sm_clock_mhz
        self.worked()

    def _uncapped(self) -> bool:
        """The load does not reach the power limit, so the clock has nothing to settle to."""
        limit_w = self._device.info.power_limit_w
        if self._nvml is None or limit_w is None:
            return False
        sample = self._nvml.sample()
        if sample.power_mw is None or sample.throttle is None:
            return False
        return sample.throttle & SW_POWER_CAP == 0 and sample.power_mw < 1e3 * CAPPED_SHARE * limit_w
