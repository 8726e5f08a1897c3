"""The configs of a race as they line up: loaded, verified once a session, each a row with the source it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gemmsweep.entry import Candidate, check_one
from gemmsweep.protocol import DeviceFailure
from gemmsweep.session import Session
from gemmsweep.template import render

if TYPE_CHECKING:
    from gemmsweep.store import StoredSweep

REPEATABLE = ("constraint", "incorrect", "unstable")  # statuses that trying again would only repeat


def save(session: Session, key: int, candidate: Candidate) -> int:
    """One row, with the template and the rendered source it came from."""
    template = candidate.template
    session.store.save_source(template.source_sha256, template.name, template.archive())
    rendered = render.flatten(candidate.source) if candidate.source is not None else None
    return session.store.save_attempt(key, candidate.attempt, rendered)


def enter_all(
    session: Session, key: int, candidates: Sequence[Candidate], earlier: StoredSweep | None
) -> list[Candidate]:
    """Load and verify those alive. What this session, or the interrupted one, verified is loaded without a second check.

    Unless launches of it need not agree: how far they lay apart is on record after the race only.
    """
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
        agrees = candidate.launch is not None and candidate.launch.deterministic
        if before.errors is not None and agrees:
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
