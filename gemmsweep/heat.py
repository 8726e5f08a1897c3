"""One race, from candidates to an outcome: build, check, race, counters; every row is stored as soon as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gemmsweep import contest, race, regimes, rivals, verdict
from gemmsweep.analysis import diagnose, readings, roofline
from gemmsweep.bench import Entrant
from gemmsweep.contest import Contest, Rules
from gemmsweep.entry import Candidate, check_one, compile_all
from gemmsweep.errors import NotIdle
from gemmsweep.model import Errors
from gemmsweep.protocol import Burst, Counter, DeviceFailure
from gemmsweep.ranking import is_ranked
from gemmsweep.record import Attempt, Outcome, SweepStart
from gemmsweep.references import main_reference
from gemmsweep.session import Session
from gemmsweep.template import render

if TYPE_CHECKING:
    from gemmsweep.store import StoredSweep

REPEATABLE = ("constraint", "incorrect", "unstable")  # statuses that trying again would only repeat
WARM_UP_S = 3.0  # of unbroken load until a capped clock has settled
# What is exported is told of the vendor library; a race between configs may be decided sooner.
FINALS_KNOWN_WITHIN = 0.005
EARLY_ROUNDS = 3  # after which the leader of a race is worth building on


def race_sweep(
    session: Session,
    sweep: SweepStart,
    candidates: Sequence[Candidate],
    earlier: StoredSweep | None,
    *,
    present: str | None,
) -> tuple[Outcome, list[Candidate]]:
    """A sweep from its row to its outcome; one that was interrupted (`earlier`) goes on in the row it has."""
    key = earlier.key if earlier is not None else session.store.begin_sweep(sweep, session.environment)
    finals = sweep.kind == "finals"
    outcome, raced = race_candidates(
        session, key, candidates, earlier, present=present, finals=finals, regime=sweep.regime
    )
    session.store.finish_sweep(key, outcome)
    session.on_sweep(key)
    if outcome.contended:
        require_idle(session, "other load came up during this race")
    return outcome, raced


def usable(session: Session, earlier: StoredSweep | None) -> StoredSweep | None:
    """What an interrupted session left of a sweep, unless others disturbed it and an idle device is asked for."""
    return None if earlier is not None and earlier.disturbed and session.request.require_idle else earlier


def require_idle(session: Session, foreign: str) -> None:
    """Raises NotIdle where load of others (`foreign`, in words) is unwelcome."""
    if foreign and session.request.require_idle:
        raise NotIdle(
            f"{foreign}, and --require-idle races on an idle device alone. Repeat the command once the device is idle: "
            "it resumes."
        )


def race_candidates(
    session: Session,
    key: int,
    candidates: Sequence[Candidate],
    earlier: StoredSweep | None,
    *,
    present: str | None,
    finals: bool,
    regime: str,
) -> tuple[Outcome, list[Candidate]]:
    """Build, check and race; every row is stored as soon as it is known."""
    way = "alone" if session.request.protocol == "alone" else regime
    limit_s = session.request.compile_limit_s
    entrants = compile_all(candidates, session.worker.info, session.watch, session.builders, timeout_s=limit_s)
    with session.store.together():
        for candidate in entrants:
            save(session, key, candidate)
    if any(c.alive for c in entrants):
        ready_reference(session, threads_of(session, entrants), earlier)
    entrants = enter_all(session, key, entrants, earlier)
    if not any(c.alive for c in entrants):
        return verdict.nothing_raced(), entrants
    held = contest_of(session, key, entrants, earlier, finals=finals)
    foreign = session.worker.foreign()
    require_idle(session, foreign)
    if session.device_kind == "cuda" and way in ("equal-clock", "own-power"):
        session.worker.warm_up(held.references[0], WARM_UP_S)
    session.watch.stage("race", race.LOOKS[-1])
    course = course_of(session, key, held, entrants, present)
    regimes.run(way, held, session.worker, course)
    entrants = after_race(session, key, held, entrants)
    foreign = foreign or session.worker.foreign()
    for label in held.raced:
        session.worker.leave(label)
    if way == "alone":
        return replace(regimes.naive(held, course.rules.min_effect), contended=bool(foreign)), entrants
    found = verdict.outcome(held, present=present, foreign=foreign)
    return (regimes.with_joules(found, held) if way == "own-power" else found), entrants


def contest_of(
    session: Session, key: int, entrants: Sequence[Candidate], earlier: StoredSweep | None, *, finals: bool
) -> Contest:
    """Those alive against the references, whose rows are stored, and the rounds that count."""
    assert session.reference is not None
    further = rivals.join(session, earlier, finals=finals)
    rounds = rounds_of(session, earlier, (session.reference, *further))
    for row in (session.reference, *further):
        session.store.save_attempt(key, row, None)
    held = Contest(
        [c.label for c in entrants if c.alive],
        [session.reference.label, *(row.label for row in further if row.status == "ok")],
        guests=frozenset(c.label for c in entrants if not is_ranked(c.attempt.acc)),
        known_within=FINALS_KNOWN_WITHIN if finals else None,
    )
    held.replay(rounds)
    return held


def course_of(
    session: Session, key: int, held: Contest, entrants: Sequence[Candidate], present: str | None
) -> regimes.Course:
    """How long it may take, and where its rounds and failures are stored; who leads meanwhile is told."""
    request = session.request
    limit_s = min(request.race_limit_s, max(session.time_left(), 1.0))
    by_label = {c.label: c for c in entrants}
    told = present

    def advance(detail: str) -> None:
        nonlocal told
        session.watch.advance(detail)
        if session.on_leader is None or len(held.rounds) not in (EARLY_ROUNDS, *race.LOOKS):
            return
        leader = contest.leader(held)
        if leader is not None and leader != told:
            told = leader
            session.on_leader(by_label[leader].attempt.config)

    return regimes.Course(
        Rules(request.min_effect, limit_s, request.inputs.seed),
        lambda r, bursts: session.store.save_round(key, r, bursts),
        advance,
        lambda label, failure: failed_in_race(session, key, by_label.get(label), label, failure),
    )


def rounds_of(
    session: Session, earlier: StoredSweep | None, references: Sequence[Attempt]
) -> list[Mapping[str, Burst]]:
    """Stored rounds in order, each by label; a round that was cut off before all its bursts were stored is not there.

    None where one of the references is of another version than in theirs: they are dropped, since one ratio is never of two.
    """
    if earlier is None:
        return []
    for row in references:
        before = rivals.version_on_record(earlier, row.label)
        if earlier.rounds and before and row.version and row.version != before:
            session.watch.note(f"{row.label} was {before} before the interruption and is {row.version}: raced anew.")
            session.store.drop_rounds(earlier.key)
            return []
    return [dict(bursts) for bursts in earlier.rounds]


def failed_in_race(session: Session, key: int, candidate: Candidate | None, label: str, failure: DeviceFailure) -> None:
    """The row of a label that is out: a config, or a further reference."""
    if candidate is not None:
        save(session, key, candidate.failed(failure))
    else:
        session.store.save_attempt(key, rivals.out(session, label, failure), None)


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
        if before.status in REPEATABLE:
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


def ready_problem(session: Session) -> None:
    """The problem's data, and on a GPU the vendor library, which is every race's there.

    From then on a GPU is kept under load between requests, so that its clock has settled when a race begins.
    """
    request = session.request
    session.watch.stage("prepare", 1)
    session.worker.prepare(request.problem, request.inputs, request.l2)
    session.reference, session.rivals = None, {}
    if idle := session.worker.neighbours():
        session.watch.note(f"{idle}: no load, so races count.")
    if session.device_kind == "cpu":
        return  # builds run beside this, on cores that the library's threads are to be tried on
    ready_reference(session, 1, None)
    if session.device_kind == "cuda":
        session.worker.keep_warm(main_reference(session.device_kind))


def threads_of(session: Session, candidates: Sequence[Candidate]) -> int:
    """How many threads the reference of a race has on a CPU: as many as any of the candidates, else a ratio counts cores."""
    ours = [c.launch.threads for c in candidates if c.alive and c.launch is not None]
    return max(session.least_threads, *ours, 1)


def ready_reference(session: Session, threads: int, earlier: StoredSweep | None) -> None:
    """The vendor library (on a CPU with `threads`) loaded and measured against the oracle, unless it is already.

    An interrupted race (`earlier`) goes on against the version it began with, where that can be had. Where the library is
    loaded anew its rivals are too, since on a CPU they have its threads; those that failed stay out.
    """
    label = main_reference(session.device_kind)
    like = rivals.version_on_record(earlier, label)
    loaded = session.reference
    if loaded is not None and threads == session.threads and like in ("", loaded.version):
        return
    entrant = Entrant(label, threads=threads, like=like)
    version, kernels, rel_fro = session.worker.enter_reference(entrant, session.burst_ms)
    errors = Errors(0.0, rel_fro, rel_fro)
    session.reference = Attempt(label, "reference", "ok", errors=errors, version=version, kernels=tuple(kernels))
    session.threads = threads
    session.rivals = {name: row for name, row in session.rivals.items() if row.status != "ok"}


def after_race(session: Session, key: int, held: Contest, candidates: Sequence[Candidate]) -> list[Candidate]:
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
                counters = read_counters(session, held, label) + readings.from_account(candidate.account)
                counters += readings.from_check(candidate.attempt.errors)
                candidate = explain(session, candidate, counters, measured[label].median_ns / 1e3)
                with session.store.together():
                    session.store.save_counters(save(session, key, candidate), counters)
            else:
                held.fail(label, DeviceFailure(candidate.attempt.status, candidate.attempt.reason))
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


def read_counters(session: Session, held: Contest, label: str) -> tuple[Counter, ...]:
    """Readings of the race's own bursts, and of a window of nothing but this label."""
    of_race = readings.from_bursts([bursts[label] for bursts in held.rounds if label in bursts])
    try:
        return of_race + session.worker.counters(label)
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
