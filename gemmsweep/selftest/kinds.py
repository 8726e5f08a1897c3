"""What the selftest races, and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gemmsweep.build import Builders
from gemmsweep.entry import Watch
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.oracle import needed_bytes
from gemmsweep.record import Environment
from gemmsweep.references import main_reference
from gemmsweep.session import burst_ms
from gemmsweep.store import Store
from gemmsweep.template.declaration import Template
from gemmsweep.worker import Worker

LABELS = 6


@dataclass(frozen=True, slots=True)
class Kind:
    """An experiment: how much slower each label is, in per mille, the right answer first."""

    name: str
    slower: tuple[int, ...]
    title: str

    @property
    def step(self) -> int:
        """Launches a burst must be a multiple of."""
        return math.lcm(*(1000 // math.gcd(1000, per_mille) for per_mille in self.slower))


KINDS = {
    kind.name: kind
    for kind in (
        Kind("aa", (0,) * LABELS, "identical"),
        Kind("tied", (0, 0, 20, 20, 20, 20), "two tied, four 2% slower"),
        Kind("known1", (0,) + (10,) * 5, "one faster by 1%"),
        Kind("known2", (0,) + (20,) * 5, "one faster by 2%"),
        Kind("known05", (0,) + (5,) * 5, "one faster by 0.5%"),
    )
}


@dataclass
class Bed:
    """Where the tests run. `template` None: the vendor's own product is what gets six names."""

    store: Store
    worker: Worker
    watch: Watch
    builders: Builders
    environment: Environment
    session_id: str
    command: str
    clock: Callable[[], float]
    deadline: float = math.inf
    protocol: str = "rounds"
    template: Template | None = None
    position: int = 0
    skipped: set[tuple[str, Problem]] = field(default_factory=set)

    @property
    def vendor(self) -> str:
        return main_reference(self.worker.info.kind)

    @property
    def burst_ms(self) -> float:
        return burst_ms(self.worker.info)

    @property
    def subject(self) -> str:
        """What gets six names."""
        return self.template.name if self.template is not None else self.vendor


def default_problems(info: DeviceInfo) -> list[Problem]:
    """Large and small, compute- and memory-bound, as far as they fit the device."""
    if info.kind == "cpu":
        return [Problem.of(256, 256, 256)]
    half = "fp16" if info.arch.startswith("sm_7") else "bf16"
    shapes = [(size, size, size) for size in (8192, 4096, 2048)] + [(1, 4096, 4096)]
    wanted = [Problem.of(*shape, half, "nt") for shape in shapes] + [Problem.of(4096, 4096, 4096)]
    return [p for p in wanted if needed_bytes(p) < 0.5 * info.memory_bytes]
