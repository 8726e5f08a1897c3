"""The straight line of `gemmsweep run`: for each axis enlist → build → check → race → counters → verdict, then the finals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gemmsweep import contest, race, verdict
from gemmsweep.analysis import diagnose, readings, roofline
from gemmsweep.build import Builders
from gemmsweep.contest import Contest, Rules
from gemmsweep.entry import (
    Candidate,
    Watch,
    check_one,
    compile_all,
    enlist,
    require_feasible_here,
    require_one_feasible,
)
from gemmsweep.model import (
    Attempt,
    Burst,
    Config,
    Counter,
    DeviceFailure,
    Environment,
    Errors,
    Inputs,
    Outcome,
    Problem,
    SweepStart,
    Value,
)
from gemmsweep.plan import Axis, Held, apply_held, axis_configs, axis_values, differences, label_of
from gemmsweep.start import Start, find_start
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates
from gemmsweep.worker import Entrant, Worker

if TYPE_CHECKING:
    from gemmsweep.store import Store, StoredSession, StoredSweep

FINALISTS_PER_FAMILY = 2
WARM_UP_S, IDLE_S = 3.0, 0.5
WINDOW_S = 0.12  # of NVML and GPM counters: below 0.1 s GPM reads nothing


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
    regime: str = "equal-clock"
    l2: str = "cold"
    protocol: str = "rounds"
    experiment: str | None = None
    min_effect: float = 0.005
    race_limit_s: float = 30.0
    remeasure: bool = False
    command: str = ""
    key: str = ""  # hash of all the above that the user chose, see `cli/run.py`


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
    position: int = 0
    reference: Attempt | None = None
    verified: dict[tuple[str, str], Errors | None] = field(default_factory=dict)  # (template source, config) seen ok
    last_busy: float = float("-inf")

    @property
    def device_kind(self) -> str:
        return self.worker.info.kind

    @property
    def burst_ms(self) -> float:
        """A CPU's clock and scheduler need longer bursts than a GPU's."""
        return 20.0 if self.device_kind == "cpu" else 4.0

    def time_left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - self.clock()


def run(session: Session, stored: StoredSession | None) -> None:
    """Every axis in turn, each from what the one before left, then the finals. Resumes `stored`'s sweeps by position."""
    request = session.request
    require_feasible_here(request.template, request.problem, session.worker.info)
    done = {s.start.position: s for s in stored.sweeps} if stored is not None else {}
    start = find_start(request, session.store, session.worker.info, done.get(0))
    present = dict(start.config)
    session.watch.note(start.sentence)
    if not request.axes:
        present = run_axis(session, None, (), present, start, done)
    for _ in range(request.passes):
        before = dict(present)
        for axis in request.axes:
            if session.time_left() <= 0:
                break
            values = axis_values(request.template, axis)
            present = run_axis(session, axis.name, values, present, start, done)
        if present == before:
            break
    run_finals(session, done)
    session.store.finish_session(session.id)


def run_axis(
    session: Session,
    varied: str | None,
    values: Sequence[Value],
    present: dict[str, Value],
    origin: Start,
    done: Mapping[int, StoredSweep],
) -> dict[str, Value]:
    """One axis: returns the config the next one starts from."""
    request, position = session.request, session.position
    session.position += 1
    earlier = done.get(position)
    if earlier is not None and earlier.outcome is not None:
        return adopted_config(earlier, present)
    configs = (
        axis_configs(present, varied, values, request.held)
        if varied is not None
        else [apply_held(present, request.held)]
    )
    labelled = {label_of(varied, config): config for config in configs}
    candidates = enlist(request.template, request.problem, session.worker.info, labelled)
    require_one_feasible(candidates, varied or "the start config")
    sweep = SweepStart(
        session.id, request.key, position, "axis", request.experiment, request.template.name, request.problem, request.inputs,
        varied, tuple(values), present, origin.origin if position == 0 else "the sweep before", request.regime, request.l2,
        request.protocol, request.command,
    )  # fmt: skip
    key = earlier.key if earlier is not None else session.store.begin_sweep(sweep, session.environment)
    started_as = label_of(varied, present) if varied is not None else "start"
    outcome, raced = race_candidates(
        session, key, candidates, earlier, present=started_as if started_as in labelled else None
    )
    session.store.finish_sweep(key, outcome)
    session.on_sweep(key)
    if not outcome.adopted or outcome.winner is None:
        return present
    return dict(next(c.attempt.config for c in raced if c.label == outcome.winner))


def adopted_config(earlier: StoredSweep, present: dict[str, Value]) -> dict[str, Value]:
    """What a sweep finished before the interruption left behind."""
    outcome = earlier.outcome
    if outcome is None or not outcome.adopted or outcome.winner is None:
        return present
    return dict(earlier.attempts[outcome.winner].config)


