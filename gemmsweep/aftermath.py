"""After a race: the timed bursts verified once more, counters read, limiters named; each config's row is brought up to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmsweep import contest
from gemmsweep.analysis import diagnose, readings, roofline
from gemmsweep.contest import Contest
from gemmsweep.entry import Candidate
from gemmsweep.lineup import save
from gemmsweep.model import Errors
from gemmsweep.protocol import Counter, DeviceFailure
from gemmsweep.session import Session


def after_race(
    session: Session, key: int, held: Contest, candidates: Sequence[Candidate], min_effect: float
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
                counters = read_counters(session, held, label) + readings.from_account(candidate.account)
                counters += readings.from_check(candidate.attempt.errors)
                candidate = explain(session, candidate, counters, measured[label].median_ns / 1e3)
                with session.store.together():
                    session.store.save_counters(save(session, key, candidate), counters)
            else:
                held.disqualify(label, DeviceFailure(candidate.attempt.status, candidate.attempt.reason))
                held.verdict = held.decide(min_effect)
                save(session, key, candidate)
            session.watch.advance(label)
        result.append(candidate)
    return result


def recheck(session: Session, candidate: Candidate) -> Candidate:
    """The burst that was timed, verified after the race; launches lie as far apart as either check has seen."""
    try:
        checked = session.worker.recheck(candidate.label)
    except DeviceFailure as failure:
        return candidate.failed(failure)
    if checked.status != "ok":
        return candidate.failed(checked)
    errors = further_apart(candidate.attempt.errors, checked.errors)
    return replace(candidate, attempt=replace(candidate.attempt, errors=errors))


def further_apart(before: Errors | None, after: Errors | None) -> Errors | None:
    """The errors from before the race, with the larger difference between launches."""
    seen = [e.between_launches for e in (before, after) if e is not None and e.between_launches is not None]
    return replace(before, between_launches=max(seen)) if before is not None and seen else before


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
