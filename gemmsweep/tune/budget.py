"""How the time of `tune` is divided. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmsweep.estimate import burst_seconds
from gemmsweep.finals import beyond_equal_clock_s
from gemmsweep.model import DeviceInfo
from gemmsweep.session import Request

FINALS_S = 6.0  # of equal-clock finals
QUICK_S = 9.0  # with less than about this for a problem nothing is searched: its families' starts are the finals
GPU_CONFIG_S, CPU_CONFIG_S = 0.6, 1.2  # of one config of an axis, its bursts aside, until some have been seen
ROUNDS = 10  # that decide most races


@dataclass(frozen=True, slots=True)
class Share:
    """One problem's time, as moments of a clock: axes may be raced until `search_ends`, finals until `ends`."""

    began: float
    search_ends: float
    ends: float
    config_s: float  # that one config of an axis is expected to take

    @property
    def seconds(self) -> float:
        return self.ends - self.began

    @property
    def hurried(self) -> bool:
        return self.seconds < QUICK_S + 2 * self.config_s


def share(now: float, deadline: float, problems: int, request: Request, device: DeviceInfo) -> Share:
    """An equal part of what is left to `problems` problems, with a reserve for the finals of the first."""
    seconds = max(0.0, deadline - now) / problems
    beyond_s = beyond_equal_clock_s(request, device)
    reserve_s = min(FINALS_S + (beyond_s if beyond_s <= seconds / 2 else 0.0), seconds / 2)
    config_s = CPU_CONFIG_S if device.kind == "cpu" else GPU_CONFIG_S
    config_s += ROUNDS * burst_seconds(request.problem, device)
    return Share(now, now + seconds - reserve_s, now + seconds, config_s)


def paced(request: Request, part: Share) -> Request:
    """The request with limits that one race, or one build that hangs, cannot use up its problem's share by."""
    return replace(
        request,
        race_limit_s=min(max(part.seconds / 16, 1.0), request.race_limit_s),
        compile_limit_s=min(max(part.seconds / 2, 15.0), request.compile_limit_s),
    )


def config_limit_s(time_limit_s: float, problems: int) -> float:
    """How long one config's check or burst may take before it is stopped."""
    return min(max(time_limit_s / problems / 3, 10.0), 60.0)


@dataclass
class Pace:
    """Seconds per config of an axis, as seen lately."""

    config_s: float

    def saw(self, configs: int, seconds: float) -> None:
        self.config_s = (self.config_s + seconds / configs) / 2

    def fits(self, configs: int, seconds_left: float) -> bool:
        return configs * self.config_s <= seconds_left


def configs_that_fit(seconds: float, request: Request, device: DeviceInfo) -> int:
    """About how many configs a problem's time is enough for."""
    part = share(0.0, seconds, 1, request, device)
    return 0 if part.hurried else int((part.search_ends - part.began) / part.config_s)
