"""The race itself: rounds over verified entrants and the reference, each stored as it ends, until the verdict stands."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmsweep import race
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.protocol import Burst, DeviceFailure
from gemmsweep.race import Verdict
from gemmsweep.record import Measurement, Relation
from gemmsweep.references import WORTH_NAMING
from gemmsweep.worker import LabelFailure, Worker

LEAST_ROUNDS = 5  # below it an interval means nothing, whatever the time limit says
# A race that goes on for a narrower ratio alone ends with this round: half of what an open verdict may take.
NARROWED_BY = race.LOOKS[-2]
SaveFailure = Callable[[str, DeviceFailure], None]
SaveRound = Callable[[int, Sequence[Burst]], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """How long to race and what difference is worth naming (0.005 = 0.5%)."""

    min_effect: float = WORTH_NAMING
    limit_s: float = 30.0
    seed: int = 0


@dataclass
class Contest:
    """Rounds so far. `rounds[r]` maps a label to its burst in round r; a label that left or failed is absent.

    `guests` race like everyone, and take no part in the verdict (see `ranking.is_ranked`). With `known_within` the race goes on
    after its verdict until the leader's ratio to the main reference is known so well, at most to round NARROWED_BY.
    """

    labels: list[str]
    references: list[str]
    rounds: list[Mapping[str, Burst]] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    failures: dict[str, DeviceFailure] = field(default_factory=dict)
    stopped: str | None = None
    verdict: Verdict | None = None
    guests: frozenset[str] = frozenset()
    known_within: float | None = None  # half of the 95% interval, as a share

    @property
    def ranked(self) -> list[str]:
        """Configs with a measurement that the verdict is about."""
        return [label for label in self.raced if label not in self.guests]

    @property
    def raced(self) -> list[str]:
        """Configs with a measurement, in the order given."""
        return [label for label in self.labels if label not in self.failures]

    def times(self, labels: Sequence[str]) -> Any:
        """ns per launch (rounds, labels), NaN where absent."""
        import numpy as np

        table = np.full((len(self.rounds), len(labels)), np.nan)
        for r, bursts in enumerate(self.rounds):
            for i, label in enumerate(labels):
                if label in bursts:
                    table[r, i] = bursts[label].burst_ns / bursts[label].launches
        return table

    def decide(self, min_effect: float) -> Verdict | None:
        """What the rounds say of those ranked, by their places in `ranked`."""
        return self._decide(self.ranked, min_effect)

    def _decide(self, labels: Sequence[str], min_effect: float) -> Verdict | None:
        if not labels or not self.rounds:
            return None
        left = [labels.index(label) for label in self.left if label in labels]
        return race.decide(self.times(labels), left=left, min_effect=min_effect)

    def stop_reason(self, min_effect: float) -> str | None:
        """Why no further round is needed: the verdict stands, and guests are told apart or known as narrowly."""
        verdicts = [self.decide(min_effect), self._decide(self.raced, min_effect) if self.guests else None]
        reasons = [race.stop_reason(verdict) for verdict in verdicts if verdict is not None]
        return reasons[0] if reasons and None not in reasons and not self._is_vague() else None

    def _is_vague(self) -> bool:
        """Whether the leader's ratio to the main reference is to be known better than it is."""
        first = leader(self)
        if self.known_within is None or first is None or not self.references or len(self.rounds) >= NARROWED_BY:
            return False
        times = self.times([self.references[0], first])
        ratio, (low, high) = race.ratio_ci(times[:, 0], times[:, 1])
        return high - low > 2 * self.known_within * ratio

    def replay(self, rounds: Sequence[Mapping[str, Burst]]) -> None:
        """Take up the stored rounds of an interrupted race, who left it among them."""
        for bursts in rounds:
            self.rounds.append(bursts)
            self.update_left()

    def fail(self, label: str, failure: DeviceFailure) -> None:
        """A label is out. Those that left were slow against the leader, who may be the one that failed: they are back."""
        self.failures[label] = failure
        if label in self.references:
            self.references.remove(label)
        else:
            self.left.clear()

    def disqualify(self, label: str, failure: DeviceFailure) -> None:
        """A label is out after the race, when nobody can be back: those that left stay slow, unless against this very one."""
        gone = set() if label == leader(self) else set(self.left)
        self.fail(label, failure)
        self.left |= gone

    def update_left(self) -> None:
        """Certainly slow labels leave; the reference never does, every ratio needs it. No guest drives a ranked label out."""
        ranked, racing = ([x for x in labels if x not in self.left] for labels in (self.ranked, self.raced))
        gone = {ranked[i] for i in race.leavers(self.times(ranked))}
        if self.guests:
            gone |= self.guests & {racing[i] for i in race.leavers(self.times(racing))}
        self.left |= gone

    def least_rounds(self) -> int:
        """Rounds of whoever has the fewest of those still racing: who failed before an interruption and is raced again."""
        racing = [label for label in self.raced if label not in self.left]
        return min((sum(label in bursts for bursts in self.rounds) for label in racing), default=0)

    def order(self, rng: random.Random) -> list[str]:
        """The next round's labels in fresh random order."""
        order = [label for label in self.raced if label not in self.left] + self.references
        rng.shuffle(order)
        return order


