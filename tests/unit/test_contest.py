"""Who is in a race, who left it and who is out."""

from __future__ import annotations

import numpy as np
import pytest

from gemmsweep import regimes
from gemmsweep.contest import LEAST_ROUNDS, Contest, Rules, run
from gemmsweep.protocol import Burst, DeviceFailure

TIMES_US = {"A": 80.0, "B": 96.0, "E": 100.0, "F": 200.0}
WRONG = DeviceFailure("unstable", "another result after the race")


def raced(rounds: int = 20) -> Contest:
    """A race in which bursts scatter by 3%; F, far behind, leaves early."""
    rng = np.random.default_rng(3)
    held = Contest(list(TIMES_US), ["cublas"])
    for _ in range(rounds):
        bursts = {}
        for label, us in {**TIMES_US, "cublas": 100.0}.items():
            if label not in held.left:
                bursts[label] = Burst(label, round(1e6 * us * rng.normal(1, 0.03)), 1000)
        held.rounds.append(bursts)
        held.update_left()
    held.verdict = held.decide(0.005)
    return held


def test_who_is_found_wrong_after_the_race_opens_no_verdict_about_others() -> None:
    held = raced()
    assert held.left >= {"F"}
    held.disqualify("E", WRONG)
    verdict = held.decide(0.005)
    assert verdict is not None
    assert (verdict.kind, held.ranked[verdict.leader]) == ("winner", "A")
    assert "F" in held.left


def test_a_leader_found_wrong_after_the_race_was_no_yardstick_for_who_left() -> None:
    held = raced()
    held.disqualify("A", WRONG)
    assert not held.left


class Slow:
    """A worker whose rounds take a second of the clock that `tick` is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rng = np.random.default_rng(1)

    def start_round(self, order: list[str]) -> None:
        self.now += 1.0

    def finish_round(self, order: list[str]) -> list[Burst]:
        return [Burst(label, round(100_000 * self.rng.normal(1, 0.05)), 1) for label in order]


@pytest.mark.parametrize(("on_record", "further"), [(0, LEAST_ROUNDS), (7, LEAST_ROUNDS)])
def test_no_label_ends_with_fewer_rounds_than_an_interval_needs(on_record: int, further: int) -> None:
    held = Contest(["A", "X"], ["cublas"])
    held.rounds = [{x: Burst(x, 100_000 + i, 1) for x in ("A", "cublas")} for i in range(on_record)]
    worker = Slow()
    run(
        held, worker, Rules(limit_s=0.5), lambda index, bursts: None, lambda told: None,  # type: ignore[arg-type]
        clock=lambda: worker.now,
    )  # fmt: skip
    assert held.stopped == "time"
    assert sum("X" in bursts for bursts in held.rounds) == further, "X failed before, and is raced again"


def test_intervals_of_configs_timed_alone_are_of_times_however_these_scatter() -> None:
    held = Contest(["A"], ["numpy"])
    for index in range(7):  # as on a CPU with other load
        us = {"A": 40.0 if index else 90.0, "numpy": 20.0 if index else 4000.0}
        held.rounds.append({label: Burst(label, round(1e3 * time), 1) for label, time in us.items()})
    found = regimes.naive(held, 0.005).measurements
    for one in found.values():
        assert 0 < one.ci95_ns[0] < one.median_ns < one.ci95_ns[1]
        ratio, (low, high) = one.relations["numpy"].ratio, one.relations["numpy"].ci95
        assert 0 < low <= ratio <= high
    assert found["numpy"].relations["numpy"].ci95 == (1.0, 1.0)
