"""From a config to a verified entrant of a race: rules, rendering, building, checking. A failed config is a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from gemmsweep.analysis import roofline
from gemmsweep.analysis.account import Account, account
from gemmsweep.bench import Entrant
from gemmsweep.build import Builders
from gemmsweep.errors import ProblemError, UsageError
from gemmsweep.model import Build, Checked, Config, DeviceInfo, Launch, Problem, Source
from gemmsweep.oracle import beyond_memory
from gemmsweep.protocol import DeviceFailure
from gemmsweep.record import Attempt
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.expressions import ExpressionError
from gemmsweep.template.includes import way_out
from gemmsweep.template.resolve import Resolved, check_problem
from gemmsweep.worker import Worker


class Watch(Protocol):
    """Live progress, for people; data never goes through it."""

    def stage(self, name: str, total: int) -> None: ...

    def advance(self, detail: str = "") -> None: ...

    def note(self, text: str) -> None: ...


class Unwatched:
    """A `Watch` for work that nobody looks at."""

    def stage(self, name: str, total: int) -> None: ...

    def advance(self, detail: str = "") -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config on its way into a race; `attempt` is its row, `source` and `launch` are absent where a rule is broken."""

    template: Template
    attempt: Attempt
    source: Source | None = None
    launch: Launch | None = None
    account: Account | None = None
    tiles: int | None = None  # what its header says there is to do, in CTAs

    @property
    def label(self) -> str:
        return self.attempt.label

    @property
    def alive(self) -> bool:
        return self.attempt.status == "ok"

    @property
    def entrant(self) -> Entrant:
        return Entrant(self.label, self.attempt.build, self.launch)

    def failed(self, failure: DeviceFailure | Checked) -> Candidate:
        """The same with the status and reason of what went wrong."""
        errors = failure.errors if isinstance(failure, Checked) else self.attempt.errors
        attempt = replace(self.attempt, status=failure.status, reason=failure.reason, errors=errors)
        return replace(self, attempt=attempt)


def backend_of(device: DeviceInfo) -> str:
    """Which templates a device runs: "cpu" or "cuda"."""
    return "cpu" if device.kind == "cpu" else "cuda"


def require_feasible_here(template: Template, problem: Problem, device: DeviceInfo) -> None:
    """Raises UsageError where a template cannot run a problem or a device at all."""
    require_runs_on(template, device)
    check_problem(template, problem)


def require_runs_on(template: Template, device: DeviceInfo) -> None:
    """Raises UsageError where a template is for another kind of device, or a newer one."""
    backend = backend_of(device)
    if template.backend != backend:
        way_out = (
            "Without a GPU, with --arch sm_90a: gemmsweep run --compile-only builds it, run and tune --dry-run plan it."
        )
        raise UsageError(
            f"template '{template.name}' is for {template.backend}, the device is {device.name}. "
            + (way_out if template.backend == "cuda" else "See: gemmsweep show")
        )
    if backend == "cuda" and template.target(device.arch) is None:
        raise UsageError(
            f"template '{template.name}' needs {template.arch}, the device is {device.arch}. See: gemmsweep show"
        )


def require_room(problem: Problem, device: DeviceInfo) -> None:
    """Raises ProblemError where a problem never fits here; how much is free is asked before it is raced."""
    typical = device.kind == "cuda" and not device.uuid  # yours may have more
    if not typical and (told := beyond_memory(problem, device.memory_bytes, "are on the device")):
        raise ProblemError(told)


def enlist(template: Template, problem: Problem, device: DeviceInfo, configs: Mapping[str, Config]) -> list[Candidate]:
    """Candidates by label: those that break a rule end here, with the rule as their reason."""
    candidates = []
    roofs = roofline.peaks(device, problem.dtype)
    for label, config in configs.items():
        attempt = Attempt(
            label, "config", "ok", template.name, template.source_sha256, dict(config),
            peak_tflops=roofs.tflops, peak_clock_mhz=roofs.clock_mhz, peak_gbps=roofs.gbps,
        )  # fmt: skip
        broken = undeclared(template, config)
        resolved = None if broken else render.resolve(template, problem, render.device_env(device), config)
        broken = broken if resolved is None else render.broken_rules(template, resolved)
        if resolved is None or broken:
            candidates.append(Candidate(template, replace(attempt, status="constraint", reason="; ".join(broken))))
            continue
        source, launch = render.render(template, resolved), render.plan_launch(template, resolved)
        attempt = replace(attempt, launch=asdict(launch), acc=launch.accuracy.acc)
        candidates.append(Candidate(template, attempt, source, launch, tiles=tiles_of(template, resolved)))
    return candidates


