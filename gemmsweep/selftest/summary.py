"""What stored selftest sweeps say of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gemmsweep import race
from gemmsweep.contest import Contest
from gemmsweep.model import Problem
from gemmsweep.references import WORTH_NAMING
from gemmsweep.selftest.kinds import KINDS, LABELS, Kind
from gemmsweep.store import Filter, Store, StoredSweep


@dataclass(frozen=True, slots=True)
class Summary:
    """What the sweeps of one kind and problem say. `wrong`: sweeps that call identical labels different.

    `spreads`: max / min - 1 of the fastest labels' ratios to the reference, sorted; none where one label is fastest.
    `found`: sweeps in which the right labels lead, of a known difference win.
    """

    kind: Kind
    problem: Problem
    sweeps: int
    spreads: tuple[float, ...]
    wrong: int
    found: int
    rounds: float
    seconds_per_config: float


@dataclass(frozen=True, slots=True)
class Record:
    """All selftests of one device class, subject and protocol, on however many machines."""

    device: str
    subject: str
    protocol: str
    summaries: Sequence[Summary]
    machines: int


def collect(store: Store, wanted: Filter) -> list[Record]:
    """The selftests on record, by device class, subject and protocol ("rounds" first); tests in the order of KINDS."""
    groups: dict[tuple[str, str, str], dict[tuple[str, Problem], list[StoredSweep]]] = {}
    for sweep in store.stored_sweeps(wanted, rounds=True):
        start = sweep.start
        if counts(sweep) and start.experiment in KINDS:
            key = sweep.environment.device.device_class, start.template or "", start.protocol
            groups.setdefault(key, {}).setdefault((start.experiment, start.problem), []).append(sweep)
    records = []
    for key, tests in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] != "rounds")):
        found = [summarize(KINDS[name], problem, tests[name, problem]) for name, problem in sorted(tests, key=place)]
        machines = {sweep.environment.device.uuid for sweeps in tests.values() for sweep in sweeps}
        records.append(Record(*key, found, len(machines)))
    return records


def place(test: tuple[str, Problem]) -> tuple[int, int]:
    """Tests as KINDS has them, large problems before small ones."""
    name, problem = test
    return list(KINDS).index(name), -problem.flops


def counts(sweep: StoredSweep) -> bool:
    """A finished selftest that nobody disturbed."""
    return sweep.start.kind == "selftest" and sweep.outcome is not None and not sweep.disturbed


def summarize(kind: Kind, problem: Problem, sweeps: Sequence[StoredSweep]) -> Summary:
    """Of at least one finished sweep, with its rounds."""
    spreads = [spread for sweep in sweeps if (spread := spread_of(sweep)) is not None]
    seconds = sum(elapsed_s(sweep) for sweep in sweeps) / len(sweeps)
    return Summary(
        kind, problem, len(sweeps), tuple(sorted(spreads)), sum(calls_equals_different(s) for s in sweeps),
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


def calls_equals_different(sweep: StoredSweep) -> bool:
    """Whether any two labels with the same true time are called different, by the sweep's own rule."""
    slower = slowness(sweep)
    labels = list(slower)
    assert sweep.outcome is not None
    if sweep.start.protocol == "alone":
        times = {label: sweep.outcome.measurements[label].median_ns for label in labels}
        pairs = [(a, b) for a in labels for b in labels if times[a] >= times[b] * (1 + WORTH_NAMING)]
    else:
        held = Contest(labels, [], list(sweep.rounds))
        found = race.decide(held.times(labels), min_effect=WORTH_NAMING)
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
