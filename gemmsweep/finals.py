"""Finals: fresh rounds after selection, over the best of each family on record. Only these are exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gemmsweep import regimes
from gemmsweep.entry import Candidate, enlist
from gemmsweep.heat import race_sweep, usable
from gemmsweep.model import Config, DeviceInfo
from gemmsweep.plan import completed, differences
from gemmsweep.ranking import family_labels
from gemmsweep.record import Outcome
from gemmsweep.references import further
from gemmsweep.session import Request, Session
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates

if TYPE_CHECKING:
    from gemmsweep.store import KnownConfig, StoredSession, StoredSweep

FINALISTS_PER_FAMILY = 2
FINALS_RESERVE_S = 6.0  # of a time limit: without finals nothing can be exported


def beyond_equal_clock_s(request: Request, device: DeviceInfo) -> float:
    """About how long the finals of other regimes will take: of two finalists and every reference asked for."""
    problem = request.problem
    rivals = len(further(request.references, problem, device.kind, finals=True)) + len(request.against)
    ways = regimes.finals_regimes(request.regime, problem, device)
    return sum(regimes.cost_s(way, 3 + rivals) for way in ways)


def finals_of(stored: StoredSession | None) -> list[StoredSweep]:
    """The finals that an interrupted session has raced or begun."""
    return [] if stored is None else [s for s in stored.sweeps if s.start.kind == "finals"]


def run_finals(
    session: Session, candidates: Sequence[Candidate], present: str | None, stored: Sequence[StoredSweep]
) -> bool:
    """Fresh rounds after selection: the best two of each family on record and the reference; only these are exported.

    `present`, the label of the config that the axes left, stays unless it is certainly slower; by other regimes what was
    taken at equal clock does.

    Then the best two of all again, by the other regimes asked for. Finals that an interrupted session had begun go on,
    unless an axis has been raced since. Configs timed alone have none: they are only for comparison. False where time was
    too short for one of the regimes.
    """
    request = session.request
    if not candidates:
        return True
    complete = True
    outcome = race_finals(session, "equal-clock", candidates, present, stored, "Finals")
    taken = present if outcome.contended else outcome.winner
    for regime in regimes.finals_regimes(request.regime, request.problem, session.worker.info):
        # What was taken, and the fastest beside it: of a tie that need not be the two fastest.
        best_two = sorted(
            (c for c in candidates if c.label in outcome.measurements),
            key=lambda c: (c.label != outcome.winner, outcome.measurements[c.label].median_ns),
        )[:2]
        rivals = sum(row.status == "ok" for row in session.rivals.values())
        cost_s = regimes.cost_s(regime, len(best_two) + 1 + rivals)
        if not best_two:
            return complete
        if session.time_left() < cost_s:
            complete = False
            session.watch.note(f"No time left for the {regime} finals: they take {cost_s:.0f} s.")
            continue
        race_finals(session, regime, best_two, taken, stored, f"Finals, {regime} ({cost_s:.0f} s)")
    return complete


def race_finals(
    session: Session,
    regime: str,
    candidates: Sequence[Candidate],
    present: str | None,
    stored: Sequence[StoredSweep],
    title: str,
) -> Outcome:
    """One finals race of one regime, its own row; one that an interrupted session finished is not repeated, nor announced."""
    position = session.position
    session.position += 1
    begun = [s for s in stored if s.start.regime == regime]
    earlier = usable(session, begun[-1]) if begun and not session.moved else None
    if earlier is not None and earlier.outcome is not None:
        return earlier.outcome
    raced = [(c.template.name, c.attempt.config) for c in candidates]
    session.watch.note(f"{title}: {', '.join(family_labels(raced))}")
    origin = "best two of each family on record" if regime == "equal-clock" else "best two of the finals"
    sweep = session.sweep(position, "finals", "", origin, regime=regime)
    kept = present if present in {c.label for c in candidates} else None
    return race_sweep(session, sweep, candidates, earlier, present=kept)[0]


def finalists(session: Session, left: str) -> list[Candidate]:
    """The best two verified configs of every template that can still be rendered, what `export-best` names, and `left`."""
    request = session.request
    templates, device_class = renderable([request.template]), session.worker.info.device_class
    return best_known(session, templates, session.store.known(request.problem, device_class, l2=request.l2), left)


def renderable(given: Iterable[Template]) -> dict[str, Template]:
    """By name, the shipped templates, and those given in place of theirs."""
    return {template.name: template for template in (*list_templates().templates, *given)}


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of each label."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        found.setdefault(candidate.label, candidate)
    return list(found.values())


def best_known(
    session: Session, templates: Mapping[str, Template], on_record: Sequence[KnownConfig], left: str | None = None
) -> list[Candidate]:
    """The fastest two of each of these templates that can be raced again, what `export-best` names, and `left`.

    These are in whatever they did: the one can only be replaced by who beats it, the other is what the axes came to. They
    keep out nobody who has been faster.
    """
    request, info = session.request, session.worker.info
    chosen: list[Candidate] = []
    per_family: dict[str, int] = {}
    for known in sorted(on_record, key=lambda known: known.merit):
        template = templates.get(known.template)
        config = completed(template, known.config) if template is not None else None
        if template is None or config is None:
            continue
        label = final_label(template, config)
        full = per_family.get(known.template, 0) >= FINALISTS_PER_FAMILY
        if full and not known.exported and label != left:
            continue
        (candidate,) = enlist(template, request.problem, info, {label: config})
        if candidate.alive and label not in {c.label for c in chosen}:
            chosen.append(candidate)
            per_family[known.template] = per_family.get(known.template, 0) + 1
    return chosen


def final_label(template: Template, config: Config) -> str:
    """`simt BK=32 PAD=4`: the family and what differs from its defaults."""
    moved = differences(template.defaults(), config)
    return " ".join([template.name] + [f"{name}={value}" for name, value in moved.items()])
