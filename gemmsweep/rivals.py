"""Further references of a race: the library at its best and functions of the user's. One that fails is a row, no end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gemmsweep.bench import Entrant
from gemmsweep.protocol import DeviceFailure
from gemmsweep.record import Attempt
from gemmsweep.references import further
from gemmsweep.session import Session

if TYPE_CHECKING:
    from gemmsweep.store import StoredSweep


def join(session: Session, earlier: StoredSweep | None, *, finals: bool) -> list[Attempt]:
    """The rows of those that belong into this race, loaded and verified when first asked for, failed ones among them."""
    request = session.request
    names = further(request.references, request.problem, session.device_kind, finals=finals)
    entrants = [Entrant(name) for name in names]
    entrants += [Entrant(f.label, function=f) for f in request.against]
    for entrant in entrants:
        if entrant.label not in session.rivals:
            like = version_on_record(earlier, entrant.label)
            session.rivals[entrant.label] = entered(session, replace(entrant, like=like))
    return [session.rivals[entrant.label] for entrant in entrants]


def version_on_record(earlier: StoredSweep | None, label: str) -> str:
    """Of a reference, in the interrupted race; "" where it had none."""
    before = earlier.attempts.get(label) if earlier is not None else None
    return before.version or "" if before is not None else ""


def entered(session: Session, entrant: Entrant) -> Attempt:
    """The row of one rival, in the worker or with the reason why it is not."""
    label = entrant.label
    try:
        version, kernels, errors = session.worker.enter_rival(entrant, session.burst_ms)
    except DeviceFailure as failure:
        session.watch.note(f"{label} is not raced: {failure.reason}")
        return Attempt(label, "reference", failure.status, reason=failure.reason)
    return Attempt(label, "reference", "ok", errors=errors, version=version, kernels=tuple(kernels))


def out(session: Session, label: str, failure: DeviceFailure) -> Attempt:
    """The row of a rival that failed in the race, from now on out of every race of this problem."""
    session.watch.note(f"{label} is out of the race: {failure.reason}")
    row = replace(session.rivals[label], status=failure.status, reason=failure.reason)
    session.rivals[label] = row
    return row