def run(
    contest: Contest,
    worker: Worker,
    rules: Rules,
    save_round: SaveRound,
    advance: Callable[[str], None],
    save_failure: SaveFailure = lambda label, failure: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Race on from the rounds there are until decided, narrow or out of time.

    A round is stored while the next one runs: the device never waits for the disk, and a kill loses the round in flight.
    """
    rng = random.Random(f"{rules.seed}/{len(contest.rounds)}")
    deadline = clock() + rules.limit_s
    judge(contest, rules)
    while contest.stopped is None and contest.raced:
        order = contest.order(rng)
        worker.start_round(order)
        pending: tuple[int, list[Burst]] | None = None
        while True:
            if pending is not None:
                save_round(*pending)
            bursts = finished_round(contest, worker, order, save_failure)
            if bursts is None:
                break
            contest.rounds.append({burst.label: burst for burst in bursts})
            pending = (len(contest.rounds) - 1, bursts)
            advance(f"round {len(contest.rounds)}")
            contest.update_left()
            judge(contest, rules)
            if contest.stopped is None and clock() > deadline and contest.least_rounds() >= LEAST_ROUNDS:
                contest.stopped = "time"
            if contest.stopped is not None:
                save_round(*pending)
                break
            order = contest.order(rng)
            worker.start_round(order)
    contest.verdict = contest.decide(rules.min_effect)


def finished_round(
    contest: Contest, worker: Worker, order: Sequence[str], save_failure: SaveFailure
) -> list[Burst] | None:
    """The bursts of the round under way; None where a label failed in it and is out.

    Raises EnvironmentProblem where that is the main reference.
    """
    try:
        return worker.finish_round(order)
    except LabelFailure as failed:
        if failed.label in contest.references[:1]:
            raise EnvironmentProblem(
                f"the reference {failed.label} failed in the race ({failed.failure.reason}): nothing can be compared. "
                "The same command goes on from the stored rounds."
            ) from None
        contest.fail(failed.label, failed.failure)
        save_failure(failed.label, failed.failure)
        return None


def judge(contest: Contest, rules: Rules) -> None:
    """At a look: stop when the verdict stands, or at the last look."""
    if len(contest.rounds) not in race.LOOKS:
        return
    contest.stopped = contest.stop_reason(rules.min_effect)
    if contest.stopped is None and len(contest.rounds) >= race.LOOKS[-1]:
        contest.stopped = "time"


def leader(contest: Contest) -> str | None:
    """Who is ahead so far, which decides nothing: the ranked label of the least median."""
    import numpy as np

    labels = [x for x in contest.ranked if x not in contest.left and any(x in bursts for bursts in contest.rounds)]
    medians = np.nanmedian(contest.times(labels), axis=0) if labels else ()
    return min(zip(medians, labels, strict=True))[1] if labels else None


def measurements(contest: Contest) -> dict[str, Measurement]:
    """What the rounds say of every label, references included."""
    import numpy as np

    references = [label for label in contest.references if not np.isnan(contest.times([label])).all()]
    everyone = contest.raced + references
    table = contest.times(everyone)
    found = {}
    for i, label in enumerate(everyone):
        times = table[:, i]
        if np.isnan(times).all():
            continue
        median, ci = race.median_ci(times)
        relations = {
            reference: Relation(*race.ratio_ci(table[:, everyone.index(reference)], times)) for reference in references
        }
        launches = next(r[label].launches for r in contest.rounds if label in r)
        count = int((~np.isnan(times)).sum())
        found[label] = Measurement(count, launches, median, ci, label in contest.left, relations)
    return found