def tiles_of(template: Template, resolved: Resolved) -> int | None:
    """CTAs that there is work for; None where the header does not say, or its expression has no value."""
    try:
        return max(1, resolved.value(template.account.tiles)) if template.account.tiles is not None else None
    except ExpressionError:
        return None


def undeclared(template: Template, config: Config) -> list[str]:
    """Values that no axis of the template has, as a coupling (`--set WM=BM/4`) may give."""
    return [
        f"{p.name}={config[p.name]} is not a value of {p.name}: {p.listing}"
        for p in template.parameters
        if config[p.name] not in p.values
    ]


def require_one_feasible(candidates: Sequence[Candidate], axis: str) -> None:
    """Raises UsageError naming each value's broken rule where nothing is left to race."""
    if not any(candidate.alive for candidate in candidates):
        reasons: dict[str, list[str]] = {}
        for candidate in candidates:
            reasons.setdefault(candidate.attempt.reason, []).append(candidate.label)
        rules = " | ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items())
        raise UsageError(f"no value of {axis} is feasible here. {rules}")


def compile_all(
    candidates: Sequence[Candidate],
    device: DeviceInfo,
    watch: Watch,
    builders: Builders,
    *,
    timeout_s: float = 120.0,
    on_queued: Callable[[], None] | None = None,
) -> list[Candidate]:
    """Build those alive on all cores; adds registers, spills, shared memory and occupancy to their rows.

    `on_queued` is called once they are in the queue: what is offered from there on comes after them.
    """
    sources = sources_of(candidates, device)
    watch.stage("build", sum(map(len, sources.values())))
    builds = {
        arch: iter(builders.build_all(group, arch, timeout_s, lambda *_: watch.advance(), on_queued))
        for arch, group in sources.items()
    }
    return [
        built(c, next(builds[target(c.template, device)]), device) if c.alive and c.source is not None else c
        for c in candidates
    ]


def sources_of(candidates: Sequence[Candidate], device: DeviceInfo) -> dict[str, list[Source]]:
    """What there is to build of those alive, by the architecture it is built for."""
    sources: dict[str, list[Source]] = {}
    for candidate in candidates:
        if candidate.alive and candidate.source is not None:
            sources.setdefault(target(candidate.template, device), []).append(candidate.source)
    return sources


def target(template: Template, device: DeviceInfo) -> str:
    """The architecture to compile for; `require_feasible_here` has made sure there is one."""
    return template.target(device.arch) or device.arch


def built(candidate: Candidate, build: Build, device: DeviceInfo) -> Candidate:
    """A candidate with what the compiler said of it."""
    launch = candidate.launch
    assert launch is not None
    attempt = replace(candidate.attempt, build=build)
    if not build.ok:
        # A kernel described from beside may include headers of the host's: NVRTC is given stand-ins for them.
        nvrtc = build.compiler.startswith("nvrtc") and candidate.template.sidecar is not None
        more = way_out(build.reason) if nvrtc else ""
        assert candidate.source is not None
        told = render.complaint_in_file(candidate.template, candidate.source.text, build.reason)
        return replace(candidate, attempt=replace(attempt, status="compile", reason=f"{told}{more}"))
    if device.kind == "cpu" or build.registers is None:
        return replace(candidate, attempt=attempt)
    main = launch.main
    smem_bytes = main.smem_bytes + (build.smem_bytes or 0)
    ctas = candidate.tiles or main.grid[0] * main.grid[1] * main.grid[2]
    threads = main.block[0] * main.block[1] * main.block[2]
    occupied = account(
        device.arch, device.sm_count, threads=threads, registers=build.registers, smem_bytes=smem_bytes, ctas=ctas
    )
    attempt = replace(attempt, smem_bytes=smem_bytes, occupancy_pct=occupied.occupancy_pct)
    return replace(candidate, attempt=attempt, account=occupied)


def check_one(candidate: Candidate, worker: Worker, burst_ms: float) -> Candidate:
    """A candidate with its verdict on numbers."""
    try:
        checked = worker.check(candidate.entrant, burst_ms)
    except DeviceFailure as failure:
        return candidate.failed(failure)
    if checked.status != "ok":
        return candidate.failed(checked)
    return replace(candidate, attempt=replace(candidate.attempt, errors=checked.errors))
