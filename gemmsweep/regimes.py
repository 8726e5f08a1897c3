"""Races other than rounds at equal clock: blocks at each label's own power, rested bursts, and every config alone.

Equal clock answers "which kernel is better?": all labels share the device's state. Own power answers "which is faster in
use?": under a power cap a kernel that draws less runs at a higher clock. Results of different regimes are different rows
and never compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gemmsweep import contest, race
from gemmsweep.contest import Contest, Rules, SaveFailure, SaveRound
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.protocol import Burst, DeviceFailure
from gemmsweep.record import Measurement, Outcome, Relation

if TYPE_CHECKING:
    from gemmsweep.worker import Worker

BLOCK_S, DROPPED_S = 1.6, 0.5  # of each block; within the dropped part clock and power settle
BLOCK_BURST_MS = 20.0  # so that the host's gaps between bursts are a small part of a block
PASSES = 8  # forward and backward through the labels, four times
REST_S, RESTED_ROUNDS = 1.0, 20
RESTED_BURST_MS = 1.0  # makes bursts of at most 3 ms of any kernel that takes less than that
ALONE_LAUNCHES = 7
SINGLE_MS = 0.001  # makes a burst of one launch
LARGE, LARGE_FLOPS = 2048, 1e11  # from here on a product can bring a GPU to its power limit


@dataclass(frozen=True, slots=True)
class Course:
    """How a race of one regime runs: what `run` needs beside the contest itself."""

    rules: Rules
    save_round: SaveRound
    advance: Callable[[str], None]
    save_failure: SaveFailure = lambda label, failure: None


def finals_regimes(asked: str, problem: Problem, device: DeviceInfo) -> tuple[str, ...]:
    """What is raced after the finals at equal clock: by default own power where a power cap can be what decides."""
    if asked in ("own-power", "burst"):
        return (asked,)
    if asked == "all":
        return ("own-power", "burst")
    large = min(problem.m, problem.n, problem.k) >= LARGE or problem.flops >= LARGE_FLOPS
    return ("own-power",) if asked == "auto" and device.kind == "cuda" and large else ()


def cost_s(regime: str, labels: int) -> float:
    """About how long a race of a regime takes."""
    return labels * (PASSES * BLOCK_S if regime == "own-power" else RESTED_ROUNDS * REST_S)


def run(way: str, held: Contest, worker: Worker, course: Course) -> None:
    """Race by a regime, or with "alone" each config by itself."""
    if way == "own-power":
        own_power(held, worker, course)
    elif way == "burst":
        rested(held, worker, course)
    elif way == "alone":
        alone(held, worker, course)
    else:
        contest.run(held, worker, course.rules, course.save_round, course.advance, course.save_failure)


def own_power(held: Contest, worker: Worker, course: Course) -> None:
    """Blocks of one label each, forward then backward through the labels so that a steady drift cancels."""
    held.left.clear()
    everyone = [*held.raced, *held.references]
    try_each(held, everyone, lambda label: worker.recalibrate(label, BLOCK_BURST_MS), course)
    for index in range(len(held.rounds), PASSES):
        order = everyone if index % 2 == 0 else everyone[::-1]
        take_round(held, order, lambda label: worker.block(label, BLOCK_S, DROPPED_S), course)
    conclude(held, course.rules)


def rested(held: Contest, worker: Worker, course: Course) -> None:
    """One short burst after a rest, over and over: the speed before the clock comes down."""
    held.left.clear()
    everyone = [*held.raced, *held.references]
    worker.keep_warm(None)
    try_each(held, everyone, lambda label: worker.recalibrate(label, RESTED_BURST_MS), course)
    for index in range(len(held.rounds), RESTED_ROUNDS):
        order = everyone if index % 2 == 0 else everyone[::-1]
        take_round(held, order, lambda label: worker.rested(label, REST_S), course)
    conclude(held, course.rules)


def alone(held: Contest, worker: Worker, course: Course, *, ready: bool = False) -> None:
    """Every config by itself, as tools without rounds do it. Compare with it; do not believe it.

    Each is launched and timed so many times in a row, after one launch untimed. `ready`: the bursts to time are set up.
    """
    worker.keep_warm(None)
    taken: dict[str, list[Burst]] = {}

    def time_one(label: str) -> None:
        if not ready:
            worker.recalibrate(label, SINGLE_MS)
        taken[label] = worker.alone(label, ALONE_LAUNCHES)
        course.advance(label)

    try_each(held, [*held.raced, *held.references], time_one, course)
    held.rounds = [{label: bursts[i] for label, bursts in taken.items()} for i in range(ALONE_LAUNCHES)]
    for index, bursts in enumerate(held.rounds):
        course.save_round(index, list(bursts.values()))
    held.verdict, held.stopped = held.decide(course.rules.min_effect), "decided"


def try_each(held: Contest, labels: Sequence[str], act: Callable[[str], object], course: Course) -> None:
    """Do it for every label that has not failed; one that fails now is out. A reference's failure is the race's."""
    for label in labels:
        if label in held.failures:
            continue
        try:
            act(label)
        except DeviceFailure as failure:
            if label in held.references[:1]:
                raise EnvironmentProblem(
                    f"the reference {label} failed ({failure.reason}): nothing can be compared. See: gemmsweep doctor"
                ) from None
            held.fail(label, failure)
            course.save_failure(label, failure)


def take_round(held: Contest, order: Sequence[str], measure: Callable[[str], Burst], course: Course) -> None:
    """One pass over the labels in this order, stored at its end."""
    bursts: dict[str, Burst] = {}

    def one(label: str) -> None:
        bursts[label] = measure(label)

    try_each(held, order, one, course)
    kept = {label: burst for label, burst in bursts.items() if label not in held.failures}
    held.rounds.append(kept)
    course.save_round(len(held.rounds) - 1, list(kept.values()))
    course.advance(f"round {len(held.rounds)}")


def conclude(held: Contest, rules: Rules) -> None:
    """The verdict of a race with a fixed number of rounds: one look."""
    labels = held.ranked
    if labels:
        held.verdict = race.decide(held.times(labels), min_effect=rules.min_effect, looks=1)
    if held.raced:
        held.stopped = (race.stop_reason(held.verdict) if held.verdict is not None else None) or "time"


def with_joules(outcome: Outcome, held: Contest) -> Outcome:
    """The outcome of an own-power race with joules per launch, where every block's mean power is known."""
    measured = {label: replace(m, joules=joules(held, label)) for label, m in outcome.measurements.items()}
    return replace(outcome, measurements=measured)


