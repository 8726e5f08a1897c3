"""The straight line of `gemmsweep run`: for each axis enlist → build → check → race → counters → verdict, then the finals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from gemmsweep import regimes
from gemmsweep.ahead import Ahead
from gemmsweep.entry import (
    Candidate,
    Unwatched,
    compile_all,
    enlist,
    require_feasible_here,
    require_one_feasible,
)
from gemmsweep.heat import race_sweep, ready_reference
from gemmsweep.model import Config, Value
from gemmsweep.plan import Axis, apply_held, axis_configs, axis_values, differences, label_of
from gemmsweep.record import Outcome
from gemmsweep.session import Session
from gemmsweep.start import Start, find_start
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates

if TYPE_CHECKING:
    from gemmsweep.store import KnownConfig, StoredSession, StoredSweep

FINALISTS_PER_FAMILY = 2
FINALS_RESERVE_S = 6.0  # of a time limit: without finals nothing can be exported


def run(session: Session, stored: StoredSession | None) -> None:
    """Every axis in turn, each from what the one before left, then the finals. Resumes `stored`'s sweeps by position."""
    request = session.request
    require_feasible_here(request.template, request.problem, session.worker.info)
    sweeps = stored.sweeps if stored is not None else ()
    done = {s.start.position: s for s in sweeps if s.start.kind == "axis"}
    start = find_start(request, session.store, session.worker.info, done.get(0))
    present = dict(start.config)
    session.watch.note(start.sentence)
    with ahead_of(session, present):
        make_ready(session, present)
        complete = run_axes(session, present, start, done)
    last = finalists(session) if request.protocol == "rounds" else []
    complete = run_finals(session, last, finals_of(stored)) and complete
    if complete and session.time_left() > 0:
        session.store.finish_session(session.id)
    else:
        session.watch.note("Time limit reached: the same command goes on with what it left out.")
    if session.device_kind == "cuda":
        session.worker.keep_warm(None)


def finals_of(stored: StoredSession | None) -> list[StoredSweep]:
    """The finals that an interrupted session has raced or begun."""
    return [] if stored is None else [s for s in stored.sweeps if s.start.kind == "finals"]


def run_axes(session: Session, present: dict[str, Value], start: Start, done: Mapping[int, StoredSweep]) -> bool:
    """The axes one after the other, `passes` times or until nothing moves; without one, the start config alone.

    False where time was too short for one of them.
    """
    request = session.request
    if not request.axes:
        run_axis(session, None, (), present, start, done)
    for _ in range(request.passes):
        before = dict(present)
        for axis in request.axes:
            if session.position and session.time_left() <= FINALS_RESERVE_S:
                return False
            values = axis_values(request.template, axis)
            present = run_axis(session, axis.name, values, present, start, done)
        if present == before:
            break
    return True


def axis_candidates(session: Session, present: Config, axis: Axis) -> list[Candidate]:
    """An axis as it will be if it starts from `present`."""
    request = session.request
    configs = axis_configs(present, axis.name, axis_values(request.template, axis), request.held)
    labelled = {label_of(axis.name, config): config for config in configs}
    return enlist(request.template, request.problem, session.worker.info, labelled)


def ahead_of(session: Session, present: Config) -> AbstractContextManager[object]:
    """Beside a GPU, builds of all axes but the first begin now; one that starts elsewhere builds what is new itself."""
    later = [c for axis in session.request.axes[1:] for c in axis_candidates(session, present, axis)]
    if session.device_kind == "cpu" or not later:
        return nullcontext()
    return Ahead(later, session.worker.info, session.request.compile_limit_s, session.request.compiler)


def make_ready(session: Session, present: Config) -> None:
    """Data, oracle and reference on the device, and meanwhile the builds of the first axis."""
    request, device = session.request, session.worker.info
    (start,) = enlist(request.template, request.problem, device, {"start": apply_held(present, request.held)})
    candidates = [start]
    if request.axes:
        candidates = axis_candidates(session, present, request.axes[0])
        require_one_feasible(candidates, request.axes[0].name)
    build_beside(session, candidates, start.launch.threads if start.launch is not None else 1)


