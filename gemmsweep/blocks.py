"""What a bench does to a loaded label beside rounds: exact slowness for the selftest, and blocks at its own power."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gemmsweep.protocol import Burst, Device, DeviceFailure

if TYPE_CHECKING:
    from gemmsweep.counters.nvml import Nvml

RESERVE = 1.1  # more launches than an estimate asks for, so that a burst is not too short


def repeat(device: Device, of: str, slower: Mapping[str, int], burst_ms: float) -> int:
    """Further names for a loaded label, each slower by so many per mille, exactly; returns the launches they report."""
    estimate_us = device.calibrate(of, burst_ms)
    step = math.lcm(*(1000 // math.gcd(1000, per_mille) for per_mille in slower.values()))
    reported = math.ceil(RESERVE * burst_ms * 1000 / max(estimate_us, 0.1) / step) * step
    for label, per_mille in slower.items():
        device.repeat(label, of, reported * (1000 + per_mille) // 1000, reported)
    return reported


def block(device: Device, nvml: Nvml | None, label: str, seconds: float, dropped_s: float) -> Burst:
    """Nothing but this label for `seconds` of device time; clock and time are of what follows the first `dropped_s`.

    Power is the energy counter's over the whole block: it moves in steps too coarse for anything shorter.
    """
    before_mj = nvml.energy_mj() if nvml is not None else None
    begun = time.monotonic()
    bursts = load(device, label, seconds)
    loaded_ns, kept = 0, []
    for burst in bursts:
        kept += [burst] if loaded_ns >= 1e9 * dropped_s else []
        loaded_ns += burst.burst_ns
    kept = kept or bursts[-1:]  # one burst outlasts the block
    clocks = [burst.sm_clock_mhz for burst in kept if burst.sm_clock_mhz is not None]
    power_mw, throttle = kept[-1].power_mw, kept[-1].throttle
    if nvml is not None:
        throttle, after_mj, power_mw = nvml.throttle(), nvml.energy_mj(), None
        if before_mj is not None and after_mj is not None and after_mj > before_mj:
            power_mw = round((after_mj - before_mj) / (time.monotonic() - begun))
    return Burst(
        label, sum(burst.burst_ns for burst in kept), sum(burst.launches for burst in kept),
        round(sum(clocks) / len(clocks)) if clocks else None, power_mw, throttle,
    )  # fmt: skip


def timed(device: Device, label: str) -> Burst:
    """One burst. Raises DeviceFailure where it has no time."""
    burst = device.burst(label)
    if burst.burst_ns <= 0:
        raise DeviceFailure("runtime", f"a burst of {burst.launches} launches took {burst.burst_ns} ns: no time at all")
    return burst


def load(device: Device, label: str, seconds: float) -> list[Burst]:
    """Bursts until they add up to `seconds` of device time. Raises DeviceFailure for a burst without a time."""
    bursts: list[Burst] = []
    loaded_ns = 0
    while loaded_ns < 1e9 * seconds:
        burst = timed(device, label)
        bursts.append(burst)
        loaded_ns += burst.burst_ns
    return bursts
