"""Where a sweep starts: the best known config of the problem, of the nearest one, the template's defaults, or a run named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmsweep.entry import enlist
from gemmsweep.errors import UsageError
from gemmsweep.model import Config, DeviceInfo, Value
from gemmsweep.plan import apply_held, completed

if TYPE_CHECKING:
    from gemmsweep.session import Request
    from gemmsweep.store import KnownConfig, Store, StoredSweep


@dataclass(frozen=True, slots=True)
class Start:
    """A config and where it comes from, in words."""

    config: Config
    origin: str

    @property
    def sentence(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.config.items())
        return f"Start: {values} ({self.origin})"


def find_start(request: Request, store: Store, device: DeviceInfo, interrupted: StoredSweep | None) -> Start:
    """The stored start of an interrupted session, else what `--start` asks for; raises UsageError."""
    if interrupted is not None:
        return Start(interrupted.start.start, f"resuming: {interrupted.start.start_origin}")
    if request.start == "defaults":
        return defaults(request)
    if request.start != "best":
        return from_run(request, store, request.start)
    best = best_known(request, store, device)
    if best is not None:
        return best
    for l2 in states(request):
        near = store.nearest(request.problem, device.device_class, request.template.name, l2)
        config = None if near is None else usable(request, device, near)
        if near is None or config is None:
            continue
        origin = f"best of the nearest shape {near.problem.shape}: run {near.run_id[-8:]} of {near.started_at[:10]}"
        return Start(config, origin)
    return defaults(request)


def best_known(request: Request, store: Store, device: DeviceInfo) -> Start | None:
    """The best on record for exactly this problem that can still be raced: of finals where there are some."""
    for l2 in states(request):
        for known in store.starts(request.problem, device.device_class, request.template.name, l2):
            config = usable(request, device, known)
            if config is not None:
                return Start(config, f"best known: run {known.run_id[-8:]} of {known.started_at[:10]}")
    return None


def states(request: Request) -> tuple[str, ...]:
    """Of L2, whose record counts for a start: the one asked for, else what is best from cold."""
    return ("cold",) if request.l2 == "cold" else (request.l2, "cold")


def defaults(request: Request) -> Start:
    """The template's own, with what `--set` holds."""
    return Start(hold(request, request.template.defaults()), "template defaults")


def hold(request: Request, config: Config) -> dict[str, Value]:
    return apply_held(config, request.held)


def usable(request: Request, device: DeviceInfo, known: KnownConfig) -> Config | None:
    """The config, completed and with what `--set` holds, if every value is still declared and no rule is broken here."""
    found = completed(request.template, known.config)
    if found is None:
        return None
    config = hold(request, found)
    (candidate,) = enlist(request.template, request.problem, device, {"start": config})
    return config if candidate.alive else None


def from_run(request: Request, store: Store, prefix: str) -> Start:
    """The config of a stored run of the same template; raises UsageError."""
    row = store.config_run(prefix)
    if row["template"] != request.template.name:
        raise UsageError(
            f"--start {prefix}: that run is of template '{row['template']}', this sweep of '{request.template.name}'. "
            "Choose one of the same template: gemmsweep report --template " + request.template.name
        )
    config = completed(request.template, row["config"])
    if config is None:
        raise UsageError(
            f"--start {prefix}: template '{request.template.name}' no longer declares a value of that run's. "
            "Choose another: gemmsweep report --template " + request.template.name
        )
    wrong = f", found wrong on {row['wrong_since'][:10]}" if row["wrong_since"] else ""
    return Start(hold(request, config), f"run {row['run_id'][-8:]} of {row['started_at'][:10]}{wrong}")
