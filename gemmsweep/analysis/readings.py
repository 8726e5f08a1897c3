"""Counters that need no counting: clock, power and throttle of a race's own bursts, and the account's figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gemmsweep.analysis.account import Account
from gemmsweep.model import Errors
from gemmsweep.protocol import Burst, Counter

SW_POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
THERMAL = 0x20 | 0x40 | 0x8  # SW thermal, HW thermal, HW slowdown


def from_bursts(bursts: Sequence[Burst]) -> tuple[Counter, ...]:
    """Means over the bursts of one label; what no burst measured is None."""
    clocks = [b.sm_clock_mhz for b in bursts if b.sm_clock_mhz is not None]
    powers = [b.power_mw for b in bursts if b.power_mw is not None]
    masks = [b.throttle for b in bursts if b.throttle is not None]

    def share(bits: int) -> float | None:
        return 100.0 * sum(1 for mask in masks if mask & bits) / len(masks) if masks else None

    return (
        Counter("sm_clock_mhz", fmean(clocks) if clocks else None, "MHz", "stamp"),
        Counter("power_w", fmean(powers) / 1e3 if powers else None, "W", "nvml"),
        Counter("throttle_power_pct", share(SW_POWER_CAP), "%", "nvml"),
        Counter("throttle_thermal_pct", share(THERMAL), "%", "nvml"),
    )


def from_check(errors: Errors | None) -> tuple[Counter, ...]:
    """How far launches of a config that is not deterministic lay apart; nothing of others, whose bits agree."""
    if errors is None or errors.between_launches is None:
        return ()
    return (Counter("between_launches", errors.between_launches, "of the bound", "check"),)


def from_account(account: Account | None) -> tuple[Counter, ...]:
    """What the arithmetic says of a config; nothing where there is none, as on a CPU."""
    if account is None:
        return ()
    return (
        Counter("ctas_per_sm", account.ctas_per_sm, "CTAs", "account"),
        Counter("waves", account.waves, "waves", "account"),
        Counter("tail_pct", account.tail_pct, "%", "account"),
    )