def race_candidates(
    session: Session,
    key: int,
    candidates: Sequence[Candidate],
    earlier: StoredSweep | None,
    *,
    present: str | None,
    finals: bool = False,
) -> tuple[Outcome, list[Candidate]]:
    """Build, check and race; every row is stored as soon as it is known."""
    store = session.store
    entrants = compile_all(candidates, session.worker.info, session.watch, session.builders)
    for candidate in entrants:
        save(session, key, candidate)
    entrants = enter_all(session, key, entrants, earlier)
    labels = [c.label for c in entrants if c.alive]
    assert session.reference is not None or not labels
    if not labels:
        return verdict.nothing_raced(), entrants
    reference = session.reference
    assert reference is not None
    store.save_attempt(key, reference, None)
    foreign = session.worker.foreign()
    warm(session, reference.label)
    held = Contest(labels, [reference.label], rounds=rounds_of(earlier))
    session.watch.stage("race", race.LOOKS[-1])
    rules = Rules(
        session.request.min_effect,
        min(session.request.race_limit_s, max(session.time_left(), 1.0)),
        session.request.inputs.seed,
    )
    contest.run(held, session.worker, rules, lambda r, bursts: store.save_round(key, r, bursts), session.watch.advance)
    entrants = after_race(session, key, held, entrants, window_s=1.0 if finals else WINDOW_S)
    foreign = foreign or session.worker.foreign()
    session.last_busy = session.clock()
    return verdict.outcome(held, present=present, foreign=foreign), entrants


def rounds_of(earlier: StoredSweep | None) -> list[Mapping[str, Burst]]:
    """Stored rounds by number; a label races from the first round on until it leaves, so its n-th burst is of round n."""
    if earlier is None:
        return []
    return [
        {label: bursts[r] for label, bursts in earlier.rounds.items() if r < len(bursts)}
        for r in range(earlier.rounds_done)
    ]


def save(session: Session, key: int, candidate: Candidate) -> int:
    """One row, with the template and the rendered source it came from."""
    template = candidate.template
    session.store.save_source(template.source_sha256, template.name, template.archive())
    rendered = render.flatten(candidate.source) if candidate.source is not None else None
    return session.store.save_attempt(key, candidate.attempt, rendered)


def enter_all(
    session: Session, key: int, candidates: Sequence[Candidate], earlier: StoredSweep | None
) -> list[Candidate]:
    """Load and verify those alive. What this session, or the interrupted one, verified is loaded without a second check."""
    alive = [c for c in candidates if c.alive]
    if not alive:
        return list(candidates)
    ready_reference(session, alive[0])
    session.watch.stage("check", len(alive))
    result = []
    for candidate in candidates:
        if candidate.alive:
            candidate = enter(session, candidate, earlier)
            save(session, key, candidate)
            session.watch.advance(candidate.label)
        result.append(candidate)
    return result


def enter(session: Session, candidate: Candidate, earlier: StoredSweep | None) -> Candidate:
    """One candidate into the worker, by a check or by an earlier one's verdict."""
    before = earlier.attempts.get(candidate.label) if earlier is not None else None
    identity = (candidate.attempt.source_sha256, repr(sorted(candidate.attempt.config.items())))
    if before is not None and before.source_sha256 == candidate.attempt.source_sha256:
        if before.status not in ("ok", "unfinished"):
            return replace(candidate, attempt=replace(before, build=candidate.attempt.build))
        if before.errors is not None:
            session.verified.setdefault(identity, before.errors)
    if identity not in session.verified:
        candidate = check_one(candidate, session.worker, session.burst_ms)
        if candidate.alive:
            session.verified[identity] = candidate.attempt.errors
        return candidate
    try:
        session.worker.enter(candidate.entrant, session.burst_ms)
    except DeviceFailure as failure:
        return candidate.failed(failure)
    return replace(candidate, attempt=replace(candidate.attempt, errors=session.verified[identity]))


def ready_reference(session: Session, candidate: Candidate) -> None:
    """Once per session: the problem's data, and the vendor library loaded and measured against the oracle."""
    if session.reference is not None:
        return
    request = session.request
    session.watch.stage("prepare", 1)
    session.worker.prepare(request.problem, request.inputs, request.l2)
    label = "numpy" if session.device_kind == "cpu" else "cublas"
    threads = candidate.launch.threads if candidate.launch is not None else 1
    version, kernels, rel_fro = session.worker.enter_reference(Entrant(label, threads=threads), session.burst_ms)
    session.reference = Attempt(
        label, "reference", "ok", errors=Errors(0.0, rel_fro, rel_fro), version=version, kernels=tuple(kernels)
    )