def build_beside(session: Session, candidates: Sequence[Candidate], threads: int) -> None:
    """Data, oracle and reference (on a CPU with `threads`), and at the same time the builds of `candidates`."""
    device = session.worker.info
    with ThreadPoolExecutor(1) as beside:
        limit_s = session.request.compile_limit_s
        # Unwatched: two stages at once would write over each other.
        building = beside.submit(compile_all, candidates, device, Unwatched(), session.builders, timeout_s=limit_s)
        try:
            ready_reference(session, threads)
            if not building.done():
                session.watch.stage("build", sum(c.alive for c in candidates))
            building.result()
        except BaseException:
            session.builders.stop()  # else leaving the block would wait for the compilers
            raise


def run_axis(
    session: Session,
    varied: str | None,
    values: Sequence[Value],
    present: dict[str, Value],
    origin: Start,
    done: Mapping[int, StoredSweep],
) -> dict[str, Value]:
    """One axis: returns the config the next one starts from."""
    earlier = done.get(session.position)
    why = origin.origin if session.position == 0 else "the sweep before"
    _, config = race_axis(session, session.request.template, varied, values, present, why, earlier)
    return config


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
    if earlier is not None and earlier.outcome is not None:
        return earlier.outcome, adopted_config(earlier, present)
    configs = (
        axis_configs(present, varied, values, request.held)
        if varied is not None
        else [apply_held(present, request.held)]
    )
    labelled = {label_of(varied, config): config for config in configs}
    candidates = enlist(template, request.problem, session.worker.info, labelled)
    sweep = session.sweep(position, "axis", template.name, origin, varied=varied, values=values, start=present)
    session.moved = True
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


def run_finals(session: Session, candidates: Sequence[Candidate], stored: Sequence[StoredSweep]) -> bool:
    """Fresh rounds after selection: the best two of each family on record and the reference; only these are exported.

    Then the best two of all again, by the other regimes asked for. Finals that an interrupted session had begun go on,
    unless an axis has been raced since. Configs timed alone have none: they are only for comparison. False where time was
    too short for one of the regimes.
    """
    request = session.request
    if not candidates:
        return True
    complete = True
    outcome = race_finals(session, "equal-clock", candidates, stored, "Finals")
    for regime in regimes.finals_regimes(request.regime, request.problem, session.worker.info):
        best_two = sorted(
            (c for c in candidates if c.label in outcome.measurements),
            key=lambda c: outcome.measurements[c.label].median_ns,
        )[:2]
        rivals = sum(row.status == "ok" for row in session.rivals.values())
        cost_s = regimes.cost_s(regime, len(best_two) + 1 + rivals)
        if not best_two:
            return complete
        if session.time_left() < cost_s:
            complete = False
            session.watch.note(f"No time left for the {regime} finals: they take {cost_s:.0f} s.")
            continue
        race_finals(session, regime, best_two, stored, f"Finals, {regime} ({cost_s:.0f} s)")
    return complete


def race_finals(
    session: Session, regime: str, candidates: Sequence[Candidate], stored: Sequence[StoredSweep], title: str
) -> Outcome:
    """One finals race of one regime, its own row; one that an interrupted session finished is not repeated, nor announced."""
    position = session.position
    session.position += 1
    begun = [s for s in stored if s.start.regime == regime]
    earlier = begun[-1] if begun and not session.moved else None
    if earlier is not None and earlier.outcome is not None:
        return earlier.outcome
    session.watch.note(f"{title}: " + ", ".join(c.label for c in candidates))
    origin = "best two of each family on record" if regime == "equal-clock" else "best two of the finals"
    sweep = session.sweep(position, "finals", "", origin, regime=regime)
    return race_sweep(session, sweep, candidates, earlier, present=None)[0]


def finalists(session: Session) -> list[Candidate]:
    """The best two verified configs of every template that can still be rendered, best first."""
    request = session.request
    templates = {t.name: t for t in list_templates().templates} | {request.template.name: request.template}
    return best_known(session, templates, session.store.known(request.problem, session.worker.info.device_class))


def best_known(
    session: Session, templates: Mapping[str, Template], on_record: Sequence[KnownConfig]
) -> list[Candidate]:
    """The first two of each of these templates that can be raced again, in the order given."""
    request, info = session.request, session.worker.info
    chosen: list[Candidate] = []
    per_family: dict[str, int] = {}
    for known in on_record:
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
