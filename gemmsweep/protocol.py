"""What check and race need of a device, and what they get from it: the protocol, bursts, counters, failures. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gemmsweep.model import Build, DeviceInfo, Launch, Problem, Status
from gemmsweep.references import Function


@dataclass(frozen=True, slots=True)
class Burst:
    """One timed burst of `launches` launches, and the device's state around it."""

    label: str
    burst_ns: int
    launches: int
    sm_clock_mhz: int | None = None  # effective, from stamps inside the burst
    power_mw: int | None = None  # NVML: an average over about a second
    throttle: int | None = None  # NVML clocks-event-reasons bit mask


@dataclass(frozen=True, slots=True)
class Counter:
    """A reading with unit and basis: "nvml", "gpm", "ncu", "stamp", "account" or "check". None: not measured, never 0."""

    name: str
    value: float | None
    unit: str
    basis: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Which device a worker opens: kind "cuda", "cpu" or "scripted" (then `script` is a file of tests)."""

    kind: str
    index: int = 0
    uuid: str = ""
    script: str = ""


class Operands(Protocol):
    """One set of device buffers. `a`, `b`, `c` are 2-D arrays (rows, leading dimension) of the storage type."""

    @property
    def a(self) -> Any: ...
    @property
    def b(self) -> Any: ...
    @property
    def c(self) -> Any: ...
    @property
    def guarded_c(self) -> Any:
        """Flat: guard band, c, guard band."""


class Device(Protocol):
    """What check and race need of a device. Lives in the worker process only; any method may raise DeviceFailure."""

    info: DeviceInfo
    xp: Any  # numpy or cupy
    ring: list[Operands]  # buffer sets with equal contents; a burst touches each at most once per L2 scrub

    def prepare(self, problem: Problem, a: Any, b: Any, c: Any, l2: str, bias: Any = None) -> None:
        """Take a problem: fill the first buffer set from `a`, `b`, `c` (shapes as in Operands), free what was before.

        `bias` is a vector of the output's storage type for epilogues that add one, on the device; None where none does.
        """

    def operands(self, a: Any, b: Any, c: Any) -> Operands:
        """A further buffer set outside the ring."""

    def load(self, label: str, build: Build, launch: Launch) -> None:
        """Load a binary under a label."""

    def load_reference(self, name: str, threads: int, like: str = "") -> tuple[str, tuple[str, ...]]:
        """Load a vendor library's product under the label `name`; returns its version and the names of the kernels it runs.

        On a CPU it has `threads`, or one where that is faster. Where several products go by the name, the fastest; `like`, a
        version returned earlier or the `stricter` of one, asks for that one.
        """

    def load_function(self, label: str, function: Function) -> tuple[str, tuple[str, ...]]:
        """Load a user's Python function; returns its version and kernels. Raises DeviceFailure for whatever it raises.

        On a CPU it has as many threads as the reference that was loaded last.
        """

    def unload(self, label: str) -> None: ...

    def launch(self, label: str, operands: Operands) -> None:
        """Run once on one buffer set and wait."""

    def calibrate(self, label: str, burst_ms: float) -> float:
        """Estimate µs per launch, then make the label's burst of at least `burst_ms` ready (growing the ring)."""

    def repeat(self, label: str, of: str, launches: int, reported: int) -> None:
        """Make `label` a further name of the loaded `of`, with a burst of `launches` launches that reports `reported`.

        More launches than are reported make a label slower by a known amount. Raises DeviceFailure where memory holds
        too few untouched buffer sets.
        """

    def touched(self, label: str) -> int:
        """How many sets of the ring, from the first, the label's burst uses."""

    def stacks(self, count: int) -> Sequence[Any]:
        """The first `count` sets of the ring as few objects with `c` (sets, m, ldd) and `guarded_c` (sets, elements).

        Views, so that hundreds of sets are poisoned and compared by a handful of operations.
        """

    def replay(self, label: str) -> None:
        """Run the label's burst once and wait, untimed."""

    def burst(self, label: str) -> Burst:
        """Run the label's burst once, timed, after an L2 scrub where the problem asks for it."""

    def memory_free_bytes(self) -> int: ...

    def probe(self) -> None:
        """Run something known to work; raises DeviceFailure where the device itself is at fault, not a config."""

    def close(self) -> None: ...


class DeviceFailure(Exception):
    """A config failed on the device. `fatal`: the context is lost and the worker must be replaced."""

    def __init__(self, status: Status, reason: str, *, fatal: bool = False) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason
        self.fatal = fatal
