"""Where a sweep starts: the best known config of the problem, of the nearest one, the template's defaults, or a run named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmsweep.entry import enlist
from gemmsweep.errors import UsageError
from gemmsweep.model import Config, DeviceInfo, Value
from gemmsweep.plan import apply_held

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
    for known in store.known(request.problem, device.device_class, request.template.name):
        if usable(request, device, known):
            return Start(
                complete(request, known.config), f"best known: run {known.run_id[-8:]} of {known.started_at[:10]}"
            )
    near = store.nearest(request.problem, device.device_class, request.template.name)
    if near is not None and usable(request, device, near):
        origin = f"best of the nearest shape {near.problem.shape}: run {near.run_id[-8:]} of {near.started_at[:10]}"
        return Start(complete(request, near.config), origin)
    return defaults(request)


def defaults(request: Request) -> Start:
    """The template's own, with what `--set` holds."""
    return Start(hold(request, request.template.defaults()), "template defaults")


def hold(request: Request, config: Config) -> dict[str, Value]:
    return apply_held(config, request.held)


def complete(request: Request, config: Config) -> dict[str, Value]:
    """A stored config with defaults for parameters it did not know, and what `--set` holds."""
    return hold(request, {**request.template.defaults(), **config})


def usable(request: Request, device: DeviceInfo, known: KnownConfig) -> bool:
    """Whether every value is still declared and no rule is broken here."""
    declared = {p.name: p.values for p in request.template.parameters}
    if any(name not in declared or value not in declared[name] for name, value in known.config.items()):
        return False
    (candidate,) = enlist(request.template, request.problem, device, {"start": complete(request, known.config)})
    return candidate.alive


def from_run(request: Request, store: Store, prefix: str) -> Start:
    """The config of a stored run of the same template; raises UsageError."""
    row = store.run_detail(prefix)
    if row["template"] != request.template.name:
        raise UsageError(
            f"--start {prefix}: that run is of template '{row['template']}', this sweep of '{request.template.name}'. "
            "Choose one of the same template: gemmsweep report --template " + request.template.name
        )
    return Start(complete(request, row["config"]), f"run {row['run_id'][-8:]} of {row['started_at'][:10]}")
