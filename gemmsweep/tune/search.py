"""One problem of `tune`: families screened, their axes one at a time until nothing moves, finals of what they came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmsweep.ahead import Ahead
from gemmsweep.entry import Candidate, enlist
from gemmsweep.errors import ProblemError
from gemmsweep.finals import best_known, distinct, final_label, finals_of, renderable, run_finals
from gemmsweep.heat import race_sweep
from gemmsweep.model import Config, Value
from gemmsweep.plan import completed, label_of
from gemmsweep.record import Measurement, Outcome
from gemmsweep.references import yardstick
from gemmsweep.session import Session
from gemmsweep.sweep import build_beside, race_axis
from gemmsweep.template.declaration import Template
from gemmsweep.tune.budget import FINALS_S, Pace, Share, paced
from gemmsweep.tune.families import Family, axis_candidates, find_families

if TYPE_CHECKING:
    from gemmsweep.store import StoredSession, StoredSweep

HOPELESS = 3.0  # a family whose start is so many times slower than the leader's is not searched
WITHIN_REACH = 1.5  # of the leader, to be in the finals; what is slower leaves a race after five rounds
FINALISTS = 4
HANDICAP = 0.05  # per axis a family has had: the next nearest gets its turn before the leader's last refinements
AHEAD = 2  # axes whose builds are begun early


@dataclass
class Hunt:
    """One problem under way. `on_record`: the sweeps of an interrupted session, by what was varied from where."""

    session: Session
    families: list[Family]
    refused: Mapping[str, str]
    part: Share
    on_record: Mapping[tuple[object, ...], StoredSweep]
    pace: Pace
    ahead: Ahead | None = None
    cut: bool = False  # time ended before nothing moved
    searched: bool = False
    complete: bool = False  # nothing moved any more, and every regime's finals are on record

    @property
    def racing(self) -> list[Family]:
        return [family for family in self.families if not family.out]


def run(session: Session, stored: StoredSession | None, templates: Sequence[Template], part: Share) -> Hunt:
    """From starts to finals. Raises ProblemError where no family can run the problem at all."""
    request = session.request
    families, refused = find_families(request, templates, session.store, session.worker.info)
    if not families:
        raise ProblemError(
            f"nothing here runs {request.problem}. " + " | ".join(f"{n}: {w}" for n, w in refused.items())
        )
    cpu = session.device_kind == "cpu"
    sweeps = stored.sweeps if stored is not None else ()
    on_record = {identity(s): s for s in sweeps if s.start.kind == "axis"}
    hunt = Hunt(session, families, refused, part, on_record, Pace(part.config_s))
    session.position = len(sweeps)
    session.request, session.deadline = paced(request, part), part.search_ends
    starts = starting_candidates(hunt)
    if cpu:  # threads are an axis like others, so the reference has as many as there are
        session.least_threads = session.worker.info.sm_count
    build_beside(session, starts)
    if not part.hurried or on_record:
        with ExitStack() as beside:
            if not cpu:
                limit_s = session.request.compile_limit_s
                hunt.ahead = beside.enter_context(Ahead(session.builders, session.worker.info, limit_s))
            screen(hunt, starts)
            search(hunt)
        hunt.searched = True
    else:
        hunt.cut = True
    session.request, session.deadline = replace(request, race_limit_s=FINALS_S), part.ends
    left = max(hunt.racing, key=lambda family: family.ratio, default=None) if hunt.searched else None
    present = final_label(left.template, left.present) if left is not None else None
    # Where nothing asked for has raced, there is nothing to choose among: what the record names besides needs no finals.
    nothing = hunt.searched and not hunt.racing
    finished = nothing or run_finals(session, finalists(hunt, starts, present), present, finals_of(stored))
    hunt.complete = finished and not hunt.cut
    if hunt.complete:
        session.store.finish_session(session.id)
    if session.device_kind == "cuda":
        session.worker.keep_warm(None)
    return hunt


def identity(sweep: StoredSweep) -> tuple[object, ...]:
    """What makes a stored axis the one that is asked for again."""
    start = sweep.start
    return axis_identity(start.template, start.varied, start.start)


def axis_identity(template: str, varied: str | None, present: Mapping[str, Value]) -> tuple[object, ...]:
    return template, varied, tuple(sorted(present.items()))


def starting_candidates(hunt: Hunt) -> list[Candidate]:
    """Where the families start; those of an interrupted session as it began, though the record may know better by now."""
    problem, device = hunt.session.request.problem, hunt.session.worker.info
    screening = hunt.on_record.get(axis_identity("", None, {}))
    attempts = screening.attempts if screening is not None else {}
    candidates = []
    for family in hunt.families:
        template = family.template
        before = {label: a.config for label, a in attempts.items() if a.template == template.name}
        began = next((s.start.start for s in hunt.on_record.values() if s.start.template == template.name), None)
        if not before and began is not None:  # a lone start, never screened
            before, family.present = {final_label(template, began): began}, dict(began)
        candidates += enlist(template, problem, device, before or family.starts)
    return candidates


def screen(hunt: Hunt, starts: Sequence[Candidate]) -> None:
    """All starts in one race. A family that fails, or is hopelessly slow, is out; a lone start has nothing to be compared with."""
    if len(starts) == 1:
        return
    outcome, raced = race_starts(hunt, starts)
    for family in hunt.families:
        ours = [c for c in raced if c.template.name == family.template.name]
        measured = [c for c in ours if c.label in outcome.measurements]
        if not measured:
            family.out = next((c.attempt.reason for c in ours if c.attempt.reason), "its start did not race")
            continue
        best = max(measured, key=lambda c: ratio_of(outcome.measurements[c.label]))
        family.present, family.ratio = dict(best.attempt.config), ratio_of(outcome.measurements[best.label])
    leader = max((family.ratio for family in hunt.racing), default=0.0)
    for family in hunt.racing:
        if family.ratio * HOPELESS < leader:
            family.out = f"its start is {leader / family.ratio:.1f} times slower than the fastest"


def race_starts(hunt: Hunt, starts: Sequence[Candidate]) -> tuple[Outcome, list[Candidate]]:
    """The screening race and its row; one that is on record is not raced again."""
    session = hunt.session
    position = session.position
    earlier = hunt.on_record.get(axis_identity("", None, {}))
    if earlier is not None and earlier.outcome is not None:
        return earlier.outcome, [replace(c, attempt=earlier.attempts.get(c.label, c.attempt)) for c in starts]
    session.position += 1
    sweep = session.sweep(position, "axis", "", "the start of each family")
    return race_sweep(session, sweep, starts, earlier, present=None)


def ratio_of(measured: Measurement) -> float:
    """Against the vendor library; from the same rounds, so that those of different races compare."""
    name = yardstick(measured.relations)
    assert name is not None
    return measured.relations[name].ratio


def search(hunt: Hunt) -> None:
    """Axis after axis, the most promising family first, until a full pass of each moves nothing or time ends."""
    session = hunt.session
    while (family := next_family(hunt.racing)) is not None:
        axis = family.axes[family.turn]
        candidates = axis_candidates(family, axis, session.request.problem, session.worker.info)
        if len(candidates) < 2:
            family.step("")
            continue
        earlier = hunt.on_record.get(axis_identity(family.template.name, axis, family.present))
        known = earlier is not None and earlier.outcome is not None
        if not known and not hunt.pace.fits(len(candidates), session.time_left()):
            hunt.cut = True
            return
        session.on_leader = None if hunt.ahead is None else builder_ahead(hunt, hunt.ahead, family, axis)
        race_turn(hunt, family, axis, candidates, earlier)
        session.on_leader = None


def race_turn(
    hunt: Hunt, family: Family, axis: str, candidates: Sequence[Candidate], earlier: StoredSweep | None
) -> None:
    """One axis of one family, and what follows from it."""
    session = hunt.session
    began, before = session.clock(), family.present
    values = [c.attempt.config[axis] for c in candidates]
    origin = "the family's best so far"
    outcome, family.present = race_axis(session, family.template, axis, values, before, origin, earlier)
    if earlier is None or earlier.outcome is None:
        hunt.pace.saw(len(values), session.clock() - began)
    measured = outcome.measurements.get(label_of(axis, family.present))
    if measured is not None:
        family.ratio = ratio_of(measured)
    elif not family.ratio and not any(c.label in outcome.measurements for c in candidates):
        family.out = f"no value of {axis} raced"  # of a lone start, never screened
    family.raced += 1
    family.step("" if family.present == before else label_of(axis, family.present))


def next_family(racing: Sequence[Family]) -> Family | None:
    """The fastest that is not settled, each axis it has had counting against it."""
    unsettled = [family for family in racing if not family.settled]
    return max(unsettled, key=lambda family: family.ratio / (1 + HANDICAP * family.raced), default=None)


def builder_ahead(hunt: Hunt, ahead: Ahead, family: Family, axis: str) -> Callable[[Config], None]:
    """While an axis is raced, those after it are built: from where it starts, then from who leads it."""
    present = family.present

    def led(leader: Config) -> None:
        ahead.build(upcoming(hunt, leader, "" if leader == present else label_of(axis, leader)))

    return led


def upcoming(hunt: Hunt, outcome: Config, moved: str) -> Iterator[list[Candidate]]:
    """Configs of the axes that come after the next one, if that ends with this outcome."""
    problem, device = hunt.session.request.problem, hunt.session.worker.info
    copies = [replace(family, moves=list(family.moves)) for family in hunt.racing]
    found: list[tuple[Family, str]] = []
    for turn in range(1 + AHEAD):
        family = next_family(copies)
        if family is None:
            break
        if turn:
            found.append((replace(family), family.axes[family.turn]))
        else:
            family.present = dict(outcome)
        family.raced += 1
        family.step(moved if turn == 0 else "")
    return (axis_candidates(family, axis, problem, device) for family, axis in found)


def finalists(hunt: Hunt, starts: Sequence[Candidate], left: str | None) -> list[Candidate]:
    """What `export-best` names, what the search `left`, and the best on record of each family within reach of the best of all.

    Without a search, the first start of each.
    """
    session = hunt.session
    request = session.request
    on_record = session.store.known(request.problem, session.worker.info.device_class, l2=request.l2)
    named = best_known(
        session, renderable(family.template for family in hunt.families), [k for k in on_record if k.exported]
    )
    if not hunt.searched:
        firsts: dict[str, Candidate] = {}
        for candidate in starts:
            if candidate.alive:
                firsts.setdefault(candidate.template.name, candidate)
        return distinct([*named, *firsts.values()])
    templates = {family.template.name: family.template for family in hunt.racing}
    ours = [
        (known.speed, known)
        for known in on_record
        if known.speed is not None
        and known.template in templates
        and completed(templates[known.template], known.config) is not None
    ]
    # What an unstable ratio says to be far ahead would put all others out of reach.
    sure = [speed for speed, known in ours if known.certain] or [speed for speed, _ in ours]
    least = max(sure, default=0.0) / WITHIN_REACH
    within = best_known(session, templates, [known for speed, known in ours if speed >= least])
    came_to = [c for c in best_known(session, templates, [known for _, known in ours], left) if c.label == left]
    return distinct([*named, *came_to, *within])[:FINALISTS] or [
        c for c in starts if c.alive and c.template.name in templates
    ]
