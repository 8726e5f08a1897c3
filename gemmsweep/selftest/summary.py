"""What the stored sweeps say of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gemmsweep import race
from gemmsweep.contest import Contest
from gemmsweep.model import Problem
from gemmsweep.selftest.kinds import LABELS, Bed, Kind, on_record
from gemmsweep.store import StoredSweep


@dataclass(frozen=True, slots=True)
class Summary:
    """What the sweeps of one kind and problem say. `wrong`: sweeps that call identical labels different."""

    kind: Kind
    problem: Problem
    sweeps: int
    spreads: tuple[
        float, ...
    ]  # max / min - 1 of the fastest labels' ratios to the reference, sorted; none for one label
    wrong: int
    found: int  # the right labels lead: of a known difference, win
    rounds: float
    seconds_per_config: float


def summarize(bed: Bed, kind: Kind, problem: Problem) -> Summary | None:
    """From the store; None where nothing is on record."""
    sweeps = on_record(bed, kind, problem, rounds=True)
    if not sweeps:
        return None
    spreads = [spread for sweep in sweeps if (spread := spread_of(sweep)) is not None]
    seconds = sum(elapsed_s(sweep) for sweep in sweeps) / len(sweeps)
    return Summary(
        kind, problem, len(sweeps), tuple(sorted(spreads)), sum(calls_equals_different(bed, s) for s in sweeps),
        sum(is_found(kind, s) for s in sweeps), sum(len(s.rounds) for s in sweeps) / len(sweeps), seconds / LABELS,
    )  # fmt: skip


def slowness(sweep: StoredSweep) -> dict[str, int]:
    """Label → how much slower it is, per mille."""
    return {label: int(a.config["SLOWER_PER_MILLE"]) for label, a in sweep.attempts.items() if a.role == "config"}


def spread_of(sweep: StoredSweep) -> float | None:
    """Of the labels that should be equal and fastest."""
    assert sweep.outcome is not None
    fastest = [label for label, per_mille in slowness(sweep).items() if per_mille == 0]
    measured = [sweep.outcome.measurements[label] for label in fastest if label in sweep.outcome.measurements]
    ratios = [relation.ratio for one in measured for relation in one.relations.values()]
    return max(ratios) / min(ratios) - 1 if len(ratios) > 1 else None


def calls_equals_different(bed: Bed, sweep: StoredSweep) -> bool:
    """Whether any two labels with the same true time are called different, by the sweep's own rule."""
    slower = slowness(sweep)
    labels = list(slower)
    assert sweep.outcome is not None
    if bed.protocol == "alone":
        times = {label: sweep.outcome.measurements[label].median_ns for label in labels}
        pairs = [(a, b) for a in labels for b in labels if times[a] >= times[b] * (1 + bed.min_effect)]
    else:
        held = Contest(labels, [], list(sweep.rounds))
        found = race.decide(held.times(labels), min_effect=bed.min_effect)
        pairs = [(labels[a], labels[b]) for a, b in found.different]
    return any(slower[a] == slower[b] for a, b in pairs)


def is_found(kind: Kind, sweep: StoredSweep) -> bool:
    """A right label came out on top: as the winner, or where two are right at least as one of them."""
    outcome = sweep.outcome
    assert outcome is not None
    slower = slowness(sweep)
    if outcome.winner is None or slower[outcome.winner] > 0:
        return False
    if kind.slower.count(0) == 1:
        return outcome.verdict == "winner"
    return all(slower[label] == 0 for label in outcome.ties)


def elapsed_s(sweep: StoredSweep) -> float:
    """Wall time of a finished sweep."""
    assert sweep.finished_at is not None
    return (datetime.fromisoformat(sweep.finished_at) - datetime.fromisoformat(sweep.started_at)).total_seconds()
