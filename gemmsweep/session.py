"""One request under way: what was asked, and the parts that answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gemmsweep.build import Builders
from gemmsweep.entry import Watch
from gemmsweep.model import Config, DeviceInfo, Errors, Inputs, Problem, Value
from gemmsweep.plan import Axis, Held
from gemmsweep.record import Attempt, Environment, SweepStart
from gemmsweep.references import WORTH_NAMING, Function
from gemmsweep.store import Store
from gemmsweep.template.declaration import Template
from gemmsweep.worker import Worker

GPU_RACE_LIMIT_S = 30.0


def race_limit_s(device: DeviceInfo) -> float:
    """How long one race may go on undecided."""
    return 12.0 if device.kind == "cpu" else GPU_RACE_LIMIT_S


def burst_ms(device: DeviceInfo) -> float:
    """A CPU's clock and scheduler need longer bursts than a GPU's."""
    return 20.0 if device.kind == "cpu" else 4.0


@dataclass(frozen=True, slots=True)
class Request:
    """What one `gemmsweep run` asks of one problem."""

    template: Template
    problem: Problem
    axes: tuple[Axis, ...]
    held: tuple[Held, ...] = ()
    passes: int = 1
    start: str = "best"
    inputs: Inputs = Inputs()
    regime: str = "auto"  # which finals to race beside those at equal clock: one of experiment.REGIMES
    l2: str = "cold"
    protocol: str = "rounds"
    experiment: str | None = None
    min_effect: float = WORTH_NAMING
    race_limit_s: float = GPU_RACE_LIMIT_S
    compile_limit_s: float = 120.0
    compiler: str = "auto"
    references: tuple[str, ...] = ()  # of `references.LIBRARY`; none: what each race calls for
    against: tuple[Function, ...] = ()
    remeasure: bool = False
    require_idle: bool = False
    command: str = ""
    key: str = ""  # hash of all the above that the user chose, see `cli/request.py`


@dataclass
class Session:
    """One request under way: where its parts meet. `clock` and `deadline` bound the races (None: no limit)."""

    request: Request
    store: Store
    worker: Worker
    watch: Watch
    environment: Environment
    builders: Builders
    id: str
    clock: Callable[[], float]
    on_sweep: Callable[[int], None]  # told the key of each sweep that is finished
    deadline: float | None = None
    on_leader: Callable[[Config], None] | None = None  # told who leads an axis: where it starts, then each new leader
    position: int = 0
    moved: bool = False  # an axis has been raced since the session began or was taken up again
    reference: Attempt | None = None
    least_threads: int = 1  # of the reference on a CPU, where no candidate has more
    threads: int = 1  # that the reference was loaded for
    rivals: dict[str, Attempt] = field(default_factory=dict)  # further references by label, loaded or failed
    verified: dict[tuple[str, str], Errors | None] = field(default_factory=dict)  # (template source, config) seen ok

    @property
    def device_kind(self) -> str:
        return self.worker.info.kind

    @property
    def burst_ms(self) -> float:
        return burst_ms(self.worker.info)

    def sweep(
        self,
        position: int,
        kind: str,
        template: str,
        origin: str,
        *,
        varied: str | None = None,
        values: Sequence[Value] = (),
        start: Config | None = None,
        regime: str = "equal-clock",
    ) -> SweepStart:
        """The row of a race of this session; `template` is "" where several families race."""
        r = self.request
        return SweepStart(
            self.id, r.key, position, kind, r.experiment, template, r.problem, r.inputs, varied, tuple(values), start or {},
            origin, regime, r.l2, r.protocol, r.command,
        )  # fmt: skip

    def time_left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - self.clock()
