"""One template's cases from source to verdict: build, prepare, check; every config is a row as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gemmsweep import special, verdict
from gemmsweep.bench import Entrant
from gemmsweep.build import Builders
from gemmsweep.entry import Candidate, Unwatched, Watch, built, check_one, compile_all
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.model import Inputs, Problem
from gemmsweep.protocol import DeviceFailure
from gemmsweep.record import Environment, SweepStart
from gemmsweep.references import main_reference
from gemmsweep.store import Store
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.verify.cases import Case
from gemmsweep.verify.place import Place, block_tile, place
from gemmsweep.worker import Worker
from gemmsweep.wrong import Element, Findings

BURST_MS = 0.05  # nothing is timed: a burst is only there to be replayed
TOGETHER = 32  # configs built before the first of them is checked
KIND = "verify"  # of the stored sweeps


@dataclass
class Work:
    """Where the parts of a verification meet."""

    store: Store
    worker: Worker
    watch: Watch
    builders: Builders
    environment: Environment
    session_id: str
    command: str
    clock: Callable[[], float]
    explain: bool = False
    compile_limit_s: float = 120.0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """One config that is not right; `elements` are there where it was explained."""

    problem: Problem
    candidate: Candidate
    special: bool  # it was checked on special values too
    findings: Findings | None = None
    elements: tuple[tuple[Element, Place], ...] = ()
    tile: tuple[int, int] = (0, 0)  # rows and columns of a block tile; 0: the header does not say


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A problem that says nothing of the template: it does not fit into memory, or its reference failed."""

    problem: Problem
    configs: int
    reason: str


@dataclass
class Result:
    """What became of a template."""

    template: Template
    right: int = 0
    failures: list[Failure] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    late: int = 0  # configs that time left out

    @property
    def checks(self) -> int:
        return self.right + len(self.failures)

    @property
    def left_out(self) -> int:
        return self.late + sum(one.configs for one in self.unchecked)


def verify(work: Work, template: Template, cases: Sequence[Case], ends: float) -> Result:
    """Check every config of every case until `ends`; the rest is counted as late."""
    result = Result(template)
    work.store.save_source(template.source_sha256, template.name, template.archive())
    work.watch.stage(f"{template.name}: building and checking", sum(len(case.candidates) for case in cases))
    for group in groups(cases):
        if work.clock() < ends:
            group = build_group(work, group)
        for case in group:
            check_case(work, case, result, ends)
    return result


def groups(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in order, so many at a time that every core has something to build."""
    group: list[Case] = []
    for case in cases:
        group.append(case)
        if sum(len(one.candidates) for one in group) >= TOGETHER:
            yield group
            group = []
    if group:
        yield group


def build_group(work: Work, cases: Sequence[Case]) -> list[Case]:
    """The same cases with what the compiler said; what several problems render alike is built once."""
    first: dict[object, Candidate] = {}
    for case in cases:
        for candidate in case.candidates:
            first.setdefault(rendered(candidate), candidate)
    device = work.worker.info
    done = compile_all(list(first.values()), device, Unwatched(), work.builders, timeout_s=work.compile_limit_s)
    builds = {source: candidate.attempt.build for source, candidate in zip(first, done, strict=True)}

    def complete(candidate: Candidate) -> Candidate:
        build = builds[rendered(candidate)]
        return candidate if build is None else built(candidate, build, device)

    return [replace(case, candidates=tuple(map(complete, case.candidates))) for case in cases]


def rendered(candidate: Candidate) -> object:
    """What reaches the compiler: equal for configs that differ in their launch alone."""
    source = candidate.source
    assert source is not None
    return source.text, source.options, source.kernels


def check_case(work: Work, case: Case, result: Result, ends: float) -> None:
    """Data and reference of one problem, then its configs, each stored."""
    if work.clock() >= ends:
        result.late += len(case.candidates)
        return
    device = work.worker.info
    try:
        work.worker.prepare(case.problem, Inputs(), "cold")
        work.worker.enter_reference(Entrant(main_reference(device.kind)), BURST_MS)
    except (UsageError, EnvironmentProblem) as error:  # too large, or its reference fails: the others are checked
        if not work.worker.survived():
            raise
        case = leave_out(work, case, result, str(error))
        if not case.candidates:
            return
    key = work.store.begin_sweep(sweep_start(work, case, result.template), work.environment)
    for place_in_case, candidate in enumerate(case.candidates):
        if work.clock() >= ends:
            result.late += len(case.candidates) - place_in_case
            break
        checked = check_config(work, case, candidate)
        source = render.flatten(candidate.source) if not checked.alive and candidate.source is not None else None
        work.store.save_attempt(key, checked.attempt, source)
        if checked.alive:
            result.right += 1
        else:
            result.failures.append(explained(work, case, checked))
        work.watch.advance(f"{case.problem} {candidate.label}")
    work.store.finish_sweep(key, verdict.nothing_raced())


def leave_out(work: Work, case: Case, result: Result, reason: str) -> Case:
    """What remains of a case without its data: configs that did not build are wrong all the same."""
    unchecked = [candidate for candidate in case.candidates if candidate.alive]
    if unchecked:
        result.unchecked.append(Unchecked(case.problem, len(unchecked), reason))
    for candidate in unchecked:
        work.watch.advance(f"{case.problem} {candidate.label}")
    return replace(case, candidates=tuple(c for c in case.candidates if not c.alive))


def sweep_start(work: Work, case: Case, template: Template) -> SweepStart:
    """A sweep of kind "verify": configs of one problem, without a race."""
    work.position += 1
    return SweepStart(
        work.session_id, f"{KIND}/{template.source_sha256}", work.position, KIND, KIND, template.name, case.problem, Inputs(),
        None, (), template.defaults(), "template defaults", "equal-clock", "cold", "rounds", work.command,
    )  # fmt: skip


def check_config(work: Work, case: Case, candidate: Candidate) -> Candidate:
    """All layers of the check, and special values where the case asks for them."""
    if not candidate.alive:
        return candidate  # it did not build
    checked = check_one(candidate, work.worker, BURST_MS)
    if not checked.alive:
        return checked
    if case.special and special.applies(case.problem):
        try:
            on_special = work.worker.special(candidate.label)
        except DeviceFailure as failure:
            return checked.failed(failure)
        if on_special.status != "ok":
            checked = checked.failed(on_special)
    work.worker.leave(candidate.label)
    return checked


def explained(work: Work, case: Case, failed: Candidate) -> Failure:
    """A failure, with its wrong elements and where they belong if that was asked for and can be seen."""
    found = None
    if work.explain and failed.attempt.status in ("incorrect", "unstable"):
        try:
            found = work.worker.find_wrong(failed.entrant, patterns=case.special)
        except DeviceFailure as failure:
            found = Findings(f"run again, it failed otherwise: {failure.reason}")
    if found is None or failed.launch is None:
        return Failure(case.problem, failed, case.special, found)
    device = render.device_env(work.worker.info)
    resolved = render.resolve(failed.template, case.problem, device, failed.attempt.config)
    launch = failed.launch
    elements = tuple((e, place(failed.template, resolved, launch, e.row, e.column)) for e in found.elements)
    return Failure(case.problem, failed, case.special, found, elements, block_tile(resolved.env))
