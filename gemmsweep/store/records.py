"""What the store gives back besides JSON rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmsweep.model import Config, Problem
from gemmsweep.protocol import Burst
from gemmsweep.record import Attempt, Environment, Outcome, SweepStart


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """A sweep on record. An attempt's build comes without path, symbols and log: build it again, the cache has it."""

    key: int
    sweep_id: str
    started_at: str  # UTC, ISO 8601
    finished_at: str | None
    start: SweepStart
    environment: Environment
    attempts: Mapping[str, Attempt]  # by label, in the order they were saved
    run_ids: Mapping[str, str]  # by label
    run_keys: Mapping[str, int]  # by label
    rounds: Sequence[Mapping[str, Burst]]  # by number, each by label
    outcome: Outcome | None  # None: unfinished

    @property
    def disturbed(self) -> bool:
        """Others put load on the device while it was raced."""
        return self.outcome is not None and self.outcome.contended


@dataclass(frozen=True, slots=True)
class StoredSession:
    """All sweeps of one command."""

    session_id: str
    finished: bool
    started_at: str
    sweeps: tuple[StoredSweep, ...]


@dataclass(frozen=True, slots=True)
class KnownConfig:
    """A verified config on record, with its latest finals, else its latest race."""

    template: str
    config: Config
    source_sha256: str
    problem: Problem
    run_id: str
    started_at: str
    median_ns: float
    reference: str | None  # whose time `ratio` relates to; None: raced without one
    version: str | None  # of that reference
    reference_ns: float | None  # its own median in the same race
    ratio: float | None  # reference time / kernel time: above 1, faster
    speed: float | None  # the ratio over the usual time of that version, 1/ns: to compare where the versions differ
    certain: bool  # the ratio is there, and neither it nor the reference's own time is unstable
    finals: bool
    exported: bool  # what `export-best` names for the problem

    @property
    def merit(self) -> tuple[bool, float, float]:
        """To sort by, best first. A ratio to a reference that stumbled is no praise: such configs come last, by their own time."""
        return not self.certain, -(self.speed or 0.0) if self.certain else 0.0, self.median_ns


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What a merge did: sweeps that were new, those that had grown or finished since, and those known already."""

    added: int = 0
    updated: int = 0
    known: int = 0
    runs: int = 0  # in the added and updated sweeps
