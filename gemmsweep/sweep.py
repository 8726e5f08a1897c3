"""The straight line of `gemmsweep run`: for each axis enlist → build → check → race → counters → verdict, then the finals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gemmsweep.ahead import Ahead
from gemmsweep.entry import (
    Candidate,
    Unwatched,
    compile_all,
    enlist,
    require_feasible_here,
    require_one_feasible,
)
from gemmsweep.errors import same_command
from gemmsweep.finals import FINALS_RESERVE_S, final_label, finalists, finals_of, run_finals
from gemmsweep.heat import race_sweep, usable
from gemmsweep.model import Config, Value
from gemmsweep.plan import Axis, apply_held, axis_values, label_of, labelled_configs
from gemmsweep.record import Outcome
from gemmsweep.session import Session
from gemmsweep.start import Start, find_start
from gemmsweep.template.declaration import Template
from gemmsweep.vendor import ready_problem

if TYPE_CHECKING:
    from gemmsweep.store import StoredSession, StoredSweep

STOP_AGAIN_S = 0.1
AXES_AHEAD = 3  # whose builds are begun early: what lies further off will start elsewhere, or is soon nearer


def run(session: Session, stored: StoredSession | None) -> None:
    """Every axis in turn, each from what the one before left, then the finals. Resumes `stored`'s sweeps by position."""
    request = session.request
    require_feasible_here(request.template, request.problem, session.worker.info)
    sweeps = stored.sweeps if stored is not None else ()
    done = {s.start.position: s for s in sweeps if s.start.kind == "axis"}
    start = find_start(request, session.store, session.worker.info, done.get(0))
    present = dict(start.config)
    if start.config:  # of a kernel without parameters there is nothing to say
        session.watch.note(start.sentence)
    with ExitStack() as beside:
        ahead = None
        if session.device_kind != "cpu" and request.axes:
            ahead = beside.enter_context(Ahead(session.builders, session.worker.info, request.compile_limit_s))
        make_ready(session, present, ahead)
        present, raced, complete = run_axes(session, present, start, done, ahead)
    left = final_label(request.template, present)
    # Where nothing that was asked for raced, what is on record besides is no answer to it.
    last = finalists(session, left) if raced and request.protocol == "rounds" else []
    complete = run_finals(session, last, left, finals_of(stored)) and complete
    if complete and session.time_left() > 0:
        session.store.finish_session(session.id)
    else:
        how = same_command(remeasure=request.remeasure)
        session.watch.note(f"Time limit reached: {how} goes on with what it left out.")
    if session.device_kind == "cuda":
        session.worker.keep_warm(None)


def run_axes(
    session: Session, present: dict[str, Value], start: Start, done: Mapping[int, StoredSweep], ahead: Ahead | None
) -> tuple[dict[str, Value], bool, bool]:
    """The axes one after the other, `passes` times or until nothing moves; without one, the start config alone.

    Returns the config they leave, whether any config raced, and False where time was too short for one of them.
    """
    request, raced = session.request, False
    if not request.axes:
        outcome, _ = run_axis(session, None, (), present, start, done)
        raced = outcome.verdict != "none"
    turns = request.axes * request.passes
    before: Config | None = None
    for turn, axis in enumerate(turns):
        if turn % len(request.axes) == 0:
            if present == before:
                break
            before = present
        if session.moved and session.time_left() <= FINALS_RESERVE_S:
            return present, raced, False
        values = axis_values(request.template, axis)
        with building_ahead(session, turns[turn + 1 :], present, ahead):
            outcome, present = run_axis(session, axis.name, values, present, start, done)
        raced = raced or outcome.verdict != "none"
    return present, raced, True


@contextmanager
def building_ahead(session: Session, turns: Sequence[Axis], present: Config, ahead: Ahead | None) -> Iterator[None]:
    """While an axis is raced, later ones are built from where it starts, and as soon as another config leads, from there."""
    if ahead is not None:
        session.on_leader = lambda leader: ahead.build(upcoming(session, turns, distinct([leader, present])))
    try:
        yield
    finally:
        session.on_leader = None


def distinct(configs: Sequence[Config]) -> list[Config]:
    return [config for place, config in enumerate(configs) if config not in configs[:place]]


