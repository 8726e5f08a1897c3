"""What every race of a problem shares: its data on the device, and the vendor library that ratios are told of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemmsweep.bench import Entrant
from gemmsweep.entry import Candidate
from gemmsweep.model import Errors
from gemmsweep.record import Attempt
from gemmsweep.references import main_reference
from gemmsweep.rivals import version_on_record
from gemmsweep.session import Session

if TYPE_CHECKING:
    from gemmsweep.store import StoredSweep


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
    like = version_on_record(earlier, label)
    loaded = session.reference
    if loaded is not None and threads == session.threads and like in ("", loaded.version):
        return
    entrant = Entrant(label, threads=threads, like=like)
    version, kernels, rel_fro = session.worker.enter_reference(entrant, session.burst_ms)
    errors = Errors(0.0, rel_fro, rel_fro)
    session.reference = Attempt(label, "reference", "ok", errors=errors, version=version, kernels=tuple(kernels))
    session.threads = threads
    session.rivals = {name: row for name, row in session.rivals.items() if row.status != "ok"}