def joules(held: Contest, label: str) -> float | None:
    """Energy of all blocks over their launches."""
    blocks = [r[label] for r in held.rounds if label in r]
    energies = [1e-12 * b.power_mw * b.burst_ns for b in blocks if b.power_mw is not None]
    if not blocks or len(energies) < len(blocks):
        return None
    return sum(energies) / sum(b.launches for b in blocks)


def naive(held: Contest, min_effect: float) -> Outcome:
    """What a tool that times configs alone would say: the least mean wins, and every difference of means is one."""
    found = {
        label: naive_measurement(held, label) for label in [*held.raced, *held.references] if label in held.rounds[0]
    }
    means = {label: found[label].median_ns for label in held.ranked}
    if not means:
        return Outcome("none", None, (), None, 0, False, held.stopped, False, found if held.raced else {})
    order = sorted(means, key=lambda label: means[label])
    margin = 100 * (means[order[1]] / means[order[0]] - 1) if len(order) > 1 else None
    pairs = sum(
        math.log(means[b] / means[a]) >= math.log1p(min_effect) for a in order for b in order if means[b] > means[a]
    )
    return Outcome("winner", order[0], (), margin, pairs, False, held.stopped, True, found)


def naive_measurement(held: Contest, label: str) -> Measurement:
    """Mean and textbook 95% interval of a label's launches; ratios are ratios of means. Both intervals are of logarithms (delta
    method): seven launches on a busy CPU scatter so that a symmetric one would reach below 0.
    """

    def mean_se(name: str) -> tuple[float, float]:
        times = [r[name].burst_ns / r[name].launches for r in held.rounds]
        mean = sum(times) / len(times)
        return mean, math.sqrt(sum((t - mean) ** 2 for t in times) / (len(times) - 1) / len(times))

    def around(value: float, relative_se: float) -> tuple[float, float]:
        reach = math.exp(quantile * relative_se)
        return value / reach, value * reach

    quantile = race.t_quantile(0.975, len(held.rounds) - 1)
    mean, se = mean_se(label)
    relations = {}
    for reference in held.references:
        its_mean, its_se = mean_se(reference)
        spread = 0.0 if reference == label else math.hypot(its_se / its_mean, se / mean)
        relations[reference] = Relation(its_mean / mean, around(its_mean / mean, spread))
    return Measurement(
        len(held.rounds), held.rounds[0][label].launches, mean, around(mean, se / mean), False, relations
    )