def upcoming(session: Session, turns: Sequence[Axis], starts: Sequence[Config]) -> Iterator[list[Candidate]]:
    """The next axis from each of these starts, those after it from the first."""
    for place, axis in enumerate(turns[:AXES_AHEAD]):
        for start in starts if place == 0 else starts[:1]:
            yield axis_candidates(session, start, axis)


def axis_candidates(session: Session, present: Config, axis: Axis) -> list[Candidate]:
    """An axis as it will be if it starts from `present`."""
    request = session.request
    labelled = labelled_configs(present, axis.name, axis_values(request.template, axis), request.held)
    return enlist(request.template, request.problem, session.worker.info, labelled)


def make_ready(session: Session, present: Config, ahead: Ahead | None) -> None:
    """What `ready_problem` does, and meanwhile the builds of the first axis, then of those after it."""
    request, device = session.request, session.worker.info
    if request.axes:
        candidates = axis_candidates(session, present, request.axes[0])
        require_one_feasible(candidates, request.axes[0].name)
    else:
        alone = {"start": apply_held(present, request.held)}
        candidates = enlist(request.template, request.problem, device, alone)

    def then() -> None:
        if ahead is not None:
            ahead.build(upcoming(session, request.axes[1:], [present]))

    build_beside(session, candidates, then)


def build_beside(
    session: Session, candidates: Sequence[Candidate], on_queued: Callable[[], None] | None = None
) -> None:
    """Data and oracle, of a GPU the reference too, and at the same time the builds of `candidates`.

    `on_queued` is called, in another thread, when these are in the queue.
    """
    device = session.worker.info
    with ThreadPoolExecutor(1) as beside:
        limit_s = session.request.compile_limit_s
        # Unwatched: two stages at once would write over each other.
        building = beside.submit(
            compile_all, candidates, device, Unwatched(), session.builders, timeout_s=limit_s, on_queued=on_queued
        )
        try:
            ready_problem(session)
            if not building.done():
                session.watch.stage("build", sum(c.alive for c in candidates))
            building.result()
        except BaseException:
            while not building.done():  # else leaving the block would wait for the compilers
                session.builders.stop()
                wait([building], STOP_AGAIN_S)  # it may have been about to begin
            raise


def run_axis(
    session: Session,
    varied: str | None,
    values: Sequence[Value],
    present: dict[str, Value],
    origin: Start,
    done: Mapping[int, StoredSweep],
) -> tuple[Outcome, dict[str, Value]]:
    """One axis: what it came to, and the config the next one starts from."""
    earlier = done.get(session.position)
    why = origin.origin if session.position == 0 else "the sweep before"
    return race_axis(session, session.request.template, varied, values, present, why, earlier)


def race_axis(
    session: Session,
    template: Template,
    varied: str | None,
    values: Sequence[Value],
    present: dict[str, Value],
    origin: str,
    earlier: StoredSweep | None,
) -> tuple[Outcome, dict[str, Value]]:
    """What the values of one axis came to, and the config that leaves; one that is on record is not raced again."""
    request, position = session.request, session.position
    session.position += 1
    earlier = usable(session, earlier)
    if earlier is not None and earlier.outcome is not None:
        return earlier.outcome, adopted_config(earlier, present)
    labelled = labelled_configs(present, varied, values, request.held)
    candidates = enlist(template, request.problem, session.worker.info, labelled)
    sweep = session.sweep(position, "axis", template.name, origin, varied=varied, values=values, start=present)
    session.moved = True
    if session.on_leader is not None:
        session.on_leader(present)  # as far as is known
    started_as = label_of(varied, present) if varied is not None else "start"
    kept = started_as if started_as in labelled else None
    outcome, raced = race_sweep(session, sweep, candidates, earlier, present=kept)
    if not outcome.adopted or outcome.winner is None:
        return outcome, present
    return outcome, dict(next(c.attempt.config for c in raced if c.label == outcome.winner))


def adopted_config(earlier: StoredSweep, present: dict[str, Value]) -> dict[str, Value]:
    """What a sweep finished before the interruption left behind."""
    outcome = earlier.outcome
    if outcome is None or not outcome.adopted or outcome.winner is None:
        return present
    return dict(earlier.attempts[outcome.winner].config)