def warm(session: Session, label: str) -> None:
    """About 3 s of load until the clock settles, once; again, shorter, after half a second of idling."""
    if session.device_kind != "cuda":
        return
    first = session.last_busy == float("-inf")
    if first or session.clock() - session.last_busy > IDLE_S:
        session.worker.warm_up(label, WARM_UP_S if first else 1.0)


def after_race(
    session: Session, key: int, held: Contest, candidates: Sequence[Candidate], *, window_s: float
) -> list[Candidate]:
    """Verify the timed bursts once more, read the counters, name the limiters; failures of the race become rows."""
    measured = contest.measurements(held)
    session.watch.stage("counters", len(held.raced))
    result = []
    for candidate in candidates:
        label = candidate.label
        if label in held.failures:
            candidate = candidate.failed(held.failures[label])
            save(session, key, candidate)
        elif candidate.alive and label in measured:
            candidate = recheck(session, candidate)
            if candidate.alive:
                counters = read_counters(session, held, label, window_s)
                candidate = explain(session, candidate, counters, measured[label].median_ns / 1e3)
                session.store.save_counters(save(session, key, candidate), counters)
            else:
                held.failures[label] = DeviceFailure(candidate.attempt.status, candidate.attempt.reason)
                held.verdict = held.decide(session.request.min_effect)
                save(session, key, candidate)
            session.watch.advance(label)
        result.append(candidate)
    return result


def recheck(session: Session, candidate: Candidate) -> Candidate:
    """The burst that was timed, verified after the race."""
    try:
        checked = session.worker.recheck(candidate.label)
    except DeviceFailure as failure:
        return candidate.failed(failure)
    return candidate if checked.status == "ok" else candidate.failed(checked)


def read_counters(session: Session, held: Contest, label: str, window_s: float) -> tuple[Counter, ...]:
    """Readings of the race's own bursts, and of a window of nothing but this label."""
    of_race = readings.from_bursts([bursts[label] for bursts in held.rounds if label in bursts])
    try:
        return of_race + session.worker.counters(label, window_s)
    except DeviceFailure:
        return of_race


def explain(session: Session, candidate: Candidate, counters: Sequence[Counter], median_us: float) -> Candidate:
    """The row with its limiter."""
    problem, build = session.request.problem, candidate.attempt.build
    evidence = diagnose.Evidence(
        median_us,
        {c.name: c.value for c in counters},
        candidate.account,
        build.spill_bytes if build else None,
        problem,
        roofline.peaks(session.worker.info, problem.dtype),
    )
    return replace(candidate, attempt=replace(candidate.attempt, limiter=diagnose.limiter(evidence)))


def run_finals(session: Session, done: Mapping[int, StoredSweep]) -> None:
    """Fresh rounds after selection: the best two of each family on record and the reference; only these are exported."""
    request, position = session.request, session.position
    session.position += 1
    earlier = done.get(position)
    if (earlier is not None and earlier.outcome is not None) or session.time_left() <= 0:
        return
    candidates = finalists(session)
    if not candidates:
        return
    sweep = SweepStart(
        session.id, request.key, position, "finals", request.experiment, "", request.problem, request.inputs, None, (), {},
        "best two of each family on record", request.regime, request.l2, request.protocol, request.command,
    )  # fmt: skip
    key = earlier.key if earlier is not None else session.store.begin_sweep(sweep, session.environment)
    session.watch.note("Finals: " + ", ".join(c.label for c in candidates))
    outcome, _ = race_candidates(session, key, candidates, earlier, present=None, finals=True)
    session.store.finish_sweep(key, outcome)
    session.on_sweep(key)


def finalists(session: Session) -> list[Candidate]:
    """The best two verified configs of every template that can still be rendered, best first."""
    request, info = session.request, session.worker.info
    templates = {t.name: t for t in list_templates().templates} | {request.template.name: request.template}
    chosen: list[Candidate] = []
    per_family: dict[str, int] = {}
    for known in session.store.known(request.problem, info.device_class):
        template = templates.get(known.template)
        if template is None or per_family.get(known.template, 0) == FINALISTS_PER_FAMILY:
            continue
        if not fits(template, known.config):
            continue
        label = final_label(template, known.config)
        (candidate,) = enlist(template, request.problem, info, {label: known.config})
        if candidate.alive and label not in {c.label for c in chosen}:
            chosen.append(candidate)
            per_family[known.template] = per_family.get(known.template, 0) + 1
    return chosen


def fits(template: Template, config: Config) -> bool:
    """Whether a stored config still gives every parameter a declared value."""
    return set(config) == {p.name for p in template.parameters} and all(
        config[p.name] in p.values for p in template.parameters
    )


def final_label(template: Template, config: Config) -> str:
    """`simt BK=32 PAD=4`: the family and what differs from its defaults."""
    moved = differences(template.defaults(), config)
    return " ".join([template.name] + [f"{name}={value}" for name, value in moved.items()])
