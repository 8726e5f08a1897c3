"""One race, from candidates to an outcome: build, line up, race, look back; every row is stored as soon as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gemmsweep import contest, race, regimes, rivals, verdict
from gemmsweep.aftermath import after_race
from gemmsweep.contest import Contest, Rules
from gemmsweep.entry import Candidate, compile_all
from gemmsweep.errors import NotIdle, counted
from gemmsweep.lineup import enter_all, save
from gemmsweep.protocol import Burst, DeviceFailure
from gemmsweep.ranking import is_ranked
from gemmsweep.record import Attempt, Outcome, SweepStart
from gemmsweep.references import WORTH_NAMING
from gemmsweep.session import Session
from gemmsweep.vendor import ready_reference, threads_of

if TYPE_CHECKING:
    from gemmsweep.store import StoredSweep

WARM_UP_S = 3.0  # of unbroken load until a capped clock has settled
# What is exported is told of the vendor library; a race between configs may be decided sooner.
FINALS_KNOWN_WITHIN = WORTH_NAMING
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
    course = course_of(session, key, held, entrants, present, finals=finals)
    regimes.run(way, held, session.worker, course)
    entrants = after_race(session, key, held, entrants, course.rules.min_effect)
    foreign = foreign or session.worker.foreign()
    for label in held.raced:
        session.worker.leave(label)
    if way == "alone":
        told = regimes.naive(held, course.rules.min_effect)
        return replace(told, contended=bool(foreign), adopted=told.adopted and not foreign), entrants
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
    if earlier is not None and rounds:
        what = earlier.start.varied or ("the finals" if finals else "the start")
        told = f"of {what} {counted(len(rounds), 'round')} stored, goes on from round {len(rounds) + 1}"
        session.watch.note(f"Resuming: {told}.")
    held.replay(rounds)
    return held


def course_of(
    session: Session, key: int, held: Contest, entrants: Sequence[Candidate], present: str | None, *, finals: bool
) -> regimes.Course:
    """How long it may take, and where its rounds and failures are stored; who leads meanwhile is told."""
    request = session.request
    limit_s = min(request.race_limit_s, max(session.time_left(), 1.0))
    # What is exported is told apart by no less than usual, however coarse an axis was asked to be.
    min_effect = min(request.min_effect, WORTH_NAMING) if finals else request.min_effect
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
        Rules(min_effect, limit_s, request.inputs.seed),
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
